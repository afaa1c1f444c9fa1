"""Each form of each known mistake gives what the same mistake gives that is made by other means, and is named there.

The other means are in `twins`. Two mistakes at once can be made wherever each of them can.
"""

import itertools

import numpy as np
import planted
import pytest

from mha import parity
from mha.parity.diagnosis.mistakes.bench import Bench
from mha.parity.diagnosis.mistakes.catalogue import CATALOGUE, FORMS
from mha.parity.diagnosis.mistakes.of_precision import ROUNDINGS
from mha.parity.diagnosis.pipeline.parts import all_steps
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.rule.problem import problem

from . import twins, twins_of_two

EXACT = ROUNDINGS[-2:]  # those that an exact formula gives, but for a number that lies between two steps
UNSURE = {("dot products overflow float16", "of hidden keys, too"), ("NaN in padding comes through", "")}  # NaN alone
OF_THE_CALL = {("the mask is inverted", ""), ("the padding mask is on the axis of queries", "the mask is transposed")}
SILENT = {("the rotation is off by one", "both, from position 1 on")}  # it changes no distance


def given(case, *changes):
    """What the right layer gives in a case, and what one with these changes gives."""
    layer, inputs, arguments = case.made("float64")
    plan = make_plan(problem(layer, *inputs, planted.DEFAULTS | arguments, None), "float64")
    with np.errstate(all="ignore"):
        for change in changes:
            plan = change(plan)
        return layer(*inputs, **arguments), all_steps(plan)[0]["output"]


def of_twin(case, twin):
    """What the twin gives in a case."""
    with np.errstate(all="ignore"):
        return twin(*case.made("float64"))


def alike(X, Y, far=1e-10):
    return np.allclose(X, Y, rtol=0, atol=far, equal_nan=True)


def test_every_form_has_a_twin():
    exact = {(mistake.name, how) for mistake in EXACT for how in mistake.forms}
    assert twins.TWINS.keys() == {(form.mistake.name, form.how) for form in FORMS} | exact


@pytest.mark.parametrize("mistake", [*CATALOGUE, *EXACT], ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_every_form_gives_what_its_twin_gives(mistake):
    for how, change in mistake.forms.items():
        case, twin = twins.TWINS[mistake.name, how]
        right, found = given(case, change)
        assert alike(found, of_twin(case, twin)), how
        assert alike(found, right, 1e-7) == ((mistake.name, how) in SILENT), how


@pytest.mark.parametrize(
    "part", [3, *(pytest.param(part, marks=pytest.mark.long("numpy")) for part in (0, 1, 2, 4, 5, 6, 7))]
)
def test_every_mistake_is_named_from_the_output_alone(part):
    """Of each up to three forms; a name of the same numbers counts, too, and the note where another call gives them."""
    for mistake in CATALOGUE[part::8]:
        for how in [*mistake.forms][:3]:
            case, twin = twins.TWINS[mistake.name, how]
            layer, inputs, arguments = case.made("float64")
            diagnosis = parity.diagnose(layer, of_twin(case, twin), *inputs, **arguments, empty_rows=True)
            if (pair := (mistake.name, how)) in SILENT:
                assert not diagnosis.explanations
                continue
            sure = pair not in UNSURE
            named = [name for one in diagnosis.explanations if one.sure == sure for name in (*one.mistakes, *one.also)]
            told = f"in the port: {mistake.name}" in diagnosis.note if pair in OF_THE_CALL else mistake.name in named
            assert told, (how, str(diagnosis))
            assert diagnosis.known == sure, (how, str(diagnosis))
            assert {len(one.mistakes) for one in diagnosis.explanations} <= {1}, pair


@pytest.mark.parametrize("names", twins_of_two.PAIRS, ids=" and ".join)
def test_a_change_begins_with_what_another_has_made(names):
    case, twin = twins_of_two.PAIRS[names]
    first, second = (next(iter(one.forms.values())) for name in names for one in CATALOGUE if one.name == name)
    found = given(case, first, second)[1]
    assert alike(found, of_twin(case, twin))
    assert not any(alike(found, given(case, *some)[1], 1e-7) for some in ([first], [second], []))


# Two at once: a diagnosis tries them

RARE = {option: call for call in planted.CALLS for option in ("sinks", "output_gate") if option in call.options}


def asked(call, dtype="float32"):
    layer, inputs, arguments = call.made(dtype)
    return problem(layer, *inputs, planted.DEFAULTS | arguments, None)


def form(name, how=""):
    return next(one for one in FORMS if (one.mistake.name, one.how) == (name, how))


@pytest.mark.parametrize("option", RARE)
def test_every_two_mistakes_can_be_made_at_once(option):
    bench = Bench(asked(RARE[option]), "float32", [0])
    right = bench.steps((), "output").shape
    with np.errstate(all="ignore"):
        for one, other in itertools.combinations(bench.possible(FORMS), 2):
            if one.place != other.place and (X := bench.steps((one, other), "output")) is not None:
                assert X.shape == right, (one.mistake.name, other.mistake.name)


@pytest.mark.parametrize(("axis", "over"), [(2, "over queries"), (1, "over heads")])
def test_one_more_beside_sinks_in_a_softmax_over_another_axis(axis, over):
    plan = make_plan(asked(RARE["sinks"], "float64"), "float64")
    scores = all_steps(plan)[0]["capped"]
    shares = np.where(plan.visible(), np.exp(scores), 0)  # no sink is on the axis
    changed = form("the softmax is over another axis", over).change(plan)
    changed = form("1 is added to the sum of the softmax").change(changed)
    with np.errstate(over="ignore"):
        weights = all_steps(changed)[0]["weights"]
    assert np.allclose(weights, shares / (1 + shares.sum(axis, keepdims=True)), rtol=0, atol=1e-12)


def test_a_gate_in_the_place_of_queries_whose_bias_was_dropped_has_its_own():
    plan = make_plan(asked(RARE["output_gate"]), "float32")
    changed = form("W_q.bias is dropped").change(plan)
    changed = form("the output gate is cut from queries otherwise", "gate before q").change(changed)
    assert np.array_equal(changed.weights["W_q.bias"], plan.weights["W_g.bias"])
    assert "W_g.bias" not in changed.weights
