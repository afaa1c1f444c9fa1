"""The search for known mistakes in gradients, where the output is right or not given."""

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Form, Mistake, State, forms_of
from mha.parity.diagnosis.mistakes.of_gradients import GRADIENT_MISTAKES, with_dropout
from mha.parity.diagnosis.mistakes.of_tiles import GRADIENTS_OF_TILES
from mha.parity.diagnosis.pipeline.backward import Backward, backward
from mha.parity.diagnosis.pipeline.gradient_rounding import in_shape
from mha.parity.diagnosis.pipeline.pieces import Array, Steps
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.diagnosis.search.time_budget import Effort, describe_untried
from mha.parity.diagnosis.search.verdicts import REFUTED, MistakeVerdict, apart, floor
from mha.parity.rule.kernel import KernelProblem
from mha.parity.rule.layouts import GRADIENT, INPUTS, OF_INPUTS
from mha.parity.rule.problem import Expected, Problem
from mha.parity.rule.rules import bound, error, fraction, gradient_scale


class Effect(NamedTuple):
    """The effect of one mistake on a gradient: whether it changes it, and whether it is near to theirs then."""

    changes: bool
    near: bool


class Gradients:
    """The search for mistakes that give their gradients.

    theirs: their gradients by name, as they are compared; tried: how many mistakes and pairs were tried.
    """

    def __init__(self, problem: Problem, theirs: Mapping[str, Array], effort: Effort) -> None:
        self.problem, self.theirs, self.effort = problem, theirs, effort
        dtype = problem.config.dtype
        self.oracle, self.base = (backward(make_plan(problem, kind), problem.cotangent) for kind in ("float64", dtype))
        self.right = {name: problem.expected(name) for name in theirs}
        far = {name: error(X, self.right[name].X) for name, X in theirs.items()}
        self.far = {name: distance if distance < np.inf else 0.0 for name, distance in far.items()}  # NaN has no size
        self.wrong = [name for name, X in theirs.items() if self.right[name].ratio(X) > 1]
        self.plain = self.compute(self.base, ())
        self.alone: dict[Form, dict[str, Effect]] = {}
        self.tried, self.untried = 0, {1: 0, 2: 0}

    def run(self) -> list[tuple[State, MistakeVerdict]]:
        """Search for one mistake, then for two: return those that give their gradients, with their verdicts."""
        kernels = GRADIENTS_OF_TILES if isinstance(self.problem, KernelProblem) else ()
        known = forms_of([*GRADIENT_MISTAKES, *kernels, *self.of_dropout()])
        forms = [form for form in known if form.change(self.oracle) is not None]
        pairs = (pair for pair in itertools.combinations(forms, 2) if pair[0].place != pair[1].place)
        return self.among([(form,) for form in forms]) or self.among(list(pairs))

    def of_dropout(self) -> Iterator[Mistake]:
        """Yield the mistake of dropout's factor, with the p that a gradient has if nothing else is wrong."""
        for name in self.wrong:
            X, there = self.right[name].X, self.theirs[name].astype(np.float64)
            factor = float((X * there).sum() / (X * X).sum()) if X.any() else 1.0
            if 1.01 < factor < 100:
                yield with_dropout(1 - 1 / factor)
                return

    def among(self, states: list[State]) -> list[tuple[State, MistakeVerdict]]:
        """Judge these sets of mistakes, as far as the time reaches, and return those that give their gradients."""
        found = []
        left = len(states)
        for state in self.effort.within(states):
            left -= 1
            self.tried += 1
            if (verdict := self.verdict_on(state)).same:
                found.append((state, verdict))
        if states:
            self.untried[len(states[0])] = left
        return found

    def compute(self, back: Backward, state: State) -> Steps | None:
        """Compute their gradients with these mistakes, in the shapes in which they are compared; None = impossible."""
        changed: Backward | None = back
        for form in state:
            changed = None if changed is None else form.change(changed)
        if changed is None:
            return None
        found, result = changed.gradients(), {}
        if GRADIENT + INPUTS in self.theirs:
            found |= {INPUTS: np.sum([found[name] for name in OF_INPUTS], 0)}
        for name, theirs in self.theirs.items():
            result[name] = in_shape(found[name.removeprefix(GRADIENT)], theirs.shape)
        return result

    def verdict_on(self, state: State) -> MistakeVerdict:
        """Judge how far their gradients are from those with these mistakes."""
        none = MistakeVerdict(np.inf, np.inf, np.inf, 0)
        if self.rules_out(state) or (narrow := self.compute(self.base, state)) is None:
            return none
        effects = {name: self.effect(name, narrow[name]) for name in self.theirs}
        if len(state) == 1:
            self.alone[state[0]] = effects
        if not all(effect.near for effect in effects.values()):  # in the layer's dtype
            return none
        if (wide := self.compute(self.oracle, state)) is None:
            return none
        dtype = self.problem.config.dtype
        everything = self.problem.oracle_gradients | {name.removeprefix(GRADIENT): X for name, X in wide.items()}
        ratio = left = noise = 0.0
        for name, X in self.theirs.items():
            short, there = name.removeprefix(GRADIENT), X.astype(np.float64)
            scale = gradient_scale(short, everything)
            limit = bound(dtype, wide[name], narrow[name], gradient=True, scale=scale)
            ratio = max(ratio, fraction(error(X, wide[name]), limit))
            if self.right[name].in_half:
                ratio = max(ratio, ratio_of_rest(self.right[name], there, wide[name], scale))
            if name in self.wrong and (rest := apart(there, wide[name])):
                left = max(left, rest / apart(there, self.right[name].X))
            if "16" in dtype:
                noise = max(noise, fraction(apart(there, wide[name]), floor(dtype, wide[name], narrow[name])))
        return MistakeVerdict(ratio, left, noise, 0)

    def effect(self, name: str, X: Array) -> Effect:
        """Return the effect of mistakes on a gradient, which is X with them."""
        if self.plain is not None and np.array_equal(X, self.plain[name]):
            return Effect(False, name not in self.wrong)
        near = REFUTED * max(self.right[name].limit, 0.01 * self.far[name])
        return Effect(True, error(self.theirs[name], X) <= near)

    def rules_out(self, state: State) -> bool:
        """Return whether two mistakes cannot be it: a gradient that one of them alone changes is far then."""
        if len(state) < 2:
            return False
        for name in self.theirs:
            changing = [one for form in state if (one := self.alone[form][name]).changes]
            if len(changing) < 2 and not (changing[0].near if changing else name not in self.wrong):
                return True
        return False

    @property
    def untried_note(self) -> str:
        """Return the words for mistakes that were not tried, since there was no time; "" if all were."""
        return describe_untried(self.untried[1], self.untried[2])


def ratio_of_rest(right: Expected, there: Array, wide: Array, scale: float) -> float:
    """Return the ratio, as in the report, of the errors that mistakes leave of their gradient in half precision.

    wide: theirs with these mistakes, exactly; scale: as of `bound`. Rounding grows with the numbers. It shrinks with
    them only where mistakes do no more than multiply.
    """
    times = fraction(apart(wide, 0 * wide), max(apart(right.X, 0 * right.X), scale))
    if not np.allclose(wide, times * right.X, rtol=1e-6, atol=0):
        times = max(times, 1.0)
    return right.ratio_of_rest(np.where(np.isfinite(wide), there - wide, 0) / (times or 1.0))
