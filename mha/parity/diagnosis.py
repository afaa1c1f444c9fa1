"""Why another implementation differs: the known mistakes, alone or together, that give its numbers."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult

from mha import dispatch
from mha.layer import MultiHeadAttention
from mha.parity import precision
from mha.parity.comparison import compare
from mha.parity.mistakes import GENERAL, Mistake, of_another_layer
from mha.parity.mistakes_of_models import OF_MODELS
from mha.parity.pipeline import PART_OF, PARTS, Array, Plan, Steps, compute
from mha.parity.problem import Problem
from mha.parity.report import Row, lines, number, said, text
from mha.parity.rules import error, fraction, largest
from mha.parity.search import Bench, State, Verdict, apart, searched

CATALOGUE: tuple[Mistake, ...] = (*GENERAL, *OF_MODELS)
# How far outside its bound the right answer has to be, or how little of the error has to be left, to be sure.
SURE, LITTLE = 4.0, 0.1


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Mistakes that together give their numbers.

    mistakes: the names, how: the form of each ("" where there is one); what: what each does; ratio: how far theirs is
    from what these mistakes give, by the rule: at most 1 is the same; left: the part of the error that they leave;
    sure: whether they explain it. Of rounding, which is imitated, the ratio may be above 1.
    """

    mistakes: tuple[str, ...]
    how: tuple[str, ...]
    what: tuple[str, ...]
    ratio: float
    left: float
    sure: bool

    def __str__(self) -> str:
        each = zip(self.mistakes, self.how, self.what, strict=True)
        named = [f"{name}{f' ({how})' if how else ''}: {what}" for name, how, what in each]
        fit = f"ratio {number(self.ratio)}" if self.ratio <= 1 else f"leaves {self.left:.0%} of the error"
        return f"{'; and '.join(named)} [{fit}]"


@dataclasses.dataclass(frozen=True, repr=False)
class Diagnosis:
    """Why theirs differs: explanations, best first; those that come together cannot be told apart by what was given.

    note: what there is to say besides, in a line; tried: how many mistakes and combinations were tried.
    """

    explanations: tuple[Explanation, ...]
    note: str
    tried: int

    @property
    def known(self) -> bool:
        """Whether there is an explanation to rely on."""
        return any(one.sure for one in self.explanations)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The names of all mistakes that an explanation to rely on has, best first."""
        return tuple(dict.fromkeys(name for one in self.explanations if one.sure for name in one.mistakes))

    def __str__(self) -> str:
        return text(self)

    __repr__ = __str__

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sure = [one for one in self.explanations if one.sure]
        if len(sure) > 1:
            yield from lines("why: one of these, which cannot be told apart by what was given", options)
        for one in sure:
            yield from lines(f"{'' if len(sure) > 1 else 'why: '}{one}", options)
        if self.note:
            yield from lines(self.note, options)
        for one in self.explanations:
            if not one.sure:
                yield from lines(f"perhaps: {one}", options)


def diagnose(
    attention: MultiHeadAttention,
    theirs: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: Any = None,
    *,
    mask: Any = None,
    score_bias: Any = None,
    causal: bool = False,
    offset: Any = 0,
    head_gates: Any = None,
    cotangent: Any = None,
    layout: str | None = None,
    others: Mapping[str, MultiHeadAttention] | None = None,
) -> Diagnosis:
    """Say which known mistakes give another implementation's numbers; arguments as for `parity.compare`.

    The output alone is enough for one or two mistakes; with steps, several can be told one after the other. Of
    gradients no use is made. A `Diagnosis` prints as text; a mistake that is not known is said to be unknown.
    """
    call = {"mask": mask, "score_bias": score_bias, "causal": causal, "offset": offset, "head_gates": head_gates}
    told = {"cotangent": cotangent, "layout": layout, "others": others}
    return compare(attention, theirs, queries, keys, values, valid_lens, **call, **told).diagnosis


def explained(
    problem: Problem, theirs: Mapping[str, Array], rows: tuple[Row, ...], others: Mapping[str, Mapping[str, Array]]
) -> Diagnosis:
    """The diagnosis of arrays that were compared: theirs by name, in the compared shapes; rows: the report's."""
    first = next((row for row in rows if not row.passed), None)
    if first is None:
        return Diagnosis((), "nothing to explain: all that was given is the same", 0)
    steps = {name: X for name, X in theirs.items() if name in PART_OF and X.shape == problem.sizes.shape(name)}
    wrong = [row for row in rows if not row.passed and row.name in steps]
    if not wrong:
        reason = "of gradients no known mistake is tried" if first.place is not None else "nothing can be tried"
        return Diagnosis((), f"why: unknown, {reason}; first to differ: {said(first)}", 0)
    far, mistakes = max(row.ratio for row in wrong), (*CATALOGUE, *of_another_layer(others))
    with dispatch.load("numpy").context("float32"):
        explanations, tried, skipped = attempts(problem, steps, mistakes, far)
    explanations.sort(key=lambda one: (len(one.mistakes), round(one.ratio, 1)))
    sure = [one for one in explanations if one.sure]
    if skipped:
        reason = "pairs of mistakes were not tried, the call is too large: give one sample of few queries"
    else:
        reason = f"none of {tried} tries among known mistakes gives these numbers"
    note = "" if sure else f"why: unknown, {reason}; first to differ: {said(wrong[0])}"
    return Diagnosis(tuple(sure or explanations), note, tried)


