"""A report of each argument of a call and of each option: printed, explained, written, asked what it does not show.

The cases are those of `alone.py`, which has an entry for each argument and each option that is declared.
"""

import dataclasses
import itertools

import alone
import numpy as np
import pytest

import mha
from mha import parity
from mha.core.call import ROWS
from mha.parity.diagnosis.blind_spots import views
from mha.parity.diagnosis.blind_spots.probes import draw_arguments, hide_all, in_samples, probes, shrink
from mha.parity.diagnosis.search import time_budget
from mha.parity.rule.problem import problem

SWITCHES = ("training", "return_weights")
LONG = pytest.mark.long("numpy")


def call_of(case):
    return {name: X for name, X in case.call.items() if name not in SWITCHES}


def firsts():
    """The first case of every third option, and the last of each argument, which has its most axes."""
    found = {}
    for names, at in ((list(alone.OPTIONS)[::3], 0), (alone.ARGUMENTS, -1)):
        for name in (name for name in names if name not in SWITCHES):
            case = [case for case in alone.THREE if name in case.options | case.arguments][at]
            found[case.name] = case
    return found


QUICK = firsts()
EACH = pytest.mark.parametrize(
    "case", [pytest.param(case, id=name, marks=() if name in QUICK else LONG) for name, case in alone.CASES.items()]
)


def printed(report):
    """What a report says, once all that it can be asked was asked for."""
    assert str(report) == repr(report)
    assert all(one.shown_by is not None for one in report.unseen)
    assert isinstance(str(report.diagnosis), str)
    return str(report)


@EACH
def test_a_true_and_a_false_report_of_each_are_printed(case, monkeypatch):
    monkeypatch.setattr(time_budget, "SECONDS", 0.1)
    monkeypatch.setattr(views, "SECONDS", 60.0)
    layer, call = case.layer("numpy"), call_of(case)
    output = layer(*case.inputs, **call)
    right = parity.compare(layer, output, *case.inputs, **call)
    assert "the same: 1 array within what" in printed(right)
    assert right.sight.of > 10
    assert right.sight.untried == 0
    output += 1
    wrong = parity.compare(layer, output, *case.inputs, **call)
    assert "first to differ: output" in printed(wrong)
    assert wrong.unseen == ()


def of_sizes(name, B, Q, K, H):
    """Values of an argument, in each of its shapes."""
    rng, row, sizes = np.random.default_rng(5), ROWS[name], {"B": B, "Q": Q, "K": K, "H": H}
    if row.holds == "switch":
        yield True
    for axes in row.axes:
        shape = [sizes[letter] for letter in axes]
        first, below = row.usual(Q if row.axes[0] == "Q" else K) if row.usual else (0, 3)
        yield {
            "integers": lambda shape=shape, first=first, below=below: rng.integers(first, below, shape),
            "booleans": lambda shape=shape: rng.random(shape) < 0.7,
            "floats": lambda shape=shape: rng.normal(size=shape).astype("float32"),
        }[row.holds]()


USUAL = "with other keys", "rotary, window"
SIZES = {"with other keys": (3, 5, 7), "of one input": (3, 5, 5), "of one token": (2, 1, 1), "of one sample": (1, 5, 7)}
OPTIONS = {
    "rotary, window": {"rotary": mha.Rotary(), "window": (2, 1), "bias": True}, "plain": {},
    "chunk, temperature": {"chunk": 3, "temperature": mha.Temperature(0.4, 2)},
}  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "options"),
    [pytest.param(*both, marks=() if both == USUAL else LONG) for both in itertools.product(SIZES, OPTIONS)],
)
def test_every_change_of_every_two_arguments_is_a_call(sizes, options):
    """Those arguments that go together: what is refused in the call itself need not be changed."""
    B, Q, K = SIZES[sizes]
    layer = mha.MultiHeadAttention(24, 4, **OPTIONS[options], seed=0, backend="numpy")
    X = [np.random.default_rng(6).normal(size=(B, T, 24)).astype("float32") for T in (Q, K, K)]
    tried = set()
    for pair in itertools.combinations(ROWS, 2):
        values = {name: [*of_sizes(name, B, Q, K, 4)] for name in pair}
        for at in range(max(map(len, values.values()))):
            call = {name: some[min(at, len(some) - 1)] for name, some in values.items()}
            try:
                asked = problem(layer, *X, {"causal": False} | call)
            except ValueError:
                continue
            tried |= {*pair}
            for probe in probes(layer.config):
                if not probe.words[0].isdigit():  # so many tokens: all of these are made as "more keys than queries"
                    probe.made(asked)
            assert draw_arguments(asked, 7, 11).keys() >= {*asked.call.arrays()} - {"offset"}
    assert tried == {*ROWS}


