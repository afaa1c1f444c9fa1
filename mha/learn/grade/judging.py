"""Judge the cases of a submission by float64 NumPy, and find the mistakes that explain all that differ."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from mha.core.call import call_of
from mha.learn.grade import mistakes
from mha.learn.grade.cases import Case
from mha.learn.grade.process import Answer
from mha.parity.diagnosis.compare.comparison import compare_array, compare_arrays
from mha.parity.diagnosis.compare.diagnosis import attempts, explanation_of, of_gradients, rank
from mha.parity.diagnosis.compare.report import Row, describe_row
from mha.parity.diagnosis.mistakes.mistake import Mistake, forms_of
from mha.parity.diagnosis.mistakes.of_gradients import DROPOUT
from mha.parity.diagnosis.pipeline.chance import with_rounding
from mha.parity.diagnosis.pipeline.parts import PART_OF
from mha.parity.diagnosis.search.explanations import Explanation
from mha.parity.diagnosis.search.sample import Focus
from mha.parity.diagnosis.search.time_budget import Effort
from mha.parity.diagnosis.search.verdicts import Judge
from mha.parity.diagnosis.wrong_setup.beyond_attention import more_than_attention
from mha.parity.rule.decoding import as_decoding
from mha.parity.rule.layouts import GRADIENT
from mha.parity.rule.problem import Problem, problem

SEARCHED = 3  # of the cases that differ, so many are searched at most
EMPTY = ("rows without keys are uniform", "rows without keys are NaN")
INPUTS = ("queries", "keys", "values")
OF_EACH = ("mistakes", "how", "what", "fix")  # what an explanation has for each of its mistakes
FORMS = 64  # of mistakes together, so many are tried at most
Named = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class CaseVerdict:
    """The verdict on one case: whether it is right, what differs first, in words, and the data to find out why."""

    case: Case
    right: bool
    differs: str = ""
    problem: Problem | None = None
    steps: Named = dataclasses.field(default_factory=dict)
    rows: tuple[Row, ...] = ()


def biases(case: Case, answer: Answer) -> list[str]:
    """The biases that a submission's layer should have."""
    if answer.facts.get("takes_bias") and case.options.get("bias"):
        return [name for name in case.weights if name.endswith(".bias")]
    return list(answer.facts.get("biased", ()))


def judge(case: Case, answer: Answer, empty_rows: bool) -> CaseVerdict:
    """Judge arrays of a case by its problem."""
    asked = with_rounding(case.problem(biases(case, answer), empty_rows))
    wanted = [name for name in answer.arrays if name.startswith(GRADIENT) or _fits(asked, name, answer.arrays[name])]
    if case.task != "gradients":
        wanted.sort(key=["weights", "output"].index)
    arrays = {name: answer.arrays[name] for name in wanted}
    for name in (f"{GRADIENT}{name}" for name in answer.facts.get("none", ())):
        arrays[name] = np.zeros(asked.expected(name).X.shape, np.float32)
    by_name, steps = compare_arrays(asked, arrays, "(B, H, T, d)")
    rows = tuple(by_name.values())
    wrong = [row for row in rows if not row.passed]
    return CaseVerdict(case, not wrong, describe_row(wrong[0]) if wrong else "", asked, steps, rows)


def judge_portions(case: Case, answer: Answer, empty_rows: bool) -> CaseVerdict:
    """Judge level 9, a text in portions, each with the right cache before it; the first that differs counts."""
    attention = case.attention(biases(case, answer))
    cache, start = attention.cache(*case.inputs["queries"].shape[:2]), 0
    for at, length in enumerate(case.options["portions"]):
        part = slice(start, start + length)
        queries, keys, values = (np.ascontiguousarray(case.inputs[name][:, part]) for name in INPUTS)
        given = call_of("grade", None, {"causal": True}, cache=cache)._asdict()
        asked = with_rounding(as_decoding(problem(attention, queries, keys, values, given)))
        row, X = compare_array(asked, "output", answer.arrays[f"output.{at}"], None)
        if not row.passed:
            steps = {} if X is None else {"output": X}
            return CaseVerdict(case, False, f"portion {at + 1}: {describe_row(row)}", asked, steps, (row,))
        cache, start = attention(queries, keys, values, cache=cache, causal=True)[-1], start + length
    return CaseVerdict(case, True)


def _fits(asked: Problem, name: str, X: np.ndarray) -> bool:
    """Whether an array is compared: weights only in a known shape."""
    if name != "weights":
        return name == "output" or not hasattr(asked, name)
    B, H, Q, K = asked.sizes.B, asked.config.num_heads, asked.sizes.Q, asked.sizes.K
    return X.shape in ((B, H, Q, K), (B * H, Q, K))


