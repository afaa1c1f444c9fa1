"""The places of errors in an array: in words, and as a small picture for the terminal."""

import itertools
from collections.abc import Sequence

import numpy as np

ACROSS, DOWN = 60, 16  # a larger array is drawn in bins
LEGEND = "# differs, . the same, x differs in padding, - padding"


def ranges(numbers: Sequence[int]) -> str:
    """Shorten sorted whole numbers: 0-3, 5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    shown = ["-".join(map(str, part)) for part in parts]
    return ", ".join(shown if len(shown) <= 5 else [*shown[:4], "..."])


def words(wrong: np.ndarray, padding: np.ndarray, axes: Sequence[str]) -> str:
    """Name the axes along which only some places have errors, and whether these are padding; else "everywhere".

    wrong, padding: booleans of one shape; axes: the name of each axis, "" = leave it out.
    """
    found = []
    for axis, name in enumerate(axes):
        hit = wrong.any(tuple(other for other in range(wrong.ndim) if other != axis))
        if name and not hit.all():
            found.append(f"{name} {ranges(np.flatnonzero(hit).tolist())} of {hit.size}")
    if padding.any() and not (wrong & ~padding).any():
        found.append("only in padding")
    elif padding.any() and not (wrong & padding).any():
        found.append("not in padding")
    return "; ".join(found) or "everywhere"


def picture(wrong: np.ndarray, padding: np.ndarray, labels: Sequence[str], across: str) -> tuple[str, ...]:
    """Draw a grid of booleans (lines, columns), one character for each place or bin.

    padding: booleans of its shape; labels: of the lines; across: the name of the columns.
    """
    down = bins(wrong.shape[0], DOWN)
    columns = bins(wrong.shape[1], ACROSS)
    drawn = []
    for first, last in down:
        cells = [(wrong[first:last, a:b], padding[first:last, a:b]) for a, b in columns]
        drawn.append("".join(character(*cell) for cell in cells))
    names = [labels[a] if b - a == 1 else f"{labels[a]} ..." for a, b in down]
    width = max(map(len, names), default=0)
    lines = [f"{name:<{width}}  {line}" for name, line in zip(names, drawn, strict=True)]
    return (f"{'':<{width}}  {across} 0-{wrong.shape[1] - 1}", *lines)


def character(wrong: np.ndarray, padding: np.ndarray) -> str:
    """Return the character of one bin."""
    if (wrong & ~padding).any():
        return "#"
    if wrong.any():
        return "x"
    return "-" if padding.all() else "."


def bins(size: int, most: int) -> list[tuple[int, int]]:
    """Cut a size into at most so many bins of nearly one size: (first, last + 1) of each."""
    edges = np.linspace(0, size, min(size, most) + 1).round().astype(int).tolist()
    return list(itertools.pairwise(edges))
