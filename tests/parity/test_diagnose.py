"""`mha.parity.diagnose`: known mistakes are named, alone and in pairs; unknown ones are said to be unknown."""

import dataclasses
import io
import itertools
import re
import sys

import numpy as np
import planted
import pytest
import unknown_mistakes
from ports import Port

import mha
from mha import parity
from mha.parity.diagnosis.mistakes.catalogue import FORMS
from mha.parity.diagnosis.mistakes.of_precision import ROUNDINGS
from mha.parity.diagnosis.mistakes.of_weights import PROJECTIONS
from mha.parity.diagnosis.pipeline import parts
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.diagnosis.search import search, time_budget
from mha.parity.rule.problem import problem

LONG = pytest.mark.long("numpy")  # of many of one kind, all but a few
# What changes no output: with dot-product pooling, the bias of keys shifts all scores of a query alike, and a rotation
# of both by one more changes no distance.
SILENT = {("W_k.bias is dropped", ""), ("the rotation is off by one", "both, from position 1 on")}
BY_NAME = {(form.mistake.name, form.how): form for form in FORMS}


def diagnosed(call, theirs, dtype="float32"):
    layer, inputs, arguments = call.made(dtype)
    return parity.diagnose(layer, theirs, *inputs, **arguments, empty_rows=True)


def test_the_pipeline_without_mistakes_is_the_trace():
    for case in parity.CASES[:-1]:
        layer, call = case.layer("numpy", "float64"), case.call("float64")
        *inputs, cotangent = case.inputs("float64")
        asked = problem(layer, *inputs, call, cotangent)
        steps, before = {}, {}
        with np.errstate(all="ignore"):
            for part in parts.PARTS:
                some, before[part] = parts.compute(part, make_plan(asked, "float64"), before)
                steps |= some
        assert steps.keys() == asked.oracle.keys()
        for name, X in steps.items():
            assert asked.expected(name).ratio(np.where(asked.matters(name), X, 0)) <= 1, (case.name, name)


def test_each_mistake_has_one_name():
    names = [mistake.name for mistake in parity.CATALOGUE]
    assert len(names) == len({*names})


@LONG  # on this rests that parts are computed once for several mistakes
def test_a_mistake_changes_no_other_parts_than_it_says():
    for form in FORMS:
        if (found := planted.planted_in(form, None)) is None:
            continue
        call, theirs = found
        right = planted.with_mistake(form, call, None, right=True)
        for name, X in theirs.items():
            if not form.mistake.touches(parts.PART_OF[name]):
                assert np.array_equal(X, right[name], equal_nan=True), (form.mistake.name, name)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=LONG) for part in range(1, 8))])
def test_every_mistake_is_named_from_all_steps(part):
    """One form of each; `test_catalogue_by_hand` has them from the output alone."""
    for mistake in parity.CATALOGUE[part::8]:
        form = next(form for form in FORMS if form.mistake is mistake)
        if (found := planted.planted_in(form, None)) is None:
            assert (mistake.name, form.how) in SILENT
            continue
        diagnosis = diagnosed(*found)
        named = [name for one in diagnosis.explanations if one.sure for name in (*one.mistakes, *one.also)]
        assert diagnosis.known
        if mistake.name == "the mask is inverted":  # the call may be to blame: both are said
            named = [mistake.name] * (f"in the port: {mistake.name}" in diagnosis.note)
        assert mistake.name in named, str(diagnosis)
        assert {len(one.mistakes) for one in diagnosis.explanations} <= {1}, mistake.name


@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(one, marks=LONG) for one in ("float64", "float16", "bfloat16"))]
)
def test_mistakes_are_named_in_every_dtype(dtype):
    for form in FORMS[:: 27 if dtype == "float16" else 9]:  # NumPy rounds to it slowly
        if (found := planted.planted_in(form, dtype=dtype)) is None or found[0].nan:
            continue
        call, theirs = found
        layer, inputs, arguments = call.made(dtype)
        report = parity.compare(layer, theirs, *inputs, **arguments)
        if report.ratio > 6:  # in half precision some mistakes are little more than rounding
            named = [one.mistakes for one in report.diagnosis.explanations]
            blamed = f"in the port: {form.mistake.name}" in report.diagnosis.note  # beside another call
            assert (form.mistake.name,) in named or blamed, (form.mistake.name, named)


def test_pairs_are_named_from_the_output_alone():
    """Pairs of those that people make most; each in a call where both show."""
    call = planted.CALLS[0]
    names = [
        "W_q.kernel is not transposed", "W_o.kernel is not transposed", "the heads are interleaved", "no scale",
        "lengths are one too long", "W_v.bias is dropped", "the merge lacks the permute",
    ]  # fmt: skip
    forms = [next(form for form in FORMS if form.mistake.name == name) for name in names]
    for one, other in list(itertools.combinations(forms, 2))[::5]:
        state = tuple(sorted((one, other), key=lambda form: form.place))
        theirs = planted.with_mistake(state, call)
        diagnosis = diagnosed(call, theirs)
        expected = {one.mistake.name, other.mistake.name}
        assert expected in [set(found.mistakes) for found in diagnosis.explanations if found.sure], expected


