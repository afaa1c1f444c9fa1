"""How well a set of mistakes explains the numbers of another implementation, in all samples."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mha.parity.mistakes.bench import Bench, State
from mha.parity.pipeline.pieces import Array
from mha.parity.same.problem import Problem
from mha.parity.same.rules import UNIT, bound, error, fraction, ratio_of, row_bounds

LEFT = 0.25  # the share of the error that an explanation may leave
NOISE = 2.0  # times NumPy's own rounding that it may leave in half precision


class Verdict(NamedTuple):
    """How well these mistakes explain their arrays, in all samples.

    ratio: the worst, by the rule; left: the largest share of the error that they leave; noise: the same, divided by
    NumPy's own rounding; sample: the worst one.
    """

    ratio: float
    left: float
    noise: float
    sample: int

    @property
    def same(self) -> bool:
        """Whether these mistakes give their numbers: within the bound, and little but noise is left of the error."""
        return self.ratio <= 1 and self.left <= LEFT and self.noise <= NOISE


def confirmed(problem: Problem, theirs: Mapping[str, Array], state: State) -> Verdict:
    """Compute these mistakes in all samples, and judge how far their arrays are from that."""
    oracle, base = (Bench(problem, dtype, slice(None)) for dtype in ("float64", problem.config.dtype))
    worst, left, noise, sample = 0.0, 0.0, 0.0, 0
    for name, X in theirs.items():
        counts = oracle.counts(state, name, problem.matters(name))
        wide, narrow = oracle.steps(state, name), base.steps(state, name)
        if wide is None or narrow is None or wide.shape != X.shape:
            return Verdict(np.inf, np.inf, np.inf, 0)
        wide, narrow, there = (np.where(counts, Y, 0).astype(np.float64) for Y in (wide, narrow, X))
        rows = row_bounds(problem.config.dtype, wide, narrow) if name == "output" else None
        ratio = ratio_of(there, wide, bound(problem.config.dtype, wide, narrow), rows)
        if ratio > worst:
            worst, sample = ratio, int(errors(there, wide).argmax())
        right = problem.expected(name)
        right = right._replace(X=np.where(counts, right.X, 0))
        if right.ratio(there) > 1:
            left = max(left, apart(there, wide) / apart(there, right.X)) if np.isfinite(apart(there, wide)) else np.inf
        if "16" in problem.config.dtype:  # its bounds are so wide that a similar mistake is within them
            floor = apart(narrow, wide) + 2 * UNIT[problem.config.dtype] * apart(wide, 0 * wide)
            noise = max(noise, fraction(apart(there, wide), floor))
    return Verdict(worst, left, noise, sample)


def errors(X: Array, expected: Array) -> Array:
    """Sum the errors of each sample, (B,)."""
    far = np.where((expected == X) | (np.isnan(X) & np.isnan(expected)), 0, np.abs(X - expected))
    return np.nan_to_num(far, nan=1e300, posinf=1e300).reshape(len(X), -1).sum(1)


def apart(X: Array, Y: Array) -> float:
    """Return the root mean square of the differences, infinite if only one of the two is NaN or infinite somewhere."""
    if error(X, Y) == np.inf:
        return np.inf
    far = np.where((X == Y) | (np.isnan(X) & np.isnan(Y)), 0, X - Y)
    return float(np.sqrt((far * far).mean()))
