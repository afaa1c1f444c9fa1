"""Where numbers differ: in words, and as a small picture for the terminal."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mha.core.tables import number
from mha.parity.rule.kernel import BY_KEYS, KernelProblem
from mha.parity.rule.layouts import CACHED, GRADIENT, INPUTS, MEANS, OF_INPUTS, OF_KEYS, OF_VALUES, PLACED, POOLED, kind
from mha.parity.rule.problem import Problem
from mha.parity.rule.rules import error

ACROSS, DOWN = 60, 16  # a larger array is drawn in bins
TILES = 128, 64, 32, 16  # numbers of rows that kernels compute at once
LEGEND = "# differs, . the same, x differs in padding, - padding"


def ranges(numbers: Sequence[int]) -> str:
    """Shorten sorted whole numbers: 0-3, 5."""
    parts: list[list[int]] = []
    for place in numbers:
        if parts and place == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], place]
        else:
            parts.append([place])
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


def describe_place(asked: Problem, name: str, wrong: np.ndarray, worst: Any) -> tuple[str, tuple[str, ...]]:
    """Describe where numbers are wrong, in words and as a picture; worst: the index of the worst number."""
    short, last = name.removeprefix(GRADIENT), "keys" if asked.sizes.slots is None else "slots"
    padding, labels = np.zeros(wrong.shape, bool), [f"sample {b}" for b in range(len(wrong))]
    if isinstance(asked, KernelProblem):
        wrong = asked.by_heads(name, wrong)  # (B, H, T, d)
        found, drawn = place_of_heads(asked, "split_k" if name in BY_KEYS else "pooled", wrong)
        return "; ".join(filter(None, [found, tile(np.asarray(wrong.any((0, 1, 3))))])), drawn
    if short in ("output", *OF_INPUTS, INPUTS):
        rows = {"keys": "keys", "values": "keys", INPUTS: "tokens"}.get(short, "queries")
        padding |= ~no_padding(asked, short, wrong.shape)
        axes, grid, gray = ["samples", rows, "features"], wrong.any(2), padding.any(2)
    elif name == MEANS:
        padding, b, rows = ~np.asarray(asked.by_slots(asked.pairs_that_count).any(1)), int(worst[0]), last  # (B, Q, K)
        axes, grid, gray = ["samples", "queries", last], wrong[b], padding[b]
        labels = [f"sample {b}, query {i}" for i in range(wrong.shape[1])]
    elif name == PLACED:
        axes, grid, gray, rows = ["samples", "slots"], wrong, padding, "slots"
    elif kind(name) == "whole":
        return place_of_weight(asked, short, wrong)
    elif kind(name) == "pairs":
        (b, h), rows = (int(i) for i in worst[:2]), last
        padding |= ~no_padding(asked, name, wrong.shape)
        axes, grid, gray = ["samples", "heads", "queries", last], wrong[b, h], padding[b, h]
        labels = [f"sample {b}, head {h}, query {i}" for i in range(wrong.shape[2])]
    else:
        return place_of_heads(asked, name, wrong)
    return words(wrong, padding, axes), picture(np.asarray(grid), np.asarray(gray), labels, rows)


def place_of_heads(asked: Problem, name: str, wrong: np.ndarray) -> tuple[str, tuple[str, ...]]:
    """Describe where numbers of heads are wrong, booleans (B, H, T, any)."""
    B, H, T, _ = wrong.shape
    rows = "slots" if name in CACHED else "keys" if name in (*OF_KEYS, *OF_VALUES) else "queries"
    padding = np.broadcast_to(~no_padding(asked, name, wrong.shape), wrong.shape)
    grid, gray = (np.asarray(X.any(3)).reshape(B * H, T) for X in (wrong, padding))  # (B*H, T)
    labels = [f"sample {b}, head {h}" for b in range(B) for h in range(H)]
    return words(wrong, padding, ["samples", "heads", rows, ""]), picture(grid, gray, labels, rows)


def tile(wrong: np.ndarray) -> str:
    """Say which tile the wrong ones of some rows, booleans (T,), repeat by, or begin at; "" = none."""
    T, rows = len(wrong), np.flatnonzero(wrong)
    if not rows.size or rows.size == T:
        return ""
    first = int(rows[0])
    n = next((n for n in range(2, T // 2 + 1) if (wrong[n:] == wrong[:-n]).all()), None)
    if n is not None:
        some = f"every {ordinal(n)} row from {first}" if wrong[:n].sum() == 1 else f"the same rows of every {n}"
        return f"{some}: a tile of {n}"
    n = next((n for n in TILES if first and first % n == 0), None)
    whole = wrong[first:].all() or (n is not None and rows.size == n and wrong[first : first + n].all())
    return f"from row {first} on, where a tile of {n} begins" if whole and n is not None else ""


def ordinal(n: int) -> str:
    """Return a number as an ordinal: 32nd."""
    ending = "th" if n // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def place_of_weight(asked: Problem, name: str, wrong: np.ndarray) -> tuple[str, tuple[str, ...]]:
    """Describe where numbers are wrong in the gradient of a weight, of a bias of the scores or of gates."""
    config, role = asked.config, name.partition(".")[0]
    heads = config.num_heads if role in ("W_q", "W_o") else config.num_key_value_heads
    if wrong.ndim == 2 and role in ("W_q", "W_k", "W_v", "W_o"):
        wrong = wrong if role == "W_o" else wrong.T  # heads first
        wrong = wrong.reshape(heads, -1, wrong.shape[1])  # (H, d, the other width)
        across, grid = "outputs" if role == "W_o" else "inputs", wrong.any(1)
        axes, labels = ["heads", "", across], [f"head {h}" for h in range(heads)]
    else:
        across, grid = "numbers", wrong.reshape(-1, wrong.shape[-1])  # (the others, the last)
        axes, labels = [f"axis {i}:" for i in range(wrong.ndim)], [f"row {i}" for i in range(len(grid))]
    nothing = np.zeros(wrong.shape, bool), np.zeros(grid.shape, bool)
    return words(wrong, nothing[0], axes), picture(np.asarray(grid), nothing[1], labels, across)


def no_padding(asked: Problem, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return which numbers are no padding: visible pairs that count, queries and keys of such pairs; it broadcasts."""
    visible = asked.pairs_that_count
    if kind(name) == "pairs":
        return asked.by_slots(visible)
    if len(shape) == 3:
        of_queries, of_keys = np.asarray(visible.any((1, 3))), np.asarray(visible.any((1, 2)))
        if name == INPUTS:
            return (of_queries | of_keys)[..., None]  # (B, T, 1)
        return (of_keys if name in ("keys", "values") else of_queries)[..., None]  # (B, T, 1)
    if name in POOLED:
        return np.asarray(visible.any(3))[..., None]  # (B, H, Q, 1)
    counts = asked.matters(name)
    return counts if counts.shape[1] == shape[1] else np.repeat(counts, shape[1] // counts.shape[1], 1)


def hints(theirs: np.ndarray, expected: np.ndarray, limit: float) -> list[str]:
    """List the easily seen reasons of numbers that differ: NaN, a factor, a transpose."""
    found = []
    if missing := int((np.isnan(theirs) & ~np.isnan(expected)).sum()):
        found.append(f"NaN in {missing} of {theirs.size} numbers")
    if not (np.isfinite(theirs).all() and np.isfinite(expected).all()):
        return found
    size = float((expected * expected).sum())
    factor = float((theirs * expected).sum()) / size if size else 0.0
    if abs(factor) > 1e-3 and np.abs(theirs - factor * expected).max() <= limit * max(1.0, abs(factor)):
        found.append(f"theirs is {number(factor)} times ours")
    if theirs.ndim == 2 and theirs.shape == theirs.T.shape and error(theirs.T, expected) <= limit:
        found.append("theirs is the transpose of ours")
    return found
