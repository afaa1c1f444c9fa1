"""Every option of a layer and every argument of a call, alone, by the quickest path of each backend.

The formula of `formula.py` says what is right; gradients are compared with those of NumPy's lesson.
"""

import dataclasses

import adapters
import alone
import numpy as np
import pytest

from mha import parity
from mha.core.call.declaration import ARGUMENTS
from mha.core.options.config import Config

LONG = pytest.mark.long(*adapters.COMPILED)  # which compile each for seconds
QUICK = {"nothing", "rotary of halves", "one array, window (2, 1)"}
# One array three times has a path of its own to the projections, which few options change on the way back.
ONE_ARRAY = {"nothing", "window (2, 1)", "bias True", "num_key_value_heads 2", "causal True", "rotary of halves"}


def each(names):
    """The cases of these names as parameters of a test."""
    return pytest.mark.parametrize(
        "case", [pytest.param(alone.CASES[name], id=name, marks=() if name in QUICK else LONG) for name in names]
    )


def test_every_option_and_every_argument_is_here():
    assert alone.OPTIONS.keys() == {field.name for field in dataclasses.fields(Config)}
    assert alone.ARGUMENTS.keys() == ARGUMENTS.keys() - {"cache"}  # which has tests of its own


def test_each_changes_the_output():
    """Else a case would show nothing."""
    for name, case in alone.CASES.items():
        if case.says_something:
            without = alone.CASES["one array, nothing" if case.one_array else "nothing"].expected[0]
            assert parity.error(case.expected[0], without) > 0.01, name


@each(alone.CASES)
def test_output_with_and_without_weights(backend, case):
    attention, base = case.layer(backend), case.layer("numpy")(*case.inputs, **case.call | {"return_weights": True})
    for inputs in (case.inputs, case.poisoned):
        for weights in (False, True):
            found = attention(*inputs, **case.call | {"return_weights": weights})
            for X, expected, based in zip(found if weights else [found], case.expected, base, strict=False):
                assert parity.error(X, expected) <= parity.bound(case.dtype, expected, based), weights


@each(name for name, case in alone.CASES.items() if not case.one_array or name.partition(", ")[2] in ONE_ARRAY)
def test_gradients(backend, case):
    attention, lesson = case.layer(backend), case.layer("numpy", readable=True)
    call = {name: X for name, X in case.call.items() if name not in ("training", "return_weights")}
    cotangent = np.random.default_rng(4).normal(size=case.expected[0].shape).astype(case.dtype)
    base, oracle = lesson.gradients(*case.inputs, **call, cotangent=cotangent), lesson
    if case.dtype != "float64":
        oracle = parity.in_dtype(lesson, "float64")
    wide = [X.astype("float64") for X in (*case.inputs, cotangent)]
    expected = oracle.gradients(*wide[:3], **call, cotangent=wide[3])
    scale = max(map(parity.largest, expected.values()))  # a query that sees one key has a gradient of rounding alone
    for inputs in (case.inputs, case.poisoned):
        found = attention.gradients(*inputs, **call, cotangent=cotangent)
        for name, X in expected.items():
            limit = parity.bound(case.dtype, X, base[name], gradient=True, scale=scale)
            assert parity.error(found[name], X) <= limit, name


SEVERAL = [name for name, values in alone.ARGUMENTS.items() if len(values) > 1]


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG) for name in SEVERAL])
def test_one_layer_with_one_value_after_another(backend, name):
    """What is decided for one value, and remembered, does not count for another one."""
    cases = [case for case in alone.CASES.values() if name in case.arguments]
    for order in (cases, cases[::-1]):
        layers = {}
        for case in order:
            attention = layers.setdefault(str(case.options), case.layer(backend))
            found, expected = attention(*case.poisoned, **case.call), case.expected[0]
            assert parity.error(found, expected) <= parity.bound("float64", expected, expected), case.name