def test_scores_after_masking_do_not_hide_a_wrong_mask():
    """The scores that the mistake hides are minus infinity in their scores, where ours are numbers."""
    call = planted.CALLS[0]
    for name, how in (("lengths are one too short", ""), ("the mask is inverted", "that of the lengths")):
        theirs = planted.with_mistake(BY_NAME[name, how], call, None)
        theirs["scores"] = np.where(theirs["weights"] == 0, -np.inf, theirs["scores"])
        assert diagnosed(call, theirs).mistakes == (name,)


def test_mistakes_that_give_the_same_numbers_are_both_named():
    call = planted.Call(planted.SQUARE, {"valid_lens": [7, 3, 6]})
    diagnosis = diagnosed(call, planted.with_mistake(BY_NAME["everything is seen", ""], call))
    assert diagnosis.alternatives == (("the lengths are ignored",), ("all samples have the mask of the first",))
    assert diagnosis.mistakes == ("the lengths are ignored",)  # the best alone
    assert str(diagnosis).startswith("why: one of these, which all fit what was given\n")


def test_weights_of_another_layer():
    layer, inputs, arguments = planted.CALLS[0].made()
    others = {f"layer {i}": mha.MultiHeadAttention(**planted.SQUARE, seed=i, backend="numpy") for i in (5, 6)}
    theirs = others["layer 6"](*inputs, **arguments)
    diagnosis = parity.diagnose(layer, theirs, *inputs, **arguments, others=others)
    (one,) = diagnosis.explanations
    assert (one.mistakes, one.how) == (("all weights of another layer",), ("layer 6",))
    assert one.what == ("every weight of another layer of the same file",)
    mixed = layer.to("numpy")
    mixed.weights = mixed.weights | {name: X for name, X in others["layer 5"].weights.items() if name.startswith("W_v")}
    diagnosis = parity.diagnose(layer, mixed(*inputs, **arguments), *inputs, **arguments, others=others)
    (one,) = diagnosis.explanations
    assert (one.mistakes, one.how) == (("W_v of another layer",), ("layer 5",))
    assert one.what == ("W_v of another layer of the same file",)
    assert not parity.diagnose(layer, theirs, *inputs, **arguments).known


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=lambda rounding: rounding.name)
def test_lower_precision_is_told_by_its_errors(rounding):
    dtype = "float64" if rounding.name == "float32 arithmetic" else "float32"
    random = np.random.default_rng(5)
    for change in rounding.forms.values():
        call = next(call for call in planted.CALLS if planted.possible(change, call, dtype))
        layer, inputs, arguments = call.made(dtype)
        plan = make_plan(problem(layer, *inputs, planted.DEFAULTS | arguments, None), dtype)
        rough, before = change(plan), {}
        # Somebody else's sums run in another order.
        order = random.permutation(plan.queries.shape[2])
        kernels = {f"{name}.kernel": plan.weights[f"{name}.kernel"][order] for name in PROJECTIONS[:3]}
        inputs_in_order = {name: getattr(plan, name)[..., order] for name in ("queries", "keys", "values")}
        rough = dataclasses.replace(rough, weights=plan.weights | kernels, **inputs_in_order)
        steps = {}
        for part in parts.PARTS:
            some, before[part] = parts.compute(part, rough, before)
            steps |= some
        hidden = np.where(plan.visible(), steps["scores"], 0)  # of blank keys
        for theirs in (steps["output"].astype(dtype), steps | {"scores": hidden}):
            diagnosis = parity.diagnose(layer, theirs, *inputs, **arguments)
            assert (rounding.name,) in diagnosis.alternatives
            assert diagnosis.explanations[0].left < 0.3


@pytest.mark.parametrize(("p", "norm"), [(0.1, None), (0.5, None), (0.2, "rms")])
def test_dropout_left_on_is_told_by_its_weights(p, norm):
    options = {"num_hiddens": 32, "num_heads": 4, "value_norm": norm}
    layer = mha.MultiHeadAttention(**options, dropout=p, seed=0, backend="numpy")
    X = np.random.default_rng(6).normal(size=(3, 10, 32)).astype("float32")
    for lengths in ([10, 5, 6], None):
        diagnosis = parity.diagnose(layer, layer(X, X, X, lengths, training=True), X, X, X, lengths)
        assert diagnosis.mistakes == ("dropout left on",)
        assert diagnosis.explanations[0].how == (f"p about {p}",)


def test_unknown_mistakes_are_said_to_be_unknown():
    """tests/programs/unknown_mistakes.py tries more of them; docs/parity.md has the figure."""
    seen = 0
    for seed in range(2):
        for same, mistakes, kind in unknown_mistakes.named(seed):
            seen += not same
            assert mistakes == (), (seed, kind)
    assert seen == 4
    layer, inputs, arguments = planted.CALLS[0].made()
    report = parity.compare(layer, layer(*inputs, **arguments) + np.float32(0.5), *inputs, **arguments)
    assert not report.diagnosis.known
    assert report.diagnosis.note.startswith("why: unknown, none of ")
    assert "first to differ: output, 240 of 360 numbers; worst at " in report.diagnosis.note


