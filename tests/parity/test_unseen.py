"""What a green comparison could not see: `report.unseen`, `Outcome.unseen`, `mha.parity.inputs`."""

import re

import adapters
import numpy as np
import pages
import planted
import pytest
from ports import Port

import mha
from mha import parity
from mha.parity.diagnosis.blind_spots import probes, views
from mha.parity.diagnosis.blind_spots.views import USUAL
from mha.parity.diagnosis.pipeline.parts import all_steps
from mha.parity.diagnosis.pipeline.plan import equal_plans, make_plan
from mha.parity.rule.problem import problem

LLAMA = {
    "num_hiddens": 32, "num_heads": 4, "num_key_value_heads": 2, "qk_norm": "rms", "rotary": mha.Rotary(8, 500000.0),
    "window": (4095, 0),
}  # fmt: skip
CALLS = {
    "a fresh layer": (LLAMA, {"causal": True}),
    "lengths and a mask": ({"num_hiddens": 24, "num_heads": 4, "bias": True}, {"valid_lens": [16, 9], "mask": ...}),
    "a bias and gates": (LLAMA | {"softcap": 30.0, "scale": 0.3}, {"score_bias": ..., "head_gates": ..., "offset": 2}),
}


@pytest.fixture(autouse=True)
def time_enough(monkeypatch):
    monkeypatch.setattr(views, "SECONDS", 60.0)


def green(options, call, dtype):
    """The layer, the arrays and the true report of a call of 16 tokens."""
    rng = np.random.default_rng(0)
    layer = mha.MultiHeadAttention(**options, dtype=dtype, seed=0, backend="numpy")
    X = mha.normal(0, 1, (2, 16, options["num_hiddens"]), dtype=dtype, backend="numpy")
    drawn = {
        "mask": rng.random((16, 16)) < 0.7,
        "score_bias": rng.normal(size=(4, 16, 16)).astype(X.dtype)[None],
        "head_gates": rng.normal(size=4).astype(X.dtype),
    }
    call = {name: drawn[name] if value is ... else value for name, value in call.items()}
    report = parity.compare(layer, layer(X, X, X, **call), X, X, X, **call)
    assert report, report
    return layer, X, call, report


def test_some_features_of_all_rows_show_no_more_than_all():
    layer = mha.MultiHeadAttention(67, 1, seed=0, backend="numpy")
    X = np.random.default_rng(0).normal(size=(1, 5, 67)).astype("float32")
    asked = problem(layer, X, X, X, planted.DEFAULTS)
    few, whole = views.view_in_part(asked, ["output"]), views.View(asked, ["output"])
    assert few.features != views.ALL
    assert few.rows == views.ALL
    form = next(form for form in USUAL if "scale" in form.mistake.name and few.possible(form))
    assert 1 < few.ratio(form) <= whole.ratio(form)


@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(dtype, marks=pytest.mark.long("numpy")) for dtype in ("bfloat16", "float64"))]
)
@pytest.mark.parametrize(
    "name", ["a fresh layer", pytest.param("lengths and a mask", marks=pytest.mark.long("numpy")), "a bias and gates"]
)
def test_each_listed_mistake_passes_and_no_other_does(name, dtype):
    layer, X, call, report = green(*CALLS[name], dtype)
    listed = {(one.mistake, one.how): one for one in report.unseen}
    assert report.sight.untried == 0
    asked = report.look.args[0][0][0]()
    right = make_plan(asked, dtype)
    tried = 0
    for form in USUAL:
        with np.errstate(all="ignore"):
            plan = form.change(right)
            if plan is None:
                continue
            one = listed.get((form.mistake.name, form.how))
            if equal_plans(
                plan, right
            ):  # such as a scale of 1 that is forgotten; what other inputs show is a mistake, too
                assert one is None or (one.shown_by and one.ratio == 0), one
                tried += one is not None
                continue
            theirs = all_steps(plan)[0]["output"].astype(X.dtype)
        tried += 1
        passed = bool(parity.compare(layer, theirs, X, X, X, **call))
        assert passed == (one is not None), (form.mistake.name, form.how, one)
    assert tried == report.sight.of > 40


def test_the_page_counts_the_forms_of_a_call():
    *_, report = green(*CALLS["a fresh layer"], "float32")
    (number,) = re.findall(r"of (\d+) forms of known mistakes", str(report))
    assert f" of {number} forms of known mistakes would pass here, too:" in pages.text("docs/parity.md")