def why(wrong: Sequence[CaseVerdict], level: int) -> list[Explanation]:
    """Find the mistakes that together explain all of these cases, the best first.

    A mistake need not show in each case. Explanations of earlier cases are tried first; if none fits, a search adds
    its own mistakes to them.
    """
    if all(one.case.options.get("dropout") for one in wrong):  # with the same numbers but no dropout, it is right
        return [LEFT_ON]
    found: list[Explanation] = []
    known, searched = mistakes.of_level(level), 0
    for one in (one for one in wrong if one.problem is not None and one.steps):
        lengths = one.case.call.get("valid_lens")
        if found and lengths is not None and not lengths.all():  # rows without keys would be one more mistake
            continue
        if found and one.case.options.get("dropout"):
            continue
        if kept := [each for each in found if fits(one, each, known)]:
            found = kept
        elif searched < SEARCHED:
            searched += 1
            new = [each for each in explain_case(one, known) if each.sure]
            every = [join(each, more) for each in found or [NOTHING] for more in new]
            least = min((len(each.mistakes) for each in every), default=0)
            found = [each for each in every if len(each.mistakes) == least] or found
    return sorted(found, key=rank)


def certain(mistakes: dict[str, str]) -> Explanation:
    """Make an explanation of these mistakes, each with its effect in words, that leaves nothing over."""
    unsaid = ("",) * len(mistakes)
    return Explanation(tuple(mistakes), unsaid, tuple(mistakes.values()), 0.0, 0.0, True, fix=unsaid)


LEFT_ON = certain({"dropout left on": "attention weights are dropped outside of training"})
NOTHING = certain({})


def join(one: Explanation, other: Explanation) -> Explanation:
    """Join the mistakes of two explanations into one."""
    more = [at for at, name in enumerate(other.mistakes) if name not in one.mistakes]
    fields = {name: (*getattr(one, name), *(getattr(other, name)[at] for at in more)) for name in OF_EACH}
    return Explanation(**fields, ratio=max(one.ratio, other.ratio), left=max(one.left, other.left), sure=True)


@np.errstate(all="ignore")
def fits(one: CaseVerdict, explanation: Explanation, known: tuple[Mistake, ...]) -> bool:
    """Whether these mistakes, in any of their forms, explain a case."""
    if any(row.name.startswith(GRADIENT) and not row.passed for row in one.rows):
        return any(explanation.mistakes == each.mistakes for each in explain_case(one, known))
    assert one.problem is not None
    steps = steps_of(one)
    chosen = [[form for form in forms_of(known) if form.mistake.name == name] for name in explanation.mistakes]
    judge = Judge(one.problem, steps, Focus())
    # With other keys hidden, rows may be left without keys, and have what they have then.
    empty = [(), *((form,) for form in forms_of(known) if form.mistake.name in EMPTY)]
    for state in itertools.islice(itertools.product(*chosen), FORMS):
        possible = tuple(form for form in state if judge.all[0].possible([form]))
        for more in empty if possible else ():
            if judge.verdict_on(tuple(sorted((*possible, *more), key=lambda form: form.place))).same:
                return True
    return False


def steps_of(one: CaseVerdict) -> Named:
    """The steps of a case that the search for mistakes can use."""
    assert one.problem is not None
    sizes = one.problem.sizes
    return {name: X for name, X in one.steps.items() if name in PART_OF and X.shape == sizes.shape(name)}


@np.errstate(all="ignore")
def explain_case(one: CaseVerdict, known: tuple[Mistake, ...]) -> list[Explanation]:
    """Explain one case that differs."""
    assert one.problem is not None
    first = next(row for row in one.rows if not row.passed)
    if first.name.startswith(GRADIENT):
        gradients = {name: X for name, X in one.steps.items() if name.startswith(GRADIENT)}
        found = of_gradients(one.problem, gradients, first, True, Effort()).explanations
        return [each for each in found if each.mistakes != (DROPOUT.name,)] or list(found)  # nothing is dropped here
    steps = steps_of(one)
    if not steps:
        return []
    far = max(row.ratio for row in one.rows if not row.passed)
    judge = Judge(one.problem, steps, Focus())
    over_samples = [explanation_of((form,), judge.verdict_on((form,)), far) for form in mistakes.OVER_SAMPLES]
    if any(each.sure for each in over_samples):
        return over_samples
    if more := more_than_attention(one.problem, steps):
        return [certain({"there is more than attention": f"{more}; leave that out"})]
    return attempts(one.problem, steps, known, far, Effort())[0]
