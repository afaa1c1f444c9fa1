"""`parity.compare`: steps that are written another way, and that later steps take back, are no mistakes."""

import numpy as np
import pytest

import mha
from mha import parity

B, T, D, H, G, WIDTH = 3, 11, 30, 6, 3, 5
RANDOM = np.random.default_rng(5)
ORDER = np.array([2, 0, 4, 1, 3])
BASIS = np.linalg.qr(RANDOM.normal(size=(WIDTH, WIDTH)))[0]
X = RANDOM.normal(size=(B, T, D))
QUERIES, KEYS = ("W_q", "split_q", "rotate_q"), ("W_k", "split_k", "rotate_k")


def traced(dtype="float32", **options):
    """A layer, its inputs and the steps of a causal call."""
    options = {"num_key_value_heads": G, "rotary": mha.Rotary(4), "bias": True} | options
    layer = mha.MultiHeadAttention(D, H, **options, dtype=dtype, seed=3, backend="numpy")
    layer.weights = {name: array if array.ndim == 2 else (array + 0.7).astype(dtype)
                     for name, array in layer.weights.items()}  # fmt: skip
    inputs = [X.astype(dtype)] * 3
    return layer, inputs, layer.trace(*inputs, causal=True)


def by_head(step, change):
    """Change the features of the heads of a step (any, T, H*d) or (B*H, T, d): (..., T, any, d)."""
    return change(step.reshape(*step.shape[:2], -1, WIDTH)).reshape(step.shape).astype(step.dtype)


def of_steps(steps, change, *names):
    """All steps, these of them changed."""
    return {name: by_head(step, change) if name in names else step for name, step in steps.items()}


def order(array):
    """Put the features of each head in another order."""
    return array[..., ORDER]


