"""Find the earlier arrays that a module's input is the sum, the product or a multiple of; and relations of arrays.

Code between modules, such as adding a residual, is not recorded, but the arrays are. So a flow is found in A, and then
checked in B, on B's own arrays.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from mha.models.records.pairs import Pair, mean_square

SAMPLES = 64  # numbers of an array that are tried first
TRIED = 32  # earlier arrays that are tried
TRIED_IN_THREES = 12
FEW = 4  # flows of each kind that are tried on all numbers
EXACT = 4.0  # units of rounding that a right flow may leave
RelationName = Literal["", "order", "number", "column", "norm", "sum"]
APART = 0.05  # arrays that differ by less, of their size, are in no relation: rounding would make one
LEFT = 0.01  # of the difference, what a relation may leave
WIDEST = 4096  # columns, of which as many pairs are looked at
MOST = 64  # rows that show which column is which
FEWEST = 8  # rows, and as many numbers for each, that show a relation
TURNS = 4.0  # times its range, the values of a function may go up and down


@dataclasses.dataclass(frozen=True, eq=False)
class Flow:
    """The way an array is made of earlier ones: a "sum" of sources with factors, or a "product"."""

    kind: str
    sources: tuple[int, ...]
    factors: tuple[float, ...] = ()

    def make_array(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the array that this flow makes, and the magnitudes of its terms, in float64."""
        wide = [X.astype(np.float64) for X in arrays]
        if self.kind == "product":
            product = wide[0] * wide[1]
            return product, np.abs(product)
        parts = [factor * X for factor, X in zip(self.factors, wide, strict=True)]
        return sum(parts[1:], parts[0]), sum((np.abs(X) for X in parts[1:]), np.abs(parts[0]))

    def describe(self, names: Sequence[str]) -> str:
        """Put the flow in words."""
        if self.kind == "product":
            return " times ".join(names)
        parts = [name if factor == 1 else f"{factor:.4g} times {name}" for factor, name in
                 zip(self.factors, names, strict=True)]  # fmt: skip
        return " + ".join(parts)


def sample_of(X: np.ndarray) -> np.ndarray:
    """Return some numbers of an array, at the same places in all arrays of one shape."""
    places = np.random.default_rng(X.shape[1]).integers(X.size, size=SAMPLES)
    return X.reshape(-1)[places].astype(np.float64)


def flow_of(X: np.ndarray, unit: float, sources: Sequence[np.ndarray]) -> Flow | None:
    """Find how an array is made of some of these, of many the last ones; None if it is not."""
    places = [at for at, Y in enumerate(sources) if Y.size == X.size][-TRIED:]
    if not places or not X.size:
        return None
    sources = [Y.reshape(X.shape) if Y.size == X.size else Y for Y in sources]
    z = sample_of(X)
    S = np.stack([sample_of(sources[at]) for at in places])
    if not (np.isfinite(z).all() and np.isfinite(S).all()):
        return None
    allowed = EXACT * unit
    best, least = None, np.inf
    for found in (*multiples(z, S, allowed)[:FEW], *sums(z, S, allowed)[:FEW], *products(z, S, allowed)[:FEW]):
        flow = dataclasses.replace(found, sources=tuple(places[at] for at in found.sources))
        made, terms = flow.make_array([sources[at] for at in flow.sources])
        left, most = mean_square(X.astype(np.float64) - made), mean_square(terms)
        share = float(np.divide(left, most, out=np.where(left > 0, np.inf, 0.0), where=most > 0).max(initial=0.0))
        if share <= allowed and share < least / 2:
            best, least = flow, share
    return best


def multiples(z: np.ndarray, S: np.ndarray, allowed: float) -> list[Flow]:
    """Return the flows that give z as a multiple of one source, the last sources first."""
    squares = (S * S).sum(1)
    factors = round_factors(np.divide(S @ z, squares, out=np.zeros(len(S)), where=squares > 0))
    left = np.abs(z - factors[:, None] * S) <= allowed * np.abs(z).max()
    good = np.flatnonzero(left.all(1) & (factors != 0))
    return [Flow("sum", (int(at),), (float(factors[at]),)) for at in good[::-1]]


def sums(z: np.ndarray, S: np.ndarray, allowed: float) -> list[Flow]:
    """Return the flows that give z as a sum of two sources, one with a factor, or of three."""
    n = len(S)
    squares = (S * S).sum(1)
    rest = z - S  # (n, samples)
    factors = np.divide(rest @ S.T, squares, out=np.zeros((n, n)), where=squares > 0)
    factors = round_factors(factors)
    made = S[:, None] + factors[:, :, None] * S  # (n, n, samples)
    terms = np.abs(S)[:, None] + np.abs(factors[:, :, None] * S)
    good = (np.abs(z - made) <= allowed * terms.max(2, keepdims=True)).all(2) & (factors != 0)
    good &= ~np.eye(n, dtype=bool)
    pairs = sorted(((float(abs(factors[i, j] - 1)), -i - j, i, j) for i, j in np.argwhere(good)))
    found = [Flow("sum", (int(i), int(j)), (1.0, float(factors[i, j]))) for _, _, i, j in pairs[:4]]
    first = max(0, n - TRIED_IN_THREES)
    for i in range(first, n):
        for j in range(i + 1, n):
            left = z - S[i] - S[j] - S[j + 1 :]  # (others, samples)
            terms = np.abs(S[i]) + np.abs(S[j]) + np.abs(S[j + 1 :])
            for at in np.flatnonzero((np.abs(left) <= allowed * terms.max(1, keepdims=True)).all(1)):
                found.append(Flow("sum", (i, j, j + 1 + int(at)), (1.0, 1.0, 1.0)))
    return found


def products(z: np.ndarray, S: np.ndarray, allowed: float) -> list[Flow]:
    """Return the flows that give z as a product of two sources."""
    made = S[:, None] * S  # (n, n, samples)
    good = (np.abs(z - made) <= allowed * np.abs(z).max()).all(2) & np.triu(np.ones((len(S), len(S)), bool))
    return [Flow("product", (int(i), int(j))) for i, j in np.argwhere(good)[::-1]]


def round_factors(factors: np.ndarray) -> np.ndarray:
    """Return factors, exactly 1 where they are 1 up to rounding."""
    return np.where(np.abs(factors - 1) < 1e-2, 1.0, factors)


def compare_flow(pair: Pair, flow: Flow, sources: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compare B's rows with what A's flow makes of B's own sources.

    Returns how far they are, how far they may be, and the size of the terms, (N,) each.
    """
    shape = pair.a.shape
    made, _ = flow.make_array([one.b.reshape(shape) for one in sources])
    far = mean_square(pair.b.astype(np.float64) - made)
    first, terms = flow.make_array([one.a.reshape(shape) for one in sources])
    own, sizes = mean_square(pair.a.astype(np.float64) - first), mean_square(terms)
    return far, 8 * own + EXACT * max(pair.unit, *(one.unit for one in sources)) * sizes, sizes


# The relation of B's array to A's where one of them has taken a step more, from their numbers alone


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
    return "sum" if flow_of(B - A, pair.unit * rms(A) / gap, arrays) is not None else ""


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
    """Return the order of the columns of X in which each goes as that of Y; None if there is none."""
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