def test_each_argument_that_hides_can_hide_all():
    layer = mha.MultiHeadAttention(24, 4, seed=0, backend="numpy")
    X = [np.random.default_rng(6).normal(size=(3, T, 24)).astype("float32") for T in (5, 5, 5)]
    for name, row in ROWS.items():
        assert (row.hidden is not None) == (row.hides and row.holds != "switch"), name
        for value in of_sizes(name, 3, 5, 5, 4) if row.hidden is not None else ():
            assert not hide_all(problem(layer, *X, {"causal": False, name: value})).visible.any((1, 3)).all(), name


@pytest.mark.parametrize("sizes", [(0, 5, 7), (2, 0, 7), (2, 5, 0), (1, 1, 1)])
@pytest.mark.parametrize("call", [{"causal": True}, {"valid_lens": ..., "segments": ..., "key_segments": ...}])
def test_a_call_with_little_or_nothing_in_it(sizes, call):
    B, Q, K = sizes
    layer = mha.MultiHeadAttention(24, 4, rotary=mha.Rotary(), seed=0, backend="numpy")
    X = [np.ones((B, T, 24), "float32") for T in (Q, K, K)]
    drawn = {"valid_lens": np.full(B, 1), "segments": np.zeros((B, Q), int), "key_segments": np.zeros((B, K), int)}
    call = {name: drawn[name] if value is ... else value for name, value in call.items()}
    report = parity.compare(layer, layer(*X, **call), *X, **call, empty_rows=True)
    text = printed(report)
    assert ("known mistakes were not tried without queries and keys" in text) == (B * Q * K == 0)


def test_printing_a_report_draws_no_seed():
    """Layers that are made after it are the same as if nobody had printed it."""

    def made(ask):
        mha.manual_seed(3)
        layer = mha.MultiHeadAttention(24, 4, window=(40, 0), bias=True, qk_norm="rms", backend="numpy")
        X = mha.normal(0, 1, (2, 5, 24), backend="numpy")
        report = parity.compare(layer, layer(X, X, X), X, X, X)
        if ask:
            printed(report)
        return mha.MultiHeadAttention(24, 4, backend="numpy").weights["W_q.kernel"]

    assert np.array_equal(made(True), made(False))


@pytest.mark.parametrize("widths", [{}, {"query_size": 320, "key_size": 400, "value_size": 400}, {"key_size": 24}])
def test_a_call_of_fewer_features_is_the_same_call(widths):
    layer = mha.MultiHeadAttention(
        256, 4, num_key_value_heads=2, bias=True, qk_norm="rms", rotary=mha.Rotary(), output_gate="head", seed=0,
        dtype="float64", backend="numpy", **widths,
    )  # fmt: skip
    sizes = {"query_size": 5, "key_size": 4, "value_size": 4}
    X = [np.random.default_rng(8).normal(size=(3, T, getattr(layer.config, name))) for name, T in sizes.items()]
    asked = in_samples(2, problem(layer, *X, {"causal": True, "valid_lens": [4, 1, 3]}))
    assert len(asked.queries) == 2
    fewer = shrink(asked)
    assert fewer.queries.shape == (2, 5, 64)
    assert fewer.keys.shape[2] == min(64, layer.config.key_size)
    for name in asked.oracle:
        np.testing.assert_allclose(fewer.oracle[name], asked.oracle[name], rtol=1e-9, atol=1e-9)
    assert 0.5 < fewer.queries.std() / asked.queries.std() < 2
    nan = {name: np.full_like(getattr(asked, name), np.nan) for name in ("queries", "keys", "values")}
    assert shrink(dataclasses.replace(asked, **nan)).config == layer.config


def test_the_samples_that_are_looked_at_see_most_and_least():
    layer = mha.MultiHeadAttention(24, 4, seed=0, backend="numpy")
    X = np.random.default_rng(8).normal(size=(5, 7, 24)).astype("float32")
    asked = problem(layer, X, X, X, {"causal": False, "valid_lens": [3, 7, 5, 1, 4], "offset": [1, 2, 3, 4, 5]})
    assert in_samples(2, asked).call.arguments()["valid_lens"].tolist() == [7, 1]
    assert in_samples(2, asked).call.arguments()["offset"].tolist() == [2, 4]
    assert in_samples(1, asked).call.arguments()["valid_lens"].tolist() == [7]
    rows = np.zeros((5, 7), bool)
    rows[4, :3] = True  # in other samples no row counts
    few = in_samples(2, dataclasses.replace(asked, rows=rows))
    assert few.call.arguments()["valid_lens"].tolist() == [4]
    assert few.rows.sum() == 3
    report = parity.compare(layer, layer(X, X, X), X, X, X, rows=rows)
    assert "the same" in printed(report)


def test_large_numbers_in_half_precision_are_not_put_in_coordinates():
    """The first token has one coordinate alone, which is as long as all of it."""
    layer = mha.MultiHeadAttention(256, 4, dtype="float16", seed=0, backend="numpy")
    X = np.random.default_rng(8).normal(size=(2, 5, 256)).astype("float16")
    small, large = (problem(layer, Y, Y, Y, {"causal": False}) for Y in (X, X * np.float16(12000)))
    assert shrink(small).config.query_size == 64
    assert shrink(large).config.query_size == 256