def heads(step, count):
    """Put the heads of a step (B*heads, ...) in another order, in which groups stay together."""
    moved = np.roll(step.reshape(B, count, *step.shape[1:]), count // G, 1)
    return moved.reshape(step.shape)


def all_heads(steps):
    """The steps of heads in another order; W_o has its rows in that order."""
    count = {name: G if name[-2:] in ("_k", "_v") else H for name in steps}
    moved = [name for name in steps if name[:2] != "W_" and name not in ("merged", "output")]
    return {name: heads(steps[name], count[name]) for name in moved} | {"output": steps["output"]}


def weighted(array):
    """Take the largest of each row from the scores."""
    return array - array.max(-1, keepdims=True)


def scaled(steps, name, factor):
    """Some steps, one of them multiplied."""
    return {name: (steps[name] * factor).astype(steps[name].dtype)}


TAKEN_BACK = {
    "components in another order, all steps": (
        lambda steps: of_steps(steps, order, *QUERIES, *KEYS), "ours with the components of a head in another order"),
    "components in another order, and the output": (
        lambda steps: {name: X for name, X in of_steps(steps, order, *QUERIES, *KEYS).items()
                       if name in ("rotate_q", "rotate_k", "output")},
        "ours with the components of a head in another order"),
    "the products of queries and keys alone": (
        lambda steps: {name: by_head(steps[name], order) for name in ("rotate_q", "rotate_k")},
        "ours with the components of a head in another order"),
    "a turned basis": (
        lambda steps: {name: by_head(steps[name], lambda X: X @ BASIS) for name in ("rotate_q", "rotate_k")},
        "ours in another basis"),
    "the scale in the queries": (
        lambda steps: scaled(steps, "rotate_q", 0.25) | {"scores": steps["scores"], "output": steps["output"]},
        "ours times 0.25"),
    "its root in both": (
        lambda steps: scaled(steps, "rotate_q", 0.5) | scaled(steps, "rotate_k", 0.5) | {"output": steps["output"]},
        "ours times 0.5"),
    "scores before their scale": (
        lambda steps: scaled(steps, "scores", WIDTH**0.5) | {"weights": steps["weights"]}, "ours times 2.24"),
    "scores without their largest": (
        lambda steps: {"scores": weighted(steps["scores"]), "output": steps["output"]},
        "ours with a number added to each row"),
    "scores alone without their largest": (
        lambda steps: {"scores": weighted(steps["scores"])}, "ours with a number added to each row"),
    "values in another basis": (
        lambda steps: of_steps(steps, lambda X: X @ BASIS, "W_v", "split_v", "pooled", "merged"),
        "ours in another basis"),
    "merged heads, component by component": (
        lambda steps: {"merged": steps["merged"].reshape(B, T, H, WIDTH).swapaxes(2, 3).reshape(B, T, D),
                       "output": steps["output"]},
        "ours with its features in another order"),
    "heads in another order": (all_heads, "ours with its heads in another order"),
    "a step by the name of another": (
        lambda steps: {"rotate_q": steps["split_q"], "scores": steps["scores"]}, "ours as W_q is"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", TAKEN_BACK)
def test_what_later_steps_take_back_is_no_mistake(name, dtype):
    change, note = TAKEN_BACK[name]
    layer, inputs, steps = traced(dtype)
    report = parity.compare(layer, change(steps), *inputs, causal=True)
    assert report, report
    assert {row.note for row in report.rows} - {""} == {f"{note}, which later steps take back"}
    assert report.ratio < 0.5


def test_a_mistake_behind_such_steps_is_found_alone():
    layer, inputs, steps = traced()
    theirs = {name: by_head(steps[name], order) for name in ("rotate_q", "rotate_k")}
    dropped = {"W_o.bias is dropped": steps["output"] - layer.weights["W_o.bias"]}
    for mistake, output in (dropped | {"causal order is ignored": layer(*inputs)}).items():
        report = parity.compare(layer, theirs | {"output": output}, *inputs, causal=True)
        assert [row.name for row in report.rows if not row.passed] == ["output"]
        assert report.diagnosis.mistakes == (mistake,)
        assert all(len(names) == 1 for names in report.diagnosis.alternatives)


def test_what_nothing_shows_is_not_known():
    layer, inputs, steps = traced()
    alone = scaled(steps, "rotate_q", 0.25)
    orders = {name: by_head(steps[name], order) for name in ("W_q", "W_k")}
    for theirs in (alone, orders):
        report = parity.compare(layer, theirs, *inputs, causal=True)
        assert not report
        assert not report.diagnosis.known
        assert "It is no mistake if later steps take it back: give scores or the output, too" in report.diagnosis.note
        assert parity.compare(layer, theirs | {"output": steps["output"]}, *inputs, causal=True)


def test_a_strange_array_before_right_ones_is_not_explained():
    layer, inputs, steps = traced()
    theirs = {"rotate_q": RANDOM.normal(size=steps["rotate_q"].shape).astype("float32"), "scores": steps["scores"]}
    report = parity.compare(layer, theirs, *inputs, causal=True)
    assert report.first.name == "rotate_q"
    assert report.diagnosis.note == (
        "why: not known: scores, which comes of rotate_q, is right; perhaps another array was given as rotate_q"
    )


@pytest.mark.parametrize("changed", [("rotate_q",), ("rotate_k",), QUERIES])
def test_what_is_not_taken_back_differs(changed):
    layer, inputs, steps = traced()
    theirs = of_steps(steps, order, *changed)
    q, k = (theirs[name].reshape(B, -1, T, WIDTH) for name in ("rotate_q", "rotate_k"))
    scores = q @ np.repeat(k, H // G, 1).swapaxes(2, 3) / np.sqrt(np.float32(WIDTH))
    given = {name: theirs[name] for name in changed} | {"scores": scores}
    report = parity.compare(layer, given, *inputs, causal=True)
    assert [row.passed for row in report.rows] == [False] * len(given)
    both = parity.compare(layer, {name: theirs[name] for name in ("rotate_q", "rotate_k")}, *inputs, causal=True)
    assert [row.passed for row in both.rows] == [name not in changed for name in ("rotate_q", "rotate_k")]


def test_a_shift_that_a_cap_bends_is_not_taken_back():
    layer, inputs, steps = traced(softcap=2.0)
    assert not parity.compare(layer, {"scores": weighted(steps["scores"])}, *inputs, causal=True)
    assert parity.compare(layer, {"capped": weighted(steps["capped"])}, *inputs, causal=True)
    beside, inputs, steps = traced(sinks=True)
    assert not parity.compare(beside, {"scores": weighted(steps["scores"])}, *inputs, causal=True)


def test_a_factor_that_no_later_step_would_show_is_not_taken_back():
    layer, _, _ = traced("float16", bias=False)
    inputs = [(1e-2 * X).astype("float16")] * 3
    steps = layer.trace(*inputs, causal=True)
    scores = (steps["scores"].astype("float32") * WIDTH**0.5).astype(steps["scores"].dtype)
    assert not parity.compare(layer, {"scores": scores, "weights": steps["weights"]}, *inputs, causal=True)


def test_attention_weights_are_a_result_themselves():
    layer, inputs, steps = traced()
    theirs = {"weights": heads(steps["weights"], H), "output": steps["output"]}
    assert not parity.compare(layer, theirs, *inputs, causal=True)
    assert not parity.compare(layer, scaled(steps, "weights", 2) | {"output": steps["output"]}, *inputs, causal=True)


def test_what_comes_of_a_wrong_step_is_not_taken_back():
    """A bias of W_k moves the scores of a row alike; beside a wrong W_v it is part of one mistake, which is named."""
    layer, inputs, _ = traced(rotary=None)
    twice = {name: 2 * W if name in ("W_k.bias", "W_v.bias") else W for name, W in layer.weights.items()}
    wrong = mha.MultiHeadAttention(D, H, num_key_value_heads=G, bias=True, backend="numpy")
    wrong.weights = twice
    report = parity.compare(layer, wrong.trace(*inputs, causal=True), *inputs, causal=True)
    assert report.diagnosis.alternatives == (("biases are added twice",),), report
    assert "W_k and W_v" in str(report.diagnosis)
