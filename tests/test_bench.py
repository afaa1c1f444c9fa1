"""`mha bench`: what it measures is right, and what it cannot measure it says; how fast anything is, is not tested."""

import importlib
import importlib.util
import re
import sys
import time

import numpy as np
import pytest
from commands import run

import mha
from mha import dispatch, parity
from mha.bench import cases, report, worker
from mha.bench import run as parent
from mha.bench.cases import Implementation, Shape

HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
RAGGED, CAUSAL = Shape("ragged", 3, 37, 22, 2, ragged=True), Shape("causal", 2, 31, 22, 2, causal=True)


# What is measured


def test_shapes():
    sizes = {name: (shape.B, shape.T, shape.D, shape.H) for name, shape in cases.SHAPES.items()}
    assert sizes == {
        "S": (2, 8, 100, 5), "M": (8, 128, 512, 8), "L": (1, 1024, 768, 12), "XL": (1, 4096, 512, 8),
        "R": (16, 512, 512, 8), "C": (1, 4096, 512, 8),
    }  # fmt: skip
    assert [name for name, shape in cases.SHAPES.items() if shape.causal] == ["C"]
    assert cases.SHAPES["C"].lengths() is None
    assert cases.SHAPES["M"].lengths().tolist() == 8 * [96]
    ragged = cases.SHAPES["R"].lengths()
    assert len(set(ragged)) > 10
    assert 1 <= min(ragged) < 128 < 384 < max(ragged) <= 512
    assert set(Shape("", 99, 3, 1, 1, ragged=True).lengths()) == {1, 2, 3}
    assert cases.SHAPES["S"].inputs().shape == cases.SHAPES["S"].cotangent().shape == (2, 8, 100)


def test_the_help_shows_the_shapes():
    text = run("bench", "--help").stdout
    assert re.search(r"Examples:\n.*mha bench", text)
    for name, shape in cases.SHAPES.items():
        assert re.search(rf"^ +{name} +{shape.B} +{shape.T} +{shape.D} +{shape.H}\b", text, re.MULTILINE)


def test_floor_by_hand():
    # Three of four keys: W_q and W_o at 2 * 4 places, W_k and W_v at 2 * 3, 6 * 6 each; two products of 2 * 4 * 3 * 6.
    plain = Shape("", B=2, T=4, D=6, H=2)
    assert plain.multiply_adds() == (8 + 6 + 6 + 8) * 36 + 2 * 144 == 1296
    # Four keys, and of each 4 * 4 pairs the 10 in order.
    assert Shape("", B=2, T=4, D=6, H=2, causal=True).multiply_adds() == 4 * 8 * 36 + 2 * 2 * 10 * 6
    lengths = Shape("", B=5, T=7, D=6, H=2, ragged=True).lengths()
    by_sample = [(7 + length) * 2 * 36 + 2 * 7 * int(length) * 6 for length in lengths]
    assert Shape("", B=5, T=7, D=6, H=2, ragged=True).multiply_adds() == sum(by_sample)
    # Two operations each, 2 GFLOP/s = 2e6 in a millisecond.
    assert plain.floor("inference", 2.0) == pytest.approx(1296e-6)
    assert plain.floor("training", 2.0) == pytest.approx(3 * 1296e-6)


@pytest.mark.parametrize("shape", [RAGGED, CAUSAL], ids=lambda shape: shape.name)
@pytest.mark.parametrize("kind", cases.KINDS)
def test_implementations_compute_what_numpy_computes(backend, kind, shape):
    to_numpy = dispatch.load(backend).to_numpy
    attention = mha.MultiHeadAttention(shape.D, shape.H, backend="numpy")
    base, oracle = computed(attention, shape, kind), computed(parity.in_dtype(attention, "float64"), shape, kind)
    if (backend, kind) == ("numpy", "training"):  # its backward pass gives no output
        base, oracle = base[1:], oracle[1:]
    made = worker._module(backend).implementations(attention.to(backend), shape, kind)
    for name, implementation in made.items():
        found = [to_numpy(result) for result in implementation.make()()]
        if kind == "training":
            found = [*found[: len(oracle) - 1], in_order(found[len(oracle) - 1 :])]
        for X, exact, based in zip(found, oracle, base, strict=True):
            assert parity.error(X, exact) <= parity.bound("float32", exact, based, gradient=kind == "training"), name