def test_what_shows_a_mistake_is_true():
    layer, X, call, report = green(*CALLS["a fresh layer"], "float32")
    shown = {one.mistake: one.shown_by for one in report.unseen}
    assert shown["the window is ignored"] == "at least 4097 tokens"
    assert shown["positions in half precision"] == "269 tokens"
    assert shown["the norm comes after the rotation"] == "other norms"
    assert shown["the rotation begins again at every offset"] == "an offset"
    assert shown["the rotation is off by one"] == ""
    tables = {one.how: one.shown_by for one in report.unseen if one.mistake == "the table of angles is too short"}
    assert tables["512 positions"] == tables["1024 positions"] == "1031 keys and an offset of 1020"
    assert tables["2048 positions"] == tables["4096 positions"] == "an offset of 4095"
    assert tables["8192 positions"] == ""
    assert str(report).count("shown by no inputs that were tried") == 1
    assert "gradients were not compared" in str(report)
    assert "lower precision in some steps, such as keys rounded for a cache, was not tried" in str(report)
    layer.weights = {name: X * 1.5 if "norm" in name else X for name, X in layer.weights.items()}
    layer.weights = layer.weights | {"q_norm.scale": layer.weights["q_norm.scale"] * np.arange(8, dtype="float32")}
    again = parity.compare(layer, layer(X, X, X, **call), X, X, X, **call)
    assert "the norm comes after the rotation" not in {one.mistake for one in again.unseen}


def test_a_mistake_that_changes_nothing_here_is_unseen():
    """Norms whose scales are all 1, one length for all samples, as many keys as queries, no offset."""
    layer = mha.MultiHeadAttention(**LLAMA | {"window": None}, seed=0, backend="numpy")
    X = mha.normal(0, 1, (2, 16, 32), backend="numpy")
    call = {"causal": True, "valid_lens": [9, 9]}
    found = {
        (one.mistake, one.how): one.shown_by
        for one in parity.compare(layer, layer(X, X, X, **call), X, X, X, **call).unseen
    }
    assert found["the scale of a norm is forgotten", ""] == "other norms"
    assert found["the norm of queries for that of keys", "for both"] == "other norms"
    assert found["lengths are tiled, not repeated", ""] == "other lengths, masks, biases or gates"
    assert found["causal order begins again at every offset", ""] == "an offset"
    assert found["causal order is aligned to the lower right", ""] == "an offset"
    assert found["K and V are swapped", "inputs"] == "queries, keys and values that differ"
    assert not {mistake for mistake, _ in found} & {
        "heads of keys are tiled, not repeated",
        "no scale",
        "the scale is applied twice",
    }


@pytest.mark.long("numpy")
def test_half_precision_sees_less_and_says_what_would_see_it():
    few, many = (green(*CALLS["a fresh layer"], dtype)[-1].unseen for dtype in ("float32", "bfloat16"))
    assert len(many) > len(few)
    assert {one.shown_by for one in many} >= {"float32", "float64"}
    assert any(one.barely for one in many)
    assert all(one.barely == (one.ratio >= 0.5) and one.ratio <= 1 for one in many)


@pytest.mark.long(*adapters.FRAMEWORKS)  # inputs are drawn with NumPy for each
@pytest.mark.parametrize("alone", [False, True])
def test_inputs_show_what_can_be_seen(backend, alone):
    layer = mha.MultiHeadAttention(**LLAMA | {"window": (7, 0)}, seed=0, backend=backend)
    rng = np.random.default_rng(0)
    layer.weights = {
        name: rng.normal(1, 0.5, X.shape).astype(X.dtype) if X.ndim == 1 else X for name, X in layer.weights.items()
    }
    X = parity.inputs(layer, one_input=alone)
    assert (X["queries"] is X["keys"] is X["values"]) == alone
    report = parity.compare(layer, layer(**X), **X)
    assert report
    assert {one.mistake for one in report.unseen} <= {
        "NaN in padding comes through", "rows without keys are NaN", "rows without keys are uniform", "weak mask fill",
        "the rotation is off by one", "the rotation begins again at every offset",
        "the window begins again at every offset", "the table of angles is too short", "keys turn twice",
        "all samples turn as the first",
        *["Q and K are swapped", "K and V are swapped"] * alone,
    }  # fmt: skip
    tables = {one.how for one in report.unseen if one.mistake == "the table of angles is too short"}
    assert tables <= {"1024 positions", "2048 positions", "4096 positions", "8192 positions"}  # 512 are exceeded


def test_inputs_are_as_long_as_the_memory_allows():
    layer = mha.MultiHeadAttention(24, 4, window=(1023, 40000), backend="numpy")
    assert parity.inputs(layer)["queries"].shape == (2, 1026, 24)
    assert parity.inputs(mha.MultiHeadAttention(24, 4, backend="numpy"))["keys"].shape == (2, 527, 24)
    assert parity.inputs(mha.MultiHeadAttention(480, 480, backend="numpy"))["keys"].shape == (2, 11, 480)
    with pytest.raises(ValueError, match=r"one_input is True, expected False: .* have widths \(24, 5, 24\)"):
        parity.inputs(mha.MultiHeadAttention(24, 4, key_size=5, backend="numpy"), one_input=True)
    with pytest.raises(TypeError, match=r"attention is a str, expected an mha\.MultiHead"):
        parity.inputs("layer")


