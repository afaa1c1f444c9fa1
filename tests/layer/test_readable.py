"""A readable layer: the lesson itself runs, at every call, and gives the same numbers."""

import importlib

import numpy as np
import pytest
from calls import draw, make

import mha
from mha import parity
from mha.core import dispatch

STEPS = ("visible_keys", "zero_unused", "transpose_qkv", "repeat_heads", "visible_softmax", "transpose_output")
CASES = [case for case in parity.CASES if case.name in ("lengths, mask, causal", "additive", "all options")]


@pytest.fixture
def ran(backend, monkeypatch):
    """The lesson's functions that have run, by name, each with whether the values of its first array were known."""
    lesson, module, found = dispatch.lesson(backend), dispatch.load(backend), []

    def watched(name, function):
        def run(X, *arguments, **options):
            found.append((name, isinstance(X, np.ndarray) or module.value_of(X) is not None))
            return function(X, *arguments, **options)

        return run

    for name in STEPS:
        function = watched(name, getattr(lesson, name))
        for chapter in dispatch.CHAPTERS:
            module_of = importlib.import_module(f"mha.backends.{backend}.{chapter}")
            if hasattr(module_of, name):
                monkeypatch.setattr(module_of, name, function)
    return found


def test_the_lesson_runs_at_every_call(backend, rng, ran):
    attention, arrays = make(backend, readable=True), draw(rng)
    output, base = attention(*arrays, [3, 7]), attention.to("numpy")(*arrays, [3, 7])
    assert parity.error(output, base) <= parity.bound(attention.config.dtype, base, base)
    for call in (attention, attention.trace):
        ran.clear()
        call(*arrays, [3, 7])
        expected = set(STEPS) - ({"zero_unused"} if call is attention.trace else set())
        assert {name for name, known in ran if known} >= expected, call


def test_the_lesson_runs_for_gradients(backend, rng, ran):
    attention, arrays = make(backend, readable=True), draw(rng)
    for call in (attention.gradients, attention.vjp):
        ran.clear()
        call(*arrays, [3, 7])
        assert {name for name, _ in ran} >= set(STEPS), call


def test_the_environment_says_it_where_the_argument_does_not(backend, monkeypatch):
    for said, expected in ({"1": True, "0": False, "": False}).items():
        monkeypatch.setenv("MHA_READABLE", said)
        assert make(backend).readable is expected
        assert make(backend, readable=True).readable
        assert not make(backend, readable=False).readable
    monkeypatch.setenv("MHA_READABLE", "yes")
    with pytest.raises(ValueError, match="MHA_READABLE is 'yes', expected one of 0, 1"):
        make(backend)
    with pytest.raises(TypeError, match=r"readable is 1 \(int\), expected True or False"):
        make(backend, readable=1)


def test_another_backend_is_readable_too(backend):
    attention = make(backend, readable=True)
    assert attention.to("numpy").readable
    assert ", readable=True, backend=" in repr(attention)
    assert "readable" not in repr(make(backend))


@pytest.mark.long("jax")  # which compiles every operation; `mha parity --suite full` tries all
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_numbers_are_the_same(backend, monkeypatch, case):
    monkeypatch.setenv("MHA_READABLE", "1")
    assert [str(result) for result in parity.check_case(backend, case, "float64") if not result.passed] == []


def test_dropout_of_a_readable_layer(backend, rng):
    attention, arrays = make(backend, dropout=0.5, readable=True), draw(rng)
    first, second = (attention(*arrays, training=True) for _ in range(2))
    assert not np.array_equal(first, second)
    output, pull_back = attention.vjp(*arrays, training=True)
    one, again = (pull_back(np.ones_like(output)) for _ in range(2))
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert isinstance(attention, mha.MultiHeadAttention)
