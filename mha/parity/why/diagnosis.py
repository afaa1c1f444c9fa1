"""The diagnosis of another implementation: the known mistakes, alone or together, that give its numbers."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from mha.parity.mistakes.bench import Bench, State
from mha.parity.mistakes.catalogue import CATALOGUE
from mha.parity.mistakes.mistake import Mistake
from mha.parity.mistakes.of_precision import ROUNDINGS
from mha.parity.mistakes.of_weights import of_another_layer
from mha.parity.pipeline.parts import PART_OF, all_steps
from mha.parity.pipeline.pieces import Array
from mha.parity.same.problem import Problem
from mha.parity.same.rules import error, fraction, largest
from mha.parity.why import precision
from mha.parity.why.explanations import Diagnosis, Explanation
from mha.parity.why.report import Row, said
from mha.parity.why.search import CONFIRMED, Search
from mha.parity.why.verdicts import Verdict, apart, confirmed, errors
from mha.tables import few

# To be sure, the right answer is so many bounds away, or so little of the error is left.
SURE, LITTLE = 4.0, 0.1
SAMPLES, ROUNDS = 3, 6  # of a search, at most


def explained(
    problem: Problem, theirs: Mapping[str, Array], rows: tuple[Row, ...], others: Mapping[str, Mapping[str, Array]]
) -> Diagnosis:
    """Explain arrays that were compared: theirs by name, in the compared shapes; rows: those of the report."""
    first = next((row for row in rows if not row.passed), None)
    if first is None:
        return Diagnosis((), "nothing to explain: all that was given is the same", 0)
    steps = {name: X for name, X in theirs.items() if name in PART_OF and X.shape == problem.sizes.shape(name)}
    wrong = [row for row in rows if not row.passed and row.name in steps]
    if not wrong:
        reason = "of gradients no known mistake is tried" if first.place is not None else "nothing can be tried"
        return Diagnosis((), f"why: unknown, {reason}; first to differ: {said(first)}", 0)
    far, mistakes = max(row.ratio for row in wrong), (*CATALOGUE, *of_another_layer(others))
    with np.errstate(all="ignore"):
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
    """Find explanations of the arrays: first what is quickly tried, last what takes longest.

    far: the ratio of the right answer. If theirs has no finite number, nothing is sure. Returns also the number of
    tries, and whether pairs would have taken too long.
    """
    some = any(np.isfinite(X[np.broadcast_to(problem.matters(name), X.shape)]).any() for name, X in steps.items())
    far = far if some else 0.0
    explanations: list[Explanation] = []
    tried = 0
    if far >= SURE and small_errors(problem, steps):
        explanations = inexact(problem, steps, ())
        if any(one.sure for one in explanations):
            return explanations, len(ROUNDINGS), False
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


def searched(
    problem: Problem, steps: Mapping[str, Array], mistakes: Sequence[Mistake], pairs: bool
) -> tuple[list[tuple[State, Verdict]], Search]:
    """Search for mistakes, and confirm what comes near in all samples; pairs: whether to try two mistakes at a time.

    If nothing near is the same, search again with lower limits, or with one sample more. Returns the search, too.
    """
    order = worst_first(problem, steps)
    samples = order[:1]
    found: list[tuple[State, Verdict]] = []
    search = Search(problem, steps, mistakes, samples)
    for _ in range(ROUNDS):
        states = search.run(pairs)
        if not states and search.reached == len(steps):
            break
        if search.reached < len(steps):  # perhaps a mistake alone changes nothing in these samples
            wider = Search(problem, steps, mistakes, order[: len(samples) + 1], search.tried)
            if len(samples) == SAMPLES or len(wider.forms) <= len(search.forms):
                break
            search, samples = wider, wider.samples
            continue
        judged = [(state, confirmed(problem, steps, state)) for state in states[:CONFIRMED]]
        found += judged
        if same := [state for state, verdict in judged if verdict.same]:
            known = {state for state, _ in found}
            alike = dict.fromkeys(other for state in same for other in search.alike(state) if other not in known)
            return [*found, *((state, confirmed(problem, steps, state)) for state in alike)], search
        if not search.tightened(states[0]):
            seen = [one.sample for _, one in sorted(judged, key=lambda one: one[1].left) if one.sample not in samples]
            if not seen or len(samples) == SAMPLES:
                break
            order = [*samples, seen[0], *(sample for sample in order if sample not in (*samples, seen[0]))]
            samples = order[: len(samples) + 1]
            search = Search(problem, steps, mistakes, samples, search.tried)
    return found, search


def worst_first(problem: Problem, steps: Mapping[str, Array]) -> list[int]:
    """Order the samples by their error, the largest first, in the last array that exceeds its bound."""
    order = list(range(len(problem.queries)))
    for name, X in steps.items():
        expected, there = problem.expected(name), counted(problem, name, X)
        if expected.ratio(there) > 1:
            order = np.argsort(-errors(there, expected.X), kind="stable").tolist()
    return order


def small_errors(problem: Problem, steps: Mapping[str, Array]) -> bool:
    """Whether rounding may explain the errors: none is more than a fifth of the largest number."""
    there = {name: counted(problem, name, X) for name, X in steps.items()}
    return all(apart(X, problem.expected(name).X) <= 0.2 * largest(X) for name, X in there.items())


def counted(problem: Problem, name: str, X: Array) -> Array:
    """Return an array in float64, 0 where it does not matter."""
    return np.where(problem.matters(name), X, 0).astype(np.float64)


def inexact(problem: Problem, steps: Mapping[str, Array], state: State) -> list[Explanation]:
    """Find explanations by rounding, together with these mistakes."""
    oracle, base = (Bench(problem, dtype, slice(None)) for dtype in ("float64", problem.config.dtype))
    plan = base.planned(state)
    if plan is None or (exact := oracle.all_of(state, steps)) is None:
        return []
    found = precision.roundings(problem, steps, exact, plan, lambda plan: all_steps(plan, steps))
    return merged([of_errors(problem, steps, exact, state, one) for one in found])


def dropped(problem: Problem, steps: Mapping[str, Array]) -> list[Explanation]:
    """Return the explanation by dropout, if it is one."""
    exact = Bench(problem, "float64", slice(None)).all_of((), (*steps, "weights", "split_v"))
    found = exact and precision.dropout(problem, steps, exact)
    return [of_errors(problem, steps, exact, (), found)] if exact and found else []


def of_errors(
    problem: Problem, steps: Mapping[str, Array], exact: Mapping[str, Array], state: State, found: precision.Imprecision
) -> Explanation:
    """Make an explanation of an imprecision, together with these mistakes."""
    before = [(form.mistake.name, form.how, form.mistake.what) for form in state]
    names, how, what = zip(*before, (found.name, found.how, found.what), strict=True)
    ratios = [
        fraction(error(*(counted(problem, name, Y) for Y in (X, exact[name]))), problem.expected(name).limit)
        for name, X in steps.items()
    ]
    return Explanation(names, how, what, max(ratios), found.left, found.sure)


def merged(explanations: Sequence[Explanation]) -> list[Explanation]:
    """Join explanations of the same mistakes into one, with all forms; the rest is that of the first, the best."""
    together: dict[tuple[str, ...], list[Explanation]] = {}
    for one in explanations:
        together.setdefault((*one.mistakes, "sure" if one.sure else ""), []).append(one)
    found = []
    for same in together.values():
        forms = zip(*(one.how for one in same), strict=True)
        how = tuple(" or ".join(few(list(dict.fromkeys(each)))) for each in forms)
        found.append(dataclasses.replace(same[0], how=how))
    return found


def made(state: State, verdict: Verdict, far: float) -> Explanation:
    """Make an explanation; far: the ratio of the right answer."""
    fields = ((form.mistake.name, form.how, form.mistake.what) for form in state)
    names, how, what = zip(*fields, strict=True)
    sure = verdict.same and (far >= SURE or (far > 0 and verdict.left <= LITTLE))
    return Explanation(names, how, what, verdict.ratio, verdict.left, sure)
