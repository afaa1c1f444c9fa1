"""Pair arrays of two records, row by row: how far is each row of B from A's?

Letters: N rows, one for each token where there is one, F features.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mha.core.options import checks
from mha.models.records.contents import Record, RecordedCall, Visit
from mha.models.records.tokens import Grid, rows_of
from mha.parity.rule.rules import UNIT

KEPT = 2**28  # bytes of arrays that are kept for the next steps
PIECE = 2**22  # numbers that are compared at once
MOST_AXES = 4  # of arrays whose axes are tried in other orders


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
    """A visit in one of the calls that are compared together, and the tokens of that call."""

    call: RecordedCall
    grids: Sequence[Grid]
    visit: Visit

    def number(self, what: str, at: int) -> int | None:
        """Return the number of an array that entered or left; None if there is none."""
        numbers = self.visit.inputs if what == "input" else self.visit.outputs
        return numbers[at] if at < len(numbers) else None


Chunks = Sequence[Chunk]


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """An array of A and its partner in B, as rows, (N, F) both."""

    a: np.ndarray
    b: np.ndarray
    where: tuple[tuple[int, ...], tuple[int, ...]]  # the numbers of A's array and of B's, for each call
    far: np.ndarray  # the root mean squares of the rows of their difference, (N,)
    size: np.ndarray  # those of A's rows, (N,)

    @property
    def floats(self) -> bool:
        """Whether both hold floats."""
        return all("float" in checks.dtype_name(X.dtype) for X in (self.a, self.b))

    @property
    def unit(self) -> float:
        """The unit roundoff of the coarser dtype; 0 for integers."""
        units: dict[Any, float] = dict(UNIT)
        return max(units.get(checks.dtype_name(X.dtype), 0.0) for X in (self.a, self.b))

    @property
    def relative(self) -> float:
        """The largest difference of a row by the size of the row."""
        some = self.size > 0
        return float((self.far[some] / self.size[some]).max(initial=0.0))


class Matcher:
    """The pairs of arrays of two records; the last ones are kept."""

    def __init__(self, a: Record, b: Record) -> None:
        self.a, self.b = a, b
        self.kept: dict[Any, Pair | str] = {}

    def pair(self, a: Chunks, b: Chunks, what: str, at: int = 0) -> Pair | str | None:
        """Pair an input or output; None if it is missing on a side, a text if it cannot be compared."""
        numbers = [tuple(X for one in side if (X := one.number(what, at)) is not None) for side in (a, b)]
        if not all(numbers):
            return None
        key = (*numbers, len(a), len(b))
        kept = self.kept
        if key in kept:
            kept[key] = kept.pop(key)  # now the last one, which is dropped last
            return kept[key]
        kept[key] = self.make_pair(a, b, what, at, (numbers[0], numbers[1]))
        while len(kept) > 1 and sum(X.a.nbytes + X.b.nbytes for X in kept.values() if isinstance(X, Pair)) > KEPT:
            del kept[next(iter(kept))]
        return kept[key]

    def make_pair(self, a: Chunks, b: Chunks, what: str, at: int, where: Any) -> Pair | str:
        """Read two arrays and line their rows up; a text says why that cannot be."""
        joined = len(a) > 1 or len(b) > 1
        X, x, keys = side_of(self.a, a, what, at, joined)
        Y, y, others = side_of(self.b, b, what, at, joined)
        rows = None
        if x is not None and y is not None and x.shape[1] == y.shape[1]:
            rows = common_rows(x, keys, y, others)
            lasts = [{Z.shape[-1] for Z in arrays if Z.ndim > 2} for arrays in (X, Y)]
            F = lasts[0].pop() if lasts[0] == lasts[1] and len(lasts[0]) == 1 else 0
            if F and rows[0].shape[1] % F == 0:  # heads, which norms take one by one
                rows = rows[0].reshape(-1, F), rows[1].reshape(-1, F)  # (N*H, F) both
        elif len(X) == len(Y) == 1:
            rows = rows_in_best_order(X[0], Y[0])
        if rows is None:
            shapes = [" and ".join(dict.fromkeys(str(Z.shape) for Z in side)) for side in (X, Y)]
            return f"has shape {shapes[0]} in A and {shapes[1]} in B"
        far, size = row_distances(*rows)
        return Pair(*rows, where, far, size)


def side_of(record: Record, chunks: Chunks, what: str, at: int, joined: bool) -> tuple[Any, Any, np.ndarray]:
    """Read an array of one record, call by call.

    Returns its arrays, its rows (N, F), None = it has no row for each token, and the key of each row.
    """
    arrays, rows, keys = [], [], []
    for one in chunks:
        number = one.number(what, at)
        if number is None:
            continue
        X = record.array(number)
        arrays.append(X)
        found = rows_of(X, one.grids, "decoder" in one.visit.path, joined) if one.grids else None
        if found is not None:
            rows.append(found[0])
            keys.append(found[1])
    if len(rows) < len(arrays) or len({X.shape[1] for X in rows}) > 1:
        return arrays, None, np.zeros(0)
    return arrays, np.concatenate(rows) if len(rows) > 1 else rows[0], np.concatenate(keys)


def common_rows(X: np.ndarray, keys: np.ndarray, Y: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the tokens that both have; padding is left out."""
    if np.array_equal(keys, others) and len(np.unique(keys)) == len(keys) and (keys >= 0).all():
        return X, Y
    firsts = [np.unique(one, return_index=True) for one in (keys, others)]
    _, at, there = np.intersect1d(firsts[0][0], firsts[1][0], return_indices=True)
    at, there = firsts[0][1][at], firsts[1][1][there]
    real = keys[at] >= 0
    return X[at[real]], Y[there[real]]


def rows_in_best_order(X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return two arrays without tokens as rows, B's axes in the order nearest to A's; None if sizes differ."""
    F = X.shape[-1] if X.ndim else 1
    if X.size != Y.size:
        return None
    if X.shape == Y.shape or sorted(X.shape) != sorted(Y.shape) or X.ndim > MOST_AXES:
        return X.reshape(-1, F), Y.reshape(-1, F)  # (N, F) both
    orders = [axes for axes in itertools.permutations(range(Y.ndim)) if Y.transpose(axes).shape == X.shape]
    turned = [Y.transpose(axes) for axes in orders]
    best = min(turned, key=lambda Z: row_distances(X.reshape(-1, F), Z.reshape(-1, F))[0].sum())
    return X.reshape(-1, F), best.reshape(-1, F)  # (N, F) both


def row_distances(X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the root mean squares of the rows of Y - X and X; infinite where only one is finite."""
    far, size = np.zeros(len(X)), np.zeros(len(X))
    step = max(1, PIECE // max(1, X.shape[1]))
    for start in range(0, len(X), step):
        one, other = (Z[start : start + step].astype(np.float64) for Z in (X, Y))
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        broken = ~same & ~(np.isfinite(one) & np.isfinite(other))
        with np.errstate(invalid="ignore"):
            gap = np.where(same, 0.0, other - one)
        gap[broken] = np.inf
        far[start : start + step] = mean_square(gap)
        size[start : start + step] = mean_square(np.where(np.isfinite(one), one, 0.0))
    return far, size


def mean_square(X: np.ndarray) -> np.ndarray:
    """Return the root mean square of each row."""
    return np.sqrt((X * X).mean(1)) if X.shape[1] else np.zeros(len(X))
