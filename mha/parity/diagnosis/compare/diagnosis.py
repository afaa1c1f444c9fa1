"""The diagnosis of another implementation: the known mistakes, alone or together, that give its numbers."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from mha.parity.diagnosis.compare.report import Row, describe_row
from mha.parity.diagnosis.mistakes.catalogue import catalogue_of
from mha.parity.diagnosis.mistakes.mistake import Mistake, State, forms_of
from mha.parity.diagnosis.mistakes.of_precision import ROUNDINGS
from mha.parity.diagnosis.mistakes.of_weights import of_another_layer
from mha.parity.diagnosis.pipeline.parts import PART_OF
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.pipeline.plan import Plan, equal_plans, make_plan, same_call
from mha.parity.diagnosis.search import numbers, precision
from mha.parity.diagnosis.search.explanations import Diagnosis, Explanation, explain, merge_alike
from mha.parity.diagnosis.search.gradients import Gradients
from mha.parity.diagnosis.search.search import Searches
from mha.parity.diagnosis.search.time_budget import Effort
from mha.parity.diagnosis.search.verdicts import LITTLE, SURE, MistakeVerdict, apart
from mha.parity.diagnosis.wrong_setup import calls
from mha.parity.diagnosis.wrong_setup.beyond_attention import more_than_attention
from mha.parity.diagnosis.wrong_setup.equivalent_steps import NONE, Rewritten
from mha.parity.rule.kernel import KernelProblem
from mha.parity.rule.layouts import GRADIENT
from mha.parity.rule.problem import Problem
from mha.parity.rule.rules import largest


def find_reasons(
    problem: Problem,
    theirs: Mapping[str, Array],
    rows: tuple[Row, ...],
    others: Mapping[str, Mapping[str, Array]],
    call_is_sure: bool = False,
    ways: Rewritten = NONE,
) -> Diagnosis:
    """Explain the difference of compared arrays by known mistakes, by another call, or by more than attention.

    theirs: arrays by name, in the compared shapes; rows: those of the report; others: the weights of other layers, by
    name; call_is_sure: whether theirs was called as the problem says, so that no other call can be the reason; ways:
    the steps that are written another way; where a step may be no more than that, nothing is sure.
    """
    first, effort = next((row for row in rows if not row.passed), None), Effort()
    if first is None:
        return Diagnosis((), "nothing to explain: all that was given is the same", 0)
    steps = {name: X for name, X in theirs.items() if name in PART_OF and X.shape == problem.sizes.shape(name)}
    wrong = [row for row in rows if not row.passed and row.name in steps]
    if not wrong:
        gradients = {name: X for name, X in theirs.items() if name.startswith(GRADIENT)}
        if any(row.name in gradients and not row.passed for row in rows):
            return of_gradients(problem, gradients, first, bool(steps), effort)
        return Diagnosis((), f"why: unknown, nothing can be tried; first to differ: {describe_row(first)}", 0)
    if all(row.name in ways.strange for row in wrong):
        name, later = wrong[0].name, ways.strange[wrong[0].name]
        note = f"why: not known: {later}, which comes of {name}, is right; perhaps another array was given as {name}"
        return Diagnosis((), note, 0)
    fits = len(theirs) == len(rows)
    unsure = fits and not call_is_sure  # another call may be the reason
    if fits and (more := more_than_attention(problem, theirs)):
        note = f"why: it is more than attention: {more}; give the output before that"
        return Diagnosis((), note, 0, more=more)
    tokens = calls.tokens_alone(problem, theirs) if unsure else None
    if unsure and tokens is None and (other := calls.likely_calls(problem, theirs)):
        return Diagnosis((), f"why: {calls.describe_call(problem, other, theirs)}", 0, other.arguments)
    far, mistakes = max(row.ratio for row in wrong), (*catalogue_of(problem), *of_another_layer(others))
    with np.errstate(all="ignore"):
        exact, without = without_rounding(problem, steps, rows)
        explanations, tried, missed = attempts(exact, without, mistakes, far, effort, tokens is not None)
    explanations = of_one_formula(problem, sorted(explanations, key=rank), mistakes)
    if wrong[0].name in ways.open:
        perhaps = tuple(dataclasses.replace(one, sure=False) for one in explanations)
        each = "; ".join(f"{name} is ours {way.how}" for name, way in reversed([*ways.open.items()]))
        note = f"why: not known: {each}. It is no mistake if later steps take it back: give scores or the output, too"
        return Diagnosis(perhaps, note, tried)
    sure = [one for one in explanations if one.sure]
    of_layer = problem.sizes.slots is None and not isinstance(problem, KernelProblem)
    swapped = "output" in steps and far >= SURE and not sure and of_layer
    if swapped and (expected := calls.over_samples(problem, steps["output"])):
        there, right = steps["output"], problem.expected("output")
        left = apart(there, expected.X) / apart(there, right.X)
        ratio, fix = expected.ratio(there), (calls.SWAPPED_FIX,)
        sure = [Explanation((calls.SWAPPED,), ("",), (calls.SWAPPED_EFFECT,), ratio, left, True, fix=fix)]
    reason = f"none of {tried} tries among known mistakes gives these numbers{'; ' * bool(missed)}{missed}"
    note = "" if sure else f"why: unknown, {reason}; first to differ: {describe_row(wrong[0])}"
    if tokens is not None:
        sure = [one for one in sure if len(one.mistakes) == 1]  # two at once are less likely
        note = "only queries in padding differ, at places of keys that nobody sees: say with rows= which count"
        return Diagnosis(tuple(sure), f"{'or' if sure else 'why:'} {note}", tried, {"rows": tokens})
    if unsure and (other := calls.unlikely_calls(problem, theirs, bool(sure))):
        note = f"{'or' if sure else 'why:'} {calls.describe_call(problem, other, theirs)}"
        return Diagnosis(tuple(sure), note, tried, other.arguments)
    return Diagnosis(tuple(sure or explanations), note, tried)


def without_rounding(
    problem: Problem, steps: Mapping[str, Array], rows: Sequence[Row]
) -> tuple[Problem, Mapping[str, Array]]:
    """Take the rounding of the nearest style off an output in half precision, so that mistakes far below it show.

    rows: those of the report. Returns the problem, in which the output without it has the same ratio, and the arrays.
    An output that is clearly off stays as it is.
    """
    if (rounding := next((row.rounding for row in rows if row.rounding), None)) is None:
        return problem, steps
    expected, there = problem.expected("output"), problem.blank_unused("output", steps["output"])
    exact, half = copy.copy(problem), expected.half.without(rounding)
    vars(exact)["expectations"] = problem.expectations | {"output": expected._replace(half=half)}
    return exact, {**steps, "output": there - half.taken}


def rank(one: Explanation) -> tuple[int, float]:
    """Return the key that sorts explanations: fewer mistakes come first, then smaller ratios, to a tenth."""
    return len(one.mistakes), round(one.ratio, 1)


def of_gradients(problem: Problem, theirs: Mapping[str, Array], first: Row, output: bool, effort: Effort) -> Diagnosis:
    """Explain gradients by known mistakes; output: whether the output or a step was given, too, and is right."""
    with np.errstate(all="ignore"):
        search = Gradients(problem, theirs, effort)
        far = max(problem.expected(name).ratio(theirs[name]) for name in search.wrong)
        explanations = merge_alike([explanation_of(state, verdict, far) for state, verdict in search.run()])
    explanations.sort(key=rank)
    sure = [one for one in explanations if one.sure]
    reason = f"none of {search.tried} tries among known mistakes in gradients gives these numbers"
    loss = (
        "" if problem.cotangent is not None else "they are compared with those of the output's sum, without cotangent="
    )
    more = filter(None, [search.untried_note, loss, "" if output else "give the output, too, which may differ"])
    note = "" if sure else f"why: unknown, {'; '.join([reason, *more])}; first to differ: {describe_row(first)}"
    return Diagnosis(tuple(sure or explanations), note, search.tried)


def attempts(
    problem: Problem,
    steps: Mapping[str, Array],
    mistakes: Sequence[Mistake],
    far: float,
    effort: Effort,
    in_padding: bool = False,
) -> tuple[list[Explanation], int, str]:
    """Find explanations of the arrays: first what is quickly tried, last what takes longest.

    steps: their arrays by name; far: the ratio of the right answer. If theirs has no finite number, nothing is sure.
    in_padding: whether queries in padding alone differ: that they see nothing explains it without a mistake. Returns
    the explanations, the number of tries, and a note about mistakes that were not tried.
    """
    some = any(np.isfinite(X[np.broadcast_to(problem.matters(name), X.shape)]).any() for name, X in steps.items())
    far = far if some else 0.0
    explanations: list[Explanation] = []
    searches = Searches(problem, steps, forms_of(mistakes), effort)
    if far >= SURE and small_errors(problem, steps):
        explanations = precision.roundings(problem, steps, (), searches.first)
        if any(one.sure for one in explanations):
            return explanations, len(ROUNDINGS), ""
    for pairs in (False, True):
        found = searches.run(pairs)
        fit = [(state, verdict) for state, verdict in found if min(verdict.ratio, verdict.rest) <= 1]
        both = [(state, explanation_of(state, verdict, far)) for state, verdict in fit]
        usual = [one for state, one in both if not any(form.alone for form in state)]
        exact = usual if in_padding or any(one.sure for one in usual) else [one for _, one in both]
        explanations = merge_alike([*exact, *explanations])
        nearest = min((one for one in found if one[1].left <= 0.1), key=lambda one: one[1].left, default=None)
        if far >= SURE and nearest and not any(one.sure for one in explanations):
            explanations += precision.roundings(problem, steps, nearest[0], searches.first)
        plain = problem.sizes.slots is None  # in slots, no values are known by their weights
        if plain and far >= SURE and not pairs and not any(one.sure for one in explanations):
            explanations += precision.dropout(problem, steps)
        if not pairs and not any(one.sure for one in explanations):
            explanations += of_numbers(problem, steps, searches, far)
        if any(one.sure for one in explanations):
            break
    return explanations, searches.tried, searches.untried_note


def of_numbers(problem: Problem, steps: Mapping[str, Array], searches: Searches, far: float) -> list[Explanation]:
    """Explain the arrays by a number that is fitted, if that is sure; far: as for `attempts`."""
    for number in numbers.NUMBERS:
        form = numbers.fit_number(number, problem, steps, searches.first, searches.effort)
        if form is not None and (one := explanation_of((form,), searches.verdict_on((form,)), far)).sure:
            return [one]
    return []


def small_errors(problem: Problem, steps: Mapping[str, Array]) -> bool:
    """Return whether rounding may explain the errors: none is more than a fifth of the largest number."""
    there = {name: problem.blank_unused(name, X) for name, X in steps.items()}
    return all(apart(X, problem.expected(name).X) <= 0.2 * largest(X) for name, X in there.items())


def of_one_formula(
    problem: Problem, explanations: Sequence[Explanation], mistakes: Sequence[Mistake]
) -> list[Explanation]:
    """Join mistakes that are one formula in every call of the layer, such as 1 / d and a scale that is applied twice.

    So are two that leave nothing hidden, such as an ignored mask where nothing else hides a key. The first name stays,
    and the others are given beside it.
    """
    right, by_name = make_plan(problem, "float64"), {mistake.name: mistake for mistake in mistakes}
    found: list[tuple[Explanation, list[Plan]]] = []
    for one in explanations:
        alone = by_name.get(one.mistakes[0]) if one.sure and len(one.mistakes) == 1 else None
        plans = [plan for change in alone.forms.values() if (plan := change(right))] if alone else []
        plans = [plan for plan in plans if same_call(plan, right) or not plan.hiding]
        at = next(
            (at for at, (_, known) in enumerate(found) if any(equal_plans(*two) for two in product(plans, known))), None
        )
        if at is None:
            found.append((one, plans))
            continue
        first, known = found[at]
        found[at] = dataclasses.replace(first, also=(*first.also, *one.mistakes)), known
    return [one for one, _ in found]


def explanation_of(state: State, verdict: MistakeVerdict, far: float) -> Explanation:
    """Make the explanation of a verdict on mistakes; far: the ratio of the right answer."""
    sure = verdict.same and (far >= SURE or (far > 0 and verdict.left <= LITTLE))
    sure = sure or (far > 1 and verdict.rest <= min(1, far / 3))
    return explain(state, verdict.ratio, verdict.left, sure)
