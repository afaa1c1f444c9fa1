"""How well a set of mistakes explains the numbers of another implementation, in all samples."""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mha.core.options.names import FloatName
from mha.parity.diagnosis.mistakes.bench import ALL, Bench
from mha.parity.diagnosis.mistakes.mistake import State
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.search.sample import Focus, errors_by_query, errors_by_sample
from mha.parity.rule.problem import Expected, Problem
from mha.parity.rule.rules import UNIT, error, fraction

LEFT = 0.25  # the share of the error that an explanation may leave
NOISE = 2.0  # times NumPy's own rounding that it may leave in half precision
# An explanation is sure if the right answer is so many bounds away, or if it leaves so little of the error.
SURE, LITTLE = 4.0, 0.1
REFUTED = 8.0  # times the bound, in a few queries: then the others need not be computed


class MistakeVerdict(NamedTuple):
    """The verdict on a set of mistakes: how well it explains their arrays, in all samples."""

    ratio: float  # the worst, by the rule
    left: float  # the largest share of the error that the mistakes leave
    noise: float  # the same, divided by NumPy's own rounding
    sample: int  # the worst sample
    row: int | None = None  # its worst query, if it is known
    rest: float = np.inf  # in half precision, the ratio of the output without their change

    @property
    def same(self) -> bool:
        """Return whether these mistakes give their numbers: within the bound, with little but noise left over."""
        return self.ratio <= 1 and self.left <= LEFT and self.noise <= NOISE


class Judge:
    """The judge of sets of mistakes by their arrays; a set that a few queries refute is not computed in all.

    focus: these few queries.
    """

    def __init__(self, problem: Problem, theirs: Mapping[str, Array], focus: Focus) -> None:
        self.problem, self.theirs, self.focus = problem, theirs, focus

    @functools.cached_property
    def few(self) -> tuple[Bench, Bench]:
        """Return the pipeline of a few queries, in float64 and in the layer's dtype."""
        return Bench(self.problem, "float64", *self.focus), Bench(self.problem, self.problem.config.dtype, *self.focus)

    @functools.cached_property
    def all(self) -> tuple[Bench, Bench]:
        """Return the pipeline of all queries, in float64 and in the layer's dtype."""
        return Bench(self.problem, "float64"), Bench(self.problem, self.problem.config.dtype)

    def verdict_on(self, state: State) -> MistakeVerdict:
        """Judge a set of mistakes, first in a few queries."""
        if self.focus.rows != ALL and (verdict := self.verdict_by(self.few, state)).ratio > REFUTED:
            return verdict._replace(sample=self.focus.samples[verdict.sample])
        return self.verdict_by(self.all, state)

    def verdict_by(self, benches: tuple[Bench, Bench], state: State) -> MistakeVerdict:
        """Judge how far their arrays are from those with these mistakes, as two pipelines compute them."""
        (oracle, base), dtype = benches, self.problem.config.dtype
        worst, left, noise, sample, row, rest = 0.0, 0.0, 0.0, 0, None, np.inf
        for name, X in self.theirs.items():
            counts = oracle.counts(state, name, oracle.matters(name))
            wide, narrow, there = oracle.steps(state, name), base.steps(state, name), oracle.cut(name, X)
            if wide is None or narrow is None or wide.shape != there.shape:
                worst, left, noise, sample, row = np.inf, np.inf, np.inf, 0, None
                break
            wide, narrow, there = (np.where(counts, Y.astype(np.float64), 0) for Y in (wide, narrow, there))
            ratio = Expected.of(dtype, wide, narrow, name == "output").ratio(there)
            if ratio > worst:
                worst, sample = ratio, int(errors_by_sample(there, wide).argmax())
                far = errors_by_query(name, there, wide) if oracle.rows == ALL else None
                row = None if far is None else int(far[sample].argmax())
            right = oracle.expected(name)
            right = right._replace(X=np.where(counts, right.X, 0))
            if right.ratio(there) > 1:
                share = apart(there, wide) / apart(there, right.X) if np.isfinite(apart(there, wide)) else np.inf
                left = max(left, share)
            if error(there, right.X) < np.inf:
                rest = min(rest, right.ratio_of_rest(there - wide))
            if "16" in dtype:  # its bounds are so wide that a similar mistake is within them
                noise = max(noise, fraction(apart(there, wide), floor(dtype, wide, narrow)))
        for bench in benches:
            bench.forget()
        return MistakeVerdict(worst, left, noise, sample, row, rest)


def floor(dtype: FloatName, wide: Array, narrow: Array) -> float:
    """Return the root mean square of NumPy's own rounding in half precision, and that of the numbers themselves."""
    return apart(narrow, wide) + 2 * UNIT[dtype] * apart(wide, 0 * wide)


def apart(X: Array, Y: Array) -> float:
    """Return the root mean square of the differences, infinite if only one of the two is NaN or infinite somewhere."""
    if error(X, Y) == np.inf:
        return np.inf
    far = np.where((X == Y) | (np.isnan(X) & np.isnan(Y)), 0, X - Y)
    return float(np.sqrt((far * far).mean()))