def test_what_is_the_same_needs_no_reason():
    layer, inputs, arguments = planted.CALLS[0].made()
    diagnosis = parity.diagnose(layer, layer(*inputs, **arguments), *inputs, **arguments)
    assert (diagnosis.explanations, diagnosis.note) == ((), "nothing to explain: all that was given is the same")


def test_what_was_not_tried_for_want_of_time_is_counted(monkeypatch):
    layer, inputs, arguments = planted.CALLS[4].made()
    inputs = [X[:1] for X in inputs]
    theirs = -layer(*inputs, **arguments)
    everything = parity.diagnose(layer, theirs, *inputs, **arguments).tried
    assert everything > 600
    ticks = itertools.count()
    for clock in ("thread_time", "monotonic"):
        monkeypatch.setattr(time_budget.time, clock, lambda: next(ticks) / 130)
    note = parity.diagnose(layer, theirs, *inputs, **arguments).note
    found = re.search(
        r"none of (\d+) tries .* numbers; (\d+) pairs of mistakes were not tried, there was no time;", note
    )
    tried, missed = map(int, found.groups())
    assert tried + missed == everything
    assert 50 < tried < 6 * 90
    monkeypatch.setattr(time_budget, "SECONDS", 0)
    note = parity.diagnose(layer, theirs, *inputs, **arguments).note
    assert f" {len(FORMS)} forms of mistakes were not tried, there was no time;" in note


def long_call(D=128, H=4, T=97):
    """A layer, inputs, lengths, and the output of a port of it, with more queries than a search computes."""
    layer = mha.MultiHeadAttention(D, H, bias=True, seed=0, backend="numpy")
    layer.weights = {
        name: X + (0.1 if name.endswith("bias") else 0) * np.arange(X.shape[-1], dtype="float32") / D
        for name, X in layer.weights.items()
    }
    X = np.random.default_rng(2).normal(size=(2, T, D)).astype("float32")

    def port(kernels, scale, lengths):
        made = type("Wrong", (Port,), {"scale": scale})(layer)
        made.weights |= kernels
        return made(X, X, X, np.array(lengths))[0]

    return layer, X, port


def test_a_long_call_is_searched_in_a_few_queries():
    layer, X, port = long_call()
    lengths, d = [97, 61], 32
    transposed = {name: layer.weights[name].T for name in ("W_o.kernel", "W_v.kernel")}
    noise = layer.weights["W_q.kernel"] * np.random.default_rng(3).normal(1, 0.3, (128, 128)).astype("float32")
    known = {
        (): port({"W_q.kernel": noise}, d**-0.5, lengths),
        ("W_o.kernel is not transposed",): port({"W_o.kernel": transposed["W_o.kernel"]}, d**-0.5, lengths),
        ("lengths are one too short",): port({}, d**-0.5, [96, 60]),
        ("W_v.kernel is not transposed", "no scale"): port({"W_v.kernel": transposed["W_v.kernel"]}, 1, lengths),
    }
    for mistakes, theirs in known.items():
        searched = parity.diagnose(layer, theirs, X, X, X, lengths)
        assert searched.mistakes == mistakes, searched


def test_a_search_computes_few_of_many_queries(monkeypatch):
    layer, X, _ = long_call()
    seen = []
    right = search.Search.__init__

    def noted(self, problem, theirs, forms, focus, *rest):
        seen.append(focus)
        right(self, problem, theirs, forms, focus, *rest)

    monkeypatch.setattr(search.Search, "__init__", noted)
    theirs = layer(X, X, X, [97, 0])
    theirs[0, 53] += 1 + np.arange(128)
    assert not parity.diagnose(layer, theirs, X, X, X, [97, 0]).known
    samples, rows, features = seen[0]
    assert samples == [0]
    assert {0, 53, 96} <= set(rows)
    assert len(rows) <= 8
    assert features == [*range(96, 128)]


def test_an_error_in_a_query_that_is_not_searched_refutes_a_mistake():
    layer, X, port = long_call()
    theirs = port({"W_o.kernel": layer.weights["W_o.kernel"].T}, 32**-0.5, [97, 61])
    assert parity.diagnose(layer, theirs, X, X, X, [97, 61]).known
    samples = abs(theirs - layer(X, X, X, [97, 61])).sum((1, 2))
    theirs[samples.argmin(), 50] += np.float32(0.01)
    assert not parity.diagnose(layer, theirs, X, X, X, [97, 61]).known


def test_progress_is_shown_on_a_terminal_alone(monkeypatch, capsys):
    layer, inputs, arguments = planted.CALLS[0].made()
    monkeypatch.setattr(time_budget, "QUIET", 0)
    wrong = -layer(*inputs, **arguments)
    parity.diagnose(layer, wrong, *inputs, **arguments)
    assert capsys.readouterr() == ("", "")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    parity.diagnose(layer, wrong, *inputs, **arguments)
    assert "Looking for reasons" in sys.stderr.getvalue()
