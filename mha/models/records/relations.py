"""Find the relation of B's array to A's where one of them has taken a step more, from their numbers alone."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from mha.models.records import flows
from mha.models.records.pairs import Pair

RelationName = Literal["", "order", "number", "column", "norm", "sum"]
APART = 0.05  # arrays that differ by less, of their size, are in no relation: rounding would make one
LEFT = 0.01  # of the difference, what a relation may leave
WIDEST = 4096  # columns, of which as many pairs are looked at
MOST = 64  # rows that show which column is which
FEWEST = 8  # rows, and as many numbers for each, that show a relation
TURNS = 4.0  # times its range, the values of a function may go up and down


def relation_of(pair: Pair, sources: Sequence[Pair]) -> RelationName:
    """Return the relation of B's numbers to A's, or of A's to B's; "" if none is found:

    "order": the same in another order, as of heads, also with a bias
    "number": a function of each number, as an activation or a factor
    "column": a linear one of each column, as a bias
    "norm": the same of rows that are normed
    "sum": the other and an earlier array, as by a residual
    """
    A, B = pair.a.astype(np.float64), pair.b.astype(np.float64)
    gap = rms(B - A)
    if not (pair.floats and A.size >= FEWEST**2 and len(A) >= FEWEST and np.isfinite(gap)) or gap < APART * rms(A):
        return ""
    left = LEFT * gap + 16 * pair.unit * rms(A)
    if rms(np.sort(A, 1) - np.sort(B, 1)) <= left:
        return "order"
    if is_function(A, B) or is_function(B, A):
        return "number"
    if min(linear_rest(A, B), linear_rest(B, A)) <= left:
        return "column"
    if (order := order_of(A, B)) is not None and linear_rest(A[:, order], B) <= left:
        return "order"
    if any(linear_rest(of(X), Y) <= left for X, Y in ((A, B), (B, A)) for of in (centre_rows, scale_rows)):
        return "norm"
    arrays = [X for one in sources for X in (one.a, one.b) if X.size == A.size]
    return "sum" if flows.flow_of(B - A, pair.unit * rms(A) / gap, arrays) is not None else ""


def rms(X: np.ndarray) -> float:
    """Return the root mean square of all numbers."""
    return float(np.sqrt((X * X).mean()))


def is_function(X: np.ndarray, Y: np.ndarray) -> bool:
    """Whether numbers of Y go by those of X: where X rises, Y does not go up and down."""
    ordered = Y.reshape(-1)[np.argsort(X.reshape(-1), kind="stable")]
    return float(np.abs(np.diff(ordered)).sum()) <= TURNS * float(np.ptp(ordered))


def linear_rest(X: np.ndarray, Y: np.ndarray) -> float:
    """Return the part of Y that is no multiple of X plus a constant, column by column."""
    x, y = X - X.mean(0), Y - Y.mean(0)
    squares = (x * x).sum(0)
    factors = np.divide((x * y).sum(0), squares, out=np.zeros_like(squares), where=squares > 0)
    return rms(y - factors * x)


def order_of(X: np.ndarray, Y: np.ndarray) -> np.ndarray | None:
    """Return the order of the columns of X in which each goes as that of Y."""
    if X.shape[1] > WIDEST:
        return None
    x, y = (centre_rows(Z[:MOST].T) for Z in (X, Y))  # (columns, rows)
    order = np.abs(x @ y.T).argmax(0)  # (columns,)
    return order if len(np.unique(order)) == len(order) else None


def centre_rows(X: np.ndarray) -> np.ndarray:
    """Return rows of mean 0 and of variance 1."""
    return scale_rows(X - X.mean(1, keepdims=True))


def scale_rows(X: np.ndarray) -> np.ndarray:
    """Return rows of mean square 1."""
    return X / np.sqrt((X * X).mean(1, keepdims=True) + np.finfo(float).tiny)
