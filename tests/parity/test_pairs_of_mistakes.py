"""Two mistakes at once can be made wherever each of them can: a diagnosis tries them, and ended in an error."""

import itertools

import numpy as np
import planted
import pytest

from mha.parity.diagnosis.mistakes.catalogue import FORMS
from mha.parity.diagnosis.mistakes.with_mistakes import Bench
from mha.parity.diagnosis.pipeline.parts import all_steps
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.rule.problem import problem

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
    scores = all_steps(plan, ["capped"])["capped"]
    shares = np.where(plan.visible(), np.exp(scores), 0)  # no sink is on the axis
    changed = form("the softmax is over another axis", over).change(plan)
    changed = form("1 is added to the sum of the softmax").change(changed)
    with np.errstate(over="ignore"):
        weights = all_steps(changed, ["weights"])["weights"]
    assert np.allclose(weights, shares / (1 + shares.sum(axis, keepdims=True)), rtol=0, atol=1e-12)


def test_a_gate_in_the_place_of_queries_whose_bias_was_dropped_has_its_own():
    plan = make_plan(asked(RARE["output_gate"]), "float32")
    changed = form("W_q.bias is dropped").change(plan)
    changed = form("the output gate is cut from queries otherwise", "gate before q").change(changed)
    assert np.array_equal(changed.weights["W_q.bias"], plan.weights["W_g.bias"])
    assert "W_g.bias" not in changed.weights