def attempts(
    problem: Problem, steps: Mapping[str, Array], mistakes: Sequence[Mistake], far: float
) -> tuple[list[Explanation], int, bool]:
    """What explains the arrays, from what is quickly tried to what takes longest.

    far: the ratio of the right answer. Where theirs has no finite number, nothing is sure. Also the number of tries,
    and whether pairs would have taken too long.
    """
    some = any(np.isfinite(X[np.broadcast_to(problem.matters(name), X.shape)]).any() for name, X in steps.items())
    far = far if some else 0.0
    explanations: list[Explanation] = []
    tried = 0
    if far >= SURE and small_errors(problem, steps):
        explanations = inexact(problem, steps, ())
        if any(one.sure for one in explanations):
            return explanations, len(precision.ROUNDINGS), False
    for pairs in (False, True):
        found, search = searched(problem, steps, mistakes, pairs)
        tried += search.tried
        exact = [made(state, verdict, far) for state, verdict in found if verdict.ratio <= 1]
        explanations = merged([*exact, *explanations])
        nearest = min((one for one in found if one[1].left <= 0.1), key=lambda one: one[1].left, default=None)
        if far >= SURE and nearest and not any(one.sure for one in explanations):
            explanations += inexact(problem, steps, nearest[0])
        if far >= SURE and not pairs and not any(one.sure for one in explanations):
            explanations += dropped(problem, steps)
        if any(one.sure for one in explanations):
            break
    return explanations, tried, search.skipped


def small_errors(problem: Problem, steps: Mapping[str, Array]) -> bool:
    """Whether rounding may explain the errors: no array is off by more than some tenth."""
    there = {name: counted(problem, name, X) for name, X in steps.items()}
    return all(apart(X, problem.expected(name)[0]) <= 0.2 * largest(X) for name, X in there.items())


def counted(problem: Problem, name: str, X: Array) -> Array:
    """An array in float64, 0 where it does not matter."""
    return np.where(problem.matters(name), X, 0).astype(np.float64)


def inexact(problem: Problem, steps: Mapping[str, Array], state: State) -> list[Explanation]:
    """Explanations by rounding, beside some mistakes."""
    oracle, base = (Bench(problem, dtype, slice(None)) for dtype in ("float64", problem.config.dtype))
    plan = base.planned(state)
    if plan is None or (exact := oracle.all_of(state, steps)) is None:
        return []
    told = precision.roundings(problem, steps, exact, plan, lambda plan: all_steps(plan, steps))
    return merged([of_errors(problem, steps, exact, state, one) for one in told])


def dropped(problem: Problem, steps: Mapping[str, Array]) -> list[Explanation]:
    """The explanation by dropout, if it is one."""
    exact = Bench(problem, "float64", slice(None)).all_of((), (*steps, "weights", "split_v"))
    told = exact and precision.dropout(problem, steps, exact)
    return [of_errors(problem, steps, exact, (), told)] if exact and told else []


def of_errors(
    problem: Problem, steps: Mapping[str, Array], exact: Mapping[str, Array], state: State, told: precision.Told
) -> Explanation:
    """What errors tell, as an explanation, beside some mistakes."""
    before = [(form.mistake.name, form.how, form.mistake.what) for form in state]
    names, how, what = zip(*before, (told.name, told.how, told.what), strict=True)
    ratios = [
        fraction(error(*(counted(problem, name, Y) for Y in (X, exact[name]))), problem.expected(name)[1])
        for name, X in steps.items()
    ]
    return Explanation(names, how, what, max(ratios), told.left, told.sure)


def all_steps(plan: Plan, names: Iterable[str]) -> dict[str, Array]:
    """These steps of a plan."""
    steps: Steps = {}
    handed: dict[str, Array] = {}
    for part in PARTS:
        some, handed[part] = compute(part, plan, handed)
        steps |= some
    return {name: steps[name] for name in names}


def merged(explanations: Sequence[Explanation]) -> list[Explanation]:
    """Explanations of the same mistakes as one, with all forms; the first, which is the best, tells the rest."""
    together: dict[tuple[str, ...], list[Explanation]] = {}
    for one in explanations:
        together.setdefault((*one.mistakes, "sure" if one.sure else ""), []).append(one)
    found = []
    for same in together.values():
        forms = zip(*(one.how for one in same), strict=True)
        how = tuple(" or ".join(few(list(dict.fromkeys(each)))) for each in forms)
        found.append(dataclasses.replace(same[0], how=how))
    return found


def few(forms: list[str]) -> list[str]:
    """The first of several forms."""
    return forms if len(forms) <= 4 else [*forms[:3], "..."]


def made(state: State, verdict: Verdict, far: float) -> Explanation:
    """An explanation; far: the ratio of the right answer."""
    fields = ((form.mistake.name, form.how, form.mistake.what) for form in state)
    names, how, what = zip(*fields, strict=True)
    sure = verdict.same and (far >= SURE or (far > 0 and verdict.left <= LITTLE))
    return Explanation(names, how, what, verdict.ratio, verdict.left, sure)
