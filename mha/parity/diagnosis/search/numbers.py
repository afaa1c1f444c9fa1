"""Numbers of a layer that the catalogue does not list, such as the base of its rotation, fitted to their arrays."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from mha.core.options.config import score_options
from mha.core.options.names import FloatName
from mha.parity.diagnosis.mistakes.bench import Bench
from mha.parity.diagnosis.mistakes.mistake import Change, Form, Mistake
from mha.parity.diagnosis.mistakes.of_norms import ANOTHER_EPSILON, set_options
from mha.parity.diagnosis.mistakes.of_rotations import ANOTHER_BASE, of_base
from mha.parity.diagnosis.mistakes.of_scores import ANOTHER_SCALE, SCORES_MULTIPLIED, multiply, of_scale
from mha.parity.diagnosis.mistakes.of_softmax import SINKS_SEVERAL_TIMES, several
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.search.sample import Focus, ratios
from mha.parity.diagnosis.search.time_budget import Effort
from mha.parity.rule.heads import scale_of
from mha.parity.rule.problem import Problem

BEST, FINER = 3, 5  # the best numbers of the grid are refined; each time the step is a quarter of the last
BETTER = 0.5  # of the error of the right number: the one that is fitted leaves less
ALIKE = 1.25  # a number of fewer digits may leave this share of the error of the best
DIGITS = 12


@dataclasses.dataclass(frozen=True)
class Number:
    """A number above 0 that is fitted to their arrays."""

    mistake: Mistake  # its name, effect and parts
    change: Callable[[float], Change]  # makes the function that puts a number into a plan
    right: Callable[[Problem], float | None]  # the right number of a problem, None = it has none
    first: float  # the least to try
    last: float  # the most to try
    step: float  # of the logarithm
    said: bool = False  # whether the report gives the right number beside it

    def form(self, number: float, right: float, dtype: FloatName) -> Form:
        """Make the form of the mistake with a number, which half precision does not show exactly."""
        how = f"{'about ' * ('16' in dtype)}{number:,.{DIGITS}g}{f' where {right:.3g} is right' * self.said}"
        change = self.change(number)
        return Form(-1, dataclasses.replace(self.mistake, forms={how: change}), how, change)


def times_of(problem: Problem) -> float | None:
    """Return 1, where a factor of all scores is another mistake than another scale."""
    bends = {*score_options(problem.config)} - {"pooling"}
    return 1.0 if bends or problem.call.score_bias is not None else None


NUMBERS = (
    Number(ANOTHER_SCALE, partial(partial, of_scale),
           lambda problem: scale_of(problem.config) if problem.config.pooling == "dot" else None, 1e-4, 100.0, 0.25,
           said=True),
    Number(SCORES_MULTIPLIED, partial(partial, multiply), times_of, 1e-4, 100.0, 0.25),
    Number(ANOTHER_EPSILON, lambda eps: partial(set_options, eps=eps),
           lambda problem: problem.config.qk_norm.eps if problem.config.qk_norm else None, 1e-12, 10.0, 0.5),
    Number(SINKS_SEVERAL_TIMES, partial(partial, several),
           lambda problem: 1.0 if problem.config.sinks else None, 0.1, 1e4, 0.25),
    Number(ANOTHER_BASE, partial(partial, of_base),
           lambda problem: problem.config.rotary.base if problem.config.rotary else None, 10.0, 1e9, 0.1),
)  # fmt: skip


def fit_number(
    number: Number, problem: Problem, theirs: Mapping[str, Array], focus: Focus, effort: Effort
) -> Form | None:
    """Fit a number to the last of their arrays that differs, in a few queries; None if none comes near.

    The number must change the first array that differs, too: the base of the rotation changes nothing before it.
    """
    wrong = [name for name, ratio in ratios(problem, theirs).items() if ratio > 1]
    right = number.right(problem)
    if right is None or not wrong:
        return None
    rough = Fit(number, right, problem, wrong[-1], theirs[wrong[-1]], focus, "float32")
    if not np.isfinite(rough.there).all() or not rough.goes_by_number(wrong[0]):
        return None
    grid = np.arange(np.log(number.first), np.log(number.last) + number.step, number.step).tolist()  # of logarithms
    left = sorted((rough.left(at), at) for at in effort.within(grid))
    if len(left) < len(grid):
        return None
    fine = Fit(number, right, problem, wrong[-1], theirs[wrong[-1]], focus, "float64")
    best, at = min(fine.refine(rough.nearer(at)) for _, at in left[:BEST])
    if not best < BETTER * fine.right:
        return None
    return number.form(fine.shortest(best, at), right, problem.config.dtype)


class Fit:
    """One of their arrays, and how much of its errors another number leaves; `at` is the logarithm of that number."""

    def __init__(
        self, number: Number, right: float, problem: Problem, name: str, X: Array, focus: Focus, dtype: FloatName
    ) -> None:
        self.number, self.own = number, right
        self.bench, self.name, self.dtype = Bench(problem, dtype, *focus), name, dtype
        self.counts = self.bench.matters(name)
        self.there = self.blank(self.bench.cut(name, X))
        self.right = root_mean_square(self.there - self.blank(self.bench.steps((), name)))

    def blank(self, X: Array | None) -> Array:
        """Return numbers in float64, 0 where they do not matter."""
        return np.where(self.counts, 0 if X is None else X.astype(np.float64), 0.0)

    def errors(self, at: float) -> Array:
        """Return the error of each number that is left."""
        found = self.bench.steps((self.number.form(np.exp(at), self.own, self.dtype),), self.name)
        self.bench.forget()
        return self.there - self.blank(found)

    def left(self, at: float) -> float:
        """Return the root mean square of the errors that are left."""
        return root_mean_square(self.errors(at))

    def goes_by_number(self, name: str) -> bool:
        """Return whether a step depends on the number."""
        form = self.number.form(2 * self.own, self.own, self.dtype)
        right, other = (self.bench.steps(state, name) for state in ((), (form,)))
        return right is not None and other is not None and not np.array_equal(right, other)

    def nearer(self, at: float) -> float:
        """Return the number near this one that leaves least, step by smaller step."""
        best = self.left(at), at
        for step in self.number.step / 4.0 ** np.arange(1, FINER + 1):
            best = min(best, *((self.left(near), near) for near in best[1] + step * np.array([-2, -1, 1, 2])))
        return float(best[1])

    def refine(self, at: float) -> tuple[float, float]:
        """Refine a number by steps along the slope of the errors, as Gauss and Newton do; return its error, and it."""
        best = self.left(at), at
        while True:
            errors = self.errors(best[1])
            slopes = (self.errors(best[1] + 1e-7) - errors) / 1e-7
            near = best[1] - float((slopes * errors).sum() / (slopes * slopes).sum())
            if not abs(near - best[1]) < self.number.step or not self.left(near) < 0.99 * best[0]:
                return best
            best = self.left(near), near

    def shortest(self, left: float, at: float) -> float:
        """Return the number of fewest digits that leaves no more."""
        numbers = (float(f"{np.exp(at):.{digits}g}") for digits in range(1, DIGITS + 1))
        return next((one for one in numbers if self.left(np.log(one)) <= ALIKE * left), float(np.exp(at)))


def root_mean_square(X: Array) -> float:
    """Return the root mean square."""
    return float(np.sqrt((X * X).mean()))
