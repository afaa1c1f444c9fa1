"""Draw attention weights in the terminal: a grid of marks for each head."""

from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len
from rich.console import Console

# A weight of exactly 0, as hidden keys have it, is blank; the others get the mark of their fifth of [0, 1].
BLOCKS, ASCII = "·░▒▓█", ".-+#@"


def marks(console: Console) -> str:
    """Return the marks that a terminal can show."""
    return BLOCKS if console.encoding.startswith("utf") else ASCII


def heat_map(weights: np.ndarray, marks: str, names: Sequence[str] | None = None, width: int = 2) -> str:
    """Return one head's weights (Q, K) as a grid of marks, `width` columns for each key; keys are numbered.

    names: of the queries; None = numbers.
    """
    names = list(map(str, range(len(weights)))) if names is None else names
    left = max(map(cell_len, names))
    numbers = "".join(f"{key:{width}}"[-width:] for key in range(weights.shape[1]))
    rows = (
        f"{' ' * (left - cell_len(name))}{name} " + "".join(width * _mark(weight, marks) for weight in row)
        for name, row in zip(names, weights, strict=True)
    )
    return "\n".join([" " * (left + 1) + numbers, *rows])


def legend(marks: str) -> str:
    """Return the meaning of the marks, in one line."""
    ends = [level / len(marks) for level in range(1, len(marks) + 1)]
    shades = (f"{2 * mark} to {end:.1f}" for mark, end in zip(marks, ends, strict=True))
    return f"blank hidden, {', '.join(shades)}"


def _mark(weight: float, marks: str) -> str:
    return " " if weight == 0 else marks[min(int(weight * len(marks)), len(marks) - 1)]