def computed(attention, shape, kind):
    """The output, in training also the gradients by the input, and those by all weights in one array in order."""
    dtype = attention.config.dtype
    X, cotangent = shape.inputs().astype(dtype), shape.cotangent().astype(dtype)
    call = {"valid_lens": shape.lengths(), "causal": shape.causal}
    output = attention(X, X, X, **call)
    if kind == "inference":
        return [output]
    gradients = attention.gradients(X, X, X, **call, cotangent=cotangent)
    by_input = sum(gradients.pop(name) for name in ("queries", "keys", "values"))
    return [output, by_input, in_order(gradients.values())]


def in_order(arrays):
    """All numbers of some arrays in order, so that it does not matter how an implementation packs its weights.

    Two arrays in order are never further from each other than the two as they were.
    """
    return np.sort(np.concatenate([X.reshape(-1) for X in arrays]))


@pytest.mark.parametrize("kind", cases.KINDS)
def test_a_worker_names_the_implementations(backend, kind):
    roles = worker.implementations(backend, kind)["roles"]
    assert next(iter(roles)) == "fast"
    assert len({report.LOOKS[role] for role in roles.values()}) == len(roles)
    made = worker._module(backend).implementations(mha.MultiHeadAttention(22, 2, backend=backend), CAUSAL, kind)
    assert roles == {name: implementation.role for name, implementation in made.items()}


# A worker


def planted(monkeypatch, **steps):
    """Give NumPy these steps in place of what it has, and return its benchmarks."""
    module = worker._module("numpy")
    made = {name: Implementation(name, lambda step=step: step) for name, step in steps.items()}
    monkeypatch.setattr(module, "implementations", lambda *_: made)
    return module


def test_a_wrong_implementation_is_refused(monkeypatch):
    one = np.ones(3, "float32")
    planted(monkeypatch, fast=lambda: [one], readable=lambda: [1.001 * one])
    with pytest.raises(ValueError, match=r"^readable differs by .* from fast"):
        worker.times("numpy", "S", "inference", ["fast", "readable"], 0)


@pytest.mark.parametrize("wrong", [0, 1])
@pytest.mark.parametrize("found", [1.0002, -1.0, np.nan, [1.0, 1.0]])
def test_output_and_gradient_by_the_input_must_agree(wrong, found):
    right = [np.float32([1.0]), np.float32([0.5])]
    other = [*right]
    other[wrong] = right[wrong] * np.float32(found)
    worker.check_agreement({"fast": lambda: right, "same": lambda: right}, np.asarray)
    with pytest.raises(ValueError, match=r"^other differs"):
        worker.check_agreement({"fast": lambda: right, "same": lambda: right, "other": lambda: other}, np.asarray)


def test_times(monkeypatch):
    """A clock that runs as the steps say: 3 and 6 ms."""
    now, order, calls = [0.0], [], {"fast": 0, "readable": 0}

    def step(name, seconds):
        def call():
            order.append(name)
            calls[name] += 1
            now[0] += seconds
            return [np.ones(1)]

        return call

    module = planted(monkeypatch, fast=step("fast", 3e-3), readable=step("readable", 6e-3))
    monkeypatch.setattr(module, "product", lambda A: lambda: now.__setitem__(0, now[0] + len(A) * 1e-6))
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    result = worker.times("numpy", "S", "inference", ["fast", "readable"], 0.5)
    # A sample lasts 7 * 3 and 4 * 6 ms, a round 45: the twelfth ends after half a second.
    assert result["rounds"] == 12
    assert result["milliseconds"] == pytest.approx({"fast": 3.0, "readable": 6.0})
    assert result["ratios"] == {"readable": pytest.approx([2.0, 2.0, 2.0])}
    assert result["rate"] == pytest.approx(2 * 1024**3 / 1024e-6 / 1e9)
    assert [order[8 : 8 + 22].index(name) for name in calls] == [0, 7]
    assert order[8 + 11 : 8 + 22] == 4 * ["readable"] + 7 * ["fast"]
    assert worker.times("numpy", "S", "inference", ["readable"], 0)["ratios"] == {}
    assert worker.times("numpy", "S", "inference", ["fast", "readable"], 0)["rounds"] == 5


