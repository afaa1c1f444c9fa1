"""Rounding by chance: a call in float32, computed in float64, each of whose results is moved by one unit up or down.

Plain NumPy may round less than other right code. Where scores are large, errors hang on the few rows whose largest
scores are near to each other. Where one key has all the weight, what cancels on the way back through the softmax is
exactly 0 in NumPy; a kernel that computes weights again, or that takes the sum over a row from its output, leaves what
rounding leaves.

Letters as in the lessons.
"""

import dataclasses
import functools
import math
from functools import partial
from typing import Any

import numpy as np

from mha.parity.diagnosis.pipeline.backward import backward
from mha.parity.diagnosis.pipeline.gradient_rounding import Again, HalfGradients, HalfKernelGradients, in_shape
from mha.parity.diagnosis.pipeline.pieces import Array, Steps, log_sum_exp
from mha.parity.diagnosis.pipeline.plan import make_plan, replace
from mha.parity.rule.decoding import Decoding
from mha.parity.rule.kernel import KernelProblem
from mha.parity.rule.layouts import GRADIENT, INPUTS, OF_INPUTS
from mha.parity.rule.problem import Problem
from mha.parity.rule.rounding import Into
from mha.parity.rule.rules import UNIT

DRAWS = 2  # for few pairs
FEW = 2**18  # pairs of queries and keys: with more, some rows show how far an output may be
MANY = 2**24  # pairs whose gradients take about 2 GB
OF_SUMS = 1 / 4  # of the unit: how far the logarithm of a sum, from which weights are computed again, is moved
MOST = 1 / 64  # of a weight: code that moves it further is not right, whatever explains it


@dataclasses.dataclass(frozen=True)
class ByChance(Problem):
    """A call in float32 whose bounds follow from plain NumPy or from rounding by chance, whichever errs more."""

    @functools.cached_property
    @np.errstate(all="ignore")
    def drawn(self) -> tuple["Drawn", ...]:
        """Return the steps so rounded, with what computes the gradients, each time by other chance."""
        found: list[Any] = []
        for seed in range(DRAWS if self.visible.size <= FEW else 1):
            into = up_or_down(UNIT[self.config.dtype], np.random.default_rng(seed))
            made = backward(replace(make_plan(self, "float64"), rounded=into), self.cotangent)
            found.append(object.__new__(Drawn))  # `dataclasses.replace` would make a Backward
            vars(found[-1]).update(vars(made), into=into)
        return tuple(found)

    @functools.cached_property
    @np.errstate(all="ignore")
    def drawn_gradients(self) -> tuple[Steps, ...]:
        """Return every gradient so rounded."""
        return tuple(one.gradients() for one in self.drawn)

    def limit(self, name: str, oracle: Array, base: Array, scale: float = 0.0) -> float:
        """Return how far an array may be; base: NumPy's in the layer's dtype; scale: as of `bound`."""
        limit = partial(super().limit, name, oracle, scale=scale)
        gradient, short = name.startswith(GRADIENT), name.removeprefix(GRADIENT)
        if not 0 < self.visible.size <= (MANY if gradient else FEW):
            drawn = []
        elif gradient:
            names = OF_INPUTS if short == INPUTS else (short,)
            drawn = [in_shape(np.sum([by[one] for one in names], 0), oracle.shape) for by in self.drawn_gradients]
        else:
            drawn = [self.blank_unused(name, one.steps[name]) for one in self.drawn]
        return max([limit(base), *(found for found in map(limit, drawn) if found < math.inf)])

    def forget(self) -> None:
        """Free the steps and gradients, which are computed again when they are asked for."""
        super().forget()
        for name in ("drawn", "drawn_gradients"):
            vars(self).pop(name, None)


class DecodingByChance(ByChance, Decoding):
    """The same for a call with a cache."""


IN_FLOAT32: dict[type[Problem], type[Problem]] = {Problem: ByChance, Decoding: DecodingByChance}
IN_HALF: dict[type[Problem], type[Problem]] = {Problem: HalfGradients, KernelProblem: HalfKernelGradients}
WITH_ROUNDING = {"float64": {}, "float32": IN_FLOAT32, "float16": IN_HALF, "bfloat16": IN_HALF}


def with_rounding(asked: Problem) -> Problem:
    """Turn a call into one whose bounds know how right code of its dtype rounds, where there is such a kind of call."""
    kind = WITH_ROUNDING[asked.config.dtype].get(type(asked))
    if kind is None:
        return asked
    made: Any = object.__new__(kind)
    vars(made).update({name: X for name, X in vars(asked).items() if name != "expectations"})  # which have other bounds
    return made


def up_or_down(unit: float, random: np.random.Generator) -> Into:
    """Make a function that moves each number by the unit, up or down by chance."""
    return lambda X: X * np.where(random.random(X.shape, np.float32) < 0.5, 1 - unit, 1 + unit)


@dataclasses.dataclass(frozen=True)
class Drawn(Again):
    """Gradients of a kernel so rounded; it computes weights again from the logarithms of sums, which it has rounded."""

    @functools.cached_property
    def moved(self) -> Array:
        """Return by what that multiplies the weights, (B, H, Q, K)."""
        found = log_sum_exp(self.plan, self.results["scores"], self.visible)  # (B, H, Q, 1)
        found = np.where(np.isfinite(found), found, 0)  # of rows without keys
        far = np.clip(OF_SUMS * (self.into(found) - found), -MOST, MOST)
        return np.broadcast_to(1 + far, self.visible.shape)