def test_gradients_and_differences():
    layer = mha.MultiHeadAttention(24, 4, seed=0, backend="numpy")
    X = mha.normal(0, 1, (2, 5, 24), backend="numpy")
    gradients = {f"gradient.{name}": G for name, G in layer.gradients(X, X, X, valid_lens=[5, 5]).items()}
    both = parity.compare(layer, {"output": layer(X, X, X, [5, 5])} | gradients, X, X, X, [5, 5])
    assert "the lengths are ignored" in {one.mistake for one in both.unseen}
    assert "gradients were compared, too" in str(both)
    alone = parity.compare(layer, gradients, X, X, X, [5, 5])
    assert (alone.unseen, alone.sight.of) == ((), 0)
    assert "known mistakes were not tried with gradients alone" in str(alone)
    wrong = parity.compare(layer, layer(X, X, X, [3, 5]), X, X, X, [5, 5])
    assert (wrong.unseen, wrong.sight) == ((), None)


@pytest.mark.long("numpy")
def test_what_is_caught_narrowly_is_only_printed():
    layer = mha.MultiHeadAttention(24, 4, qk_norm="rms", seed=0, backend="numpy")
    X = mha.normal(0, 1, (2, 5, 24), backend="numpy")
    for size in np.float32(10.0) ** np.arange(-1, 2, 0.1, dtype="float32"):
        report = parity.compare(layer, layer(size * X, X, X), size * X, X, X)
        if report.sight.narrow:
            break
    one = report.sight.narrow[0]
    assert 1 < one.ratio <= 2
    assert one not in report.unseen
    assert f"narrowly caught: {one.mistake}" in str(report)


def test_a_large_call_is_looked_at_in_a_few_rows_and_in_time(monkeypatch):
    layer = mha.MultiHeadAttention(64, 8, bias=True, seed=0, backend="numpy")
    X = mha.normal(0, 1, (4, 181, 64), backend="numpy")
    report = parity.compare(layer, layer(X, X, X, [181, 7, 9, 11]), X, X, X, [181, 7, 9, 11])
    monkeypatch.setattr(views, "SECONDS", 0.0)
    assert report.sight.untried == len(USUAL)
    assert f"not tried, there was no time: {len(USUAL)} forms" in str(report)
    monkeypatch.setattr(views, "SECONDS", 60.0)
    both = []
    for pairs in (1e6, 1e12):
        monkeypatch.setattr(views, "PAIRS", pairs)
        report = parity.compare(layer, layer(X, X, X, [181, 7, 9, 11]), X, X, X, [181, 7, 9, 11])
        both.append({(one.mistake, one.how) for one in report.unseen})
        assert report.sight.untried == 0
    assert both[0] == both[1] != set()


def test_what_needs_all_queries_is_left_for_a_view_of_them():
    layer = mha.MultiHeadAttention(24, 4, seed=0, backend="numpy")
    X = np.random.default_rng(0).normal(size=(2, 19, 24)).astype("float32")
    asked = problem(layer, X, X, X, {"causal": False})
    few, every = views.View(asked, ["output"], [0], slice(3, 19)), views.View(asked, ["output"])
    [form] = (
        one for one in USUAL if (one.mistake.name, one.how) == ("the softmax is over another axis", "over queries")
    )
    assert few.ratio(form) is None
    assert every.ratio(form) > 1


def test_the_outcome_of_a_suite_lists_what_every_case_leaves_unseen():
    def port(attention, queries, keys, values, causal=False):
        return Port(attention)(queries, keys, values, causal=causal)

    options = {"num_hiddens": 24, "num_heads": 4, "window": (40000, None)}
    outcome = mha.testing.assert_parity(port, "numpy", attention=options, dtypes="float64")
    shown = {one.mistake: one.shown_by for one in outcome.unseen}
    assert shown["the window is ignored"] == "at least 40002 tokens"
    assert "causal order is off by one" not in shown
    assert "- shown by at least 40002 tokens: the window is one wider to the left; the window is one" in str(outcome)
    assert shown["rows without keys are NaN"] == "all of this at once, in float64"
    blocks = {one.shown_by for one in outcome.unseen if one.mistake == "the accumulator of blocks is not rescaled"}
    assert blocks == {"67 tokens", "269 tokens", "1031 keys and an offset of 1020"}


@pytest.mark.parametrize("given", [planted.PADDED, planted.PACKED], ids=["positions", "segments"])
def test_tokens_that_are_drawn_are_padding_too(given):
    layer, inputs, arguments = planted.Call(planted.SQUARE, given).made()
    drawn = probes.draw_arguments(problem(layer, *inputs, planted.DEFAULTS | arguments, None), 11, 13)
    assert {name: X.min() for name, X in drawn.items()} == dict.fromkeys(given, -1)