def test_what_rounds_come_to():
    """Medians, that one slow round does not change; of ratios, not a ratio of medians."""
    fast, readable = [1e-3, 9e-3, 2e-3, 4e-3, 3e-3], [2e-3, 9e-3, 8e-3, 6e-3, 3e-3]  # ratios 2, 1, 4, 1.5, 1
    rounds = [{"fast": one, "readable": other} for one, other in zip(fast, readable, strict=True)]
    result = worker.summary(rounds)
    assert result["milliseconds"] == pytest.approx({"fast": 3.0, "readable": 6.0})
    assert result["ratios"] == {"readable": pytest.approx([1.0, 1.5, 2.0])}


def test_peak_memory():
    before = worker._reset_peak()
    len(np.ones(2**23))  # 64 MiB, gone at once
    assert 63 < (worker._peak() - before) / 2**20 < 80  # the kernel counts pages in batches
    assert (worker._peak() - worker._reset_peak()) / 2**20 > 60
    assert worker._peak() - worker._reset_peak() < 2**20


def test_a_worker_of_each_backend(backend):
    result = parent.work("times", backend=backend, shape="S", kind="inference", names=["fast", "readable"], seconds=0)
    assert set(result) == {"rate", "rounds", "milliseconds", "ratios"}, result
    assert result["rounds"] == 5
    assert list(result["milliseconds"]) == ["fast", "readable"]


def test_a_worker_says_what_there_is_to_measure():
    assert parent.work("implementations", backend="numpy", kind="training") == {"roles": {"fast": "fast"}}


def test_a_worker_that_fails_is_one_line(monkeypatch, tmp_path):
    assert "no_such" in parent.work("times", backend="numpy", shape="no_such", kind="", names=[], seconds=0)["error"]
    script = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(script))
    script.write_text("#!/bin/sh\necho hello\necho '{\"rate\": 1.0}'\n", encoding="utf-8")
    script.chmod(0o755)
    assert parent.work("times") == {"rate": 1.0}
    for code, error in {
        "kill -9 $$": "the process was ended by signal 9; 9 may mean that memory ran out",
        "kill -11 $$": "the process was ended by signal 11",
        "echo one >&2; echo two >&2; exit 3": "two",
        "exit 3": "the process ended with 3",
    }.items():
        script.write_text(f"#!/bin/sh\n{code}\n", encoding="utf-8")
        assert parent.work("times") == {"error": error}


# The sweep


def test_the_sweep_ends_where_memory_would(monkeypatch):
    asked = []

    def work(what, **arguments):
        if what == "implementations":
            return {"roles": {"fast": "fast", "readable": "readable"}}
        asked.append((what, arguments["shape"], arguments.get("name") or arguments["names"]))
        if what == "memory":
            return {
                "mebibytes": {"fast": 1.0, "readable": (cases.SWEEP[arguments["shape"]].T / 128) ** 2}[
                    arguments["name"]
                ]
            }
        return {"rate": 1.0, "rounds": 5, "milliseconds": dict.fromkeys(arguments["names"], 2.0), "ratios": {}}

    monkeypatch.setattr(parent, "work", work)
    monkeypatch.setattr(parent, "available", lambda: 110.0)
    runner, shown = parent.Runner(0, lambda now: shown.append(now)), []
    runner.sweep("numpy", "inference")
    # 1 and 4 MiB; four times 4 are less than half of 110, four times 16 are not.
    assert [shape for what, shape, name in asked if name == "readable"] == ["T128", "T256", "T512"]
    assert [shape for what, shape, name in asked if name == "fast"] == list(cases.SWEEP)
    assert [names for what, shape, names in asked if what == "times"] == 3 * [["fast", "readable"]] + 4 * [["fast"]]
    assert runner.report.left_out == [
        "numpy, inference: readable beyond T = 512, where it took 16 of 110 MiB that were free"
    ]
    assert len(runner.report.sweep) == 3 + 7
    assert shown[0] == "numpy, inference: implementations"
    assert len(shown) - 1 == len(asked) == runner.steps(["numpy"], ["inference"], [], True, True) - 4


def test_the_memory_that_is_free():
    assert 10 < parent.available() < 2**24
