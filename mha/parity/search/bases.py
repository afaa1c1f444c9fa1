"""The base of a rotation that the catalogue does not list: it is fitted to their numbers."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from mha.names import FloatName
from mha.parity.mistakes.bench import Bench
from mha.parity.mistakes.mistake import Form, Mistake
from mha.parity.mistakes.of_rotations import ANOTHER_BASE, of_base
from mha.parity.pipeline.pieces import Array
from mha.parity.same.problem import Problem
from mha.parity.search.effort import Effort
from mha.parity.search.focus import Focus, counted

FIRST, LAST, STEP = np.log(10.0), np.log(1e9), 0.1  # of the logarithm of a base
BEST, FINER = 3, 5  # so many of the first steps are looked at more closely, each time by a quarter of the step
BETTER = 0.5  # of the error of the right base: the one that is fitted leaves less
ALIKE = 1.25  # a number of fewer digits may leave so much of the error of the best
DIGITS = 12


def fitted(problem: Problem, theirs: Mapping[str, Array], focus: Focus, effort: Effort) -> Form | None:
    """Fit the base to the last of their arrays that differs, in a few queries; None if no base comes near.

    The first must go by the base, too: what is before the rotation does not.
    """
    wrong = [name for name, X in theirs.items() if problem.expected(name).ratio(counted(problem, name, X)) > 1]
    if problem.config.rotary is None or not wrong:
        return None
    rough = Fit(problem, wrong[-1], theirs[wrong[-1]], focus, "float32")
    if not np.isfinite(rough.there).all() or not rough.goes_by_base(wrong[0]):
        return None
    grid = np.arange(FIRST, LAST + STEP, STEP).tolist()
    left = sorted((rough.left(at), at) for at in effort.within(grid))
    if len(left) < len(grid):
        return None
    fine = Fit(problem, wrong[-1], theirs[wrong[-1]], focus, "float64")
    best, at = min(fine.refined(rough.nearer(at)) for _, at in left[:BEST])
    return form_of(fine.shortest(best, at), problem.config.dtype) if best < BETTER * fine.right else None


def form_of(base: float, dtype: FloatName) -> Form:
    """Make the form of the mistake with a base of any number, which half precision does not show exactly."""
    how = f"{'about ' * ('16' in dtype)}{base:,.{DIGITS}g}"
    change = partial(of_base, base)
    return Form(-1, Mistake(ANOTHER_BASE.name, ANOTHER_BASE.what, ANOTHER_BASE.parts, {how: change}), how, change)


class Fit:
    """One of their arrays, and what is left of its errors with another base; `at` is the logarithm of that."""

    def __init__(self, problem: Problem, name: str, X: Array, focus: Focus, dtype: FloatName) -> None:
        self.bench, self.name, self.dtype = Bench(problem, dtype, *focus), name, dtype
        self.counts = self.bench.cut(name, problem.matters(name))
        self.there = self.counted(self.bench.cut(name, X))
        self.right = size(self.there - self.counted(self.bench.steps((), name)))

    def counted(self, X: Array | None) -> Array:
        """Return numbers in float64, 0 where they do not matter."""
        return np.where(self.counts, 0 if X is None else X, 0).astype(np.float64)

    def errors(self, at: float) -> Array:
        """Return what is left of each number."""
        found = self.bench.steps((form_of(np.exp(at), self.dtype),), self.name)
        self.bench.forget()
        return self.there - self.counted(found)

    def left(self, at: float) -> float:
        """Return the root mean square of what is left."""
        return size(self.errors(at))

    def goes_by_base(self, name: str) -> bool:
        """Whether a step would be another one with another base."""
        right, other = (self.bench.steps(state, name) for state in ((), (form_of(2.0, self.dtype),)))
        return right is not None and other is not None and not np.array_equal(right, other)

    def nearer(self, at: float) -> float:
        """Return the base near this one that leaves least, step by smaller step."""
        best = self.left(at), at
        for step in STEP / 4.0 ** np.arange(1, FINER + 1):
            best = min(best, *((self.left(near), near) for near in best[1] + step * np.array([-2, -1, 1, 2])))
        return float(best[1])

    def refined(self, at: float) -> tuple[float, float]:
        """Return what is left, and where, after steps by the slope of the errors, as Gauss and Newton take them."""
        best = self.left(at), at
        while True:
            errors = self.errors(best[1])
            slopes = (self.errors(best[1] + 1e-7) - errors) / 1e-7
            near = best[1] - float((slopes * errors).sum() / (slopes * slopes).sum())
            if not self.left(near) < 0.99 * best[0]:
                return best
            best = self.left(near), near

    def shortest(self, left: float, at: float) -> float:
        """Return the number of fewest digits that is as good."""
        numbers = (float(f"{np.exp(at):.{digits}g}") for digits in range(1, DIGITS + 1))
        return next((base for base in numbers if self.left(np.log(base)) <= ALIKE * left), float(np.exp(at)))


def size(X: Array) -> float:
    """Return the root mean square."""
    return float(np.sqrt((X * X).mean()))
