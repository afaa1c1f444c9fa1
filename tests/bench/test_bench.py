"""`mha bench`: what it measures is right, and what it cannot measure it says; how fast anything is, is not tested."""

import dataclasses
import itertools
import re
import sys
import time

import adapters
import numpy as np
import pytest
from commands import run

import mha
from mha import parity
from mha.bench import cases, peak, report, worker
from mha.bench import run as parent
from mha.bench.cases import Shape
from mha.bench.steps import REFERENCE, Implementation, Results
from mha.parity.cases.run import processes

RAGGED, CAUSAL = Shape("ragged", 3, 37, 22, 2, keys="ragged"), Shape("causal", 2, 31, 22, 2, causal=True)
PACKED = Shape("packed", 2, 31, 22, 2, keys="all", segments=4)
GROUPED, WINDOW = Shape("grouped", 2, 33, 24, 6, G=2), Shape("window", 2, 31, 22, 2, causal=True, window=(6, 0))


# What is measured


def test_the_help_shows_the_shapes():
    text = run("bench", "--help").stdout
    assert re.search(r"Examples:\n.*mha bench", text)
    for name, shape in cases.SHAPES.items():
        if "-" in name:
            assert name in text
            continue
        assert re.search(rf"^ +{name} +{shape.B} +{shape.T} +{shape.D} +{shape.H}\b", text, re.MULTILINE)


def test_floor_by_hand():
    # Three of four keys: W_q and W_o at 2 * 4 places, W_k and W_v at 2 * 3, 6 * 6 each; two products of 2 * 4 * 3 * 6.
    plain = Shape("", B=2, T=4, D=6, H=2)
    assert plain.multiply_adds() == (8 + 6 + 6 + 8) * 36 + 2 * 144 == 1296
    # Four keys, and of each 4 * 4 pairs the 10 in order.
    assert Shape("", B=2, T=4, D=6, H=2, causal=True).multiply_adds() == 4 * 8 * 36 + 2 * 2 * 10 * 6
    lengths = Shape("", B=5, T=7, D=6, H=2, keys="ragged").lengths()
    by_sample = [(7 + length) * 2 * 36 + 2 * 7 * int(length) * 6 for length in lengths]
    assert Shape("", B=5, T=7, D=6, H=2, keys="ragged").multiply_adds() == sum(by_sample)
    # W_k and W_v of one head of two.
    assert Shape("", B=2, T=4, D=6, H=2, G=1).multiply_adds() == (8 + 3 + 3 + 8) * 36 + 2 * 144
    # And of two heads of six: 12 * 4 each.
    grouped = Shape("", B=2, T=4, D=12, H=6, G=2)
    assert grouped.multiply_adds() == (8 + 8) * 144 + (6 + 6) * 48 + 2 * 288
    # Of a query, its own key, the one before and the two after.
    both_ways = Shape("", B=2, T=4, D=6, H=2, window=(1, 2))
    assert both_ways.multiply_adds() == 4 * 8 * 36 + 2 * 2 * (4 + 3 + 3 + 2) * 6
    # Two segments of two: 2 * 2 pairs each.
    assert Shape("", B=3, T=4, D=6, H=2, keys="all", segments=2).multiply_adds() == 3 * (4 * 4 * 36 + 2 * 8 * 6)
    # Two operations each, 2 GFLOP/s = 2e6 in a millisecond.
    assert plain.floor("inference", 2.0) == pytest.approx(1296e-6)
    assert plain.floor("training", 2.0) == pytest.approx(3 * 1296e-6)


def test_pairs_that_are_seen_are_those_of_the_layer():
    """The mask that frameworks are given, and the pairs that are counted, beside the weights that are not 0."""
    windows = [None, (6, 0), (0, None), (None, 3), (2, 40)]
    for window, causal, keys in itertools.product(windows, [True, False], ["equal", "ragged", "all"]):
        shape = dataclasses.replace(WINDOW, window=window, causal=causal, keys=keys)
        X, lengths = shape.inputs(), shape.lengths()
        weights = shape.layer("numpy")(X, X, X, lengths, causal=causal, return_weights=True)[1]
        seen = np.count_nonzero(weights[:, 0])
        keys = shape.B * shape.T if lengths is None else lengths.sum()
        assert shape.multiply_adds() == 2 * (shape.B * shape.T + keys) * 22**2 + 2 * seen * 22
        mask = np.ones((1, 1, shape.T), bool) if shape.mask() is None else shape.mask()
        assert np.array_equal(np.broadcast_to(mask, weights[:, 0].shape), weights[:, 0] > 0)
    X, segments = PACKED.inputs(), PACKED.segment_numbers()
    weights = PACKED.layer("numpy")(X, X, X, segments=segments, return_weights=True)[1][:, 0]
    assert np.array_equal(PACKED.mask(), weights > 0)
    assert PACKED.multiply_adds() == 4 * 2 * 31 * 22**2 + 2 * np.count_nonzero(weights) * 22


def test_a_shape_without_its_option():
    passes = cases.of_kind("inference", cases.SHAPES.values())
    assert {shape.name: shape.simpler() for shape in passes if shape.simpler()} == {
        "G": {"8 key-value heads": dataclasses.replace(cases.SHAPES["XL"], name="G")},
        "W": {"no window": dataclasses.replace(cases.SHAPES["C"], name="W")},
        "P": {"no segments": Shape("P", 1, 4096, 256, 4, keys="all")},
    }


# All shapes but the first. Where a backend compiles, training computes outputs too.
MORE = {"inference": pytest.mark.backends(*adapters.EAGER), "training": pytest.mark.long(*adapters.COMPILED)}
WAYS = [
    pytest.param(kind, shape, id=f"{kind}-{shape.name}", marks=MORE[kind] if more else ())
    for kind in cases.PASSES
    for more, shape in enumerate([RAGGED, GROUPED, WINDOW, PACKED])
]


@pytest.mark.parametrize(("kind", "shape"), WAYS)
def test_implementations_compute_what_numpy_computes(backend, kind, shape):
    assert_implementations(backend, kind, shape, lambda role: role != "second kernel")


@pytest.mark.backends("torch")
@pytest.mark.long("torch")
def test_a_kernel_that_is_compiled_computes_what_numpy_computes(backend):
    assert_implementations(backend, "inference", PACKED, lambda role: role == "second kernel")


def assert_implementations(backend, kind, shape, chosen):
    """Those of a backend whose role is chosen, one at least, compute what NumPy computes."""
    options = {"num_key_value_heads": shape.G, "window": shape.window}
    attention = mha.MultiHeadAttention(shape.D, shape.H, **options, backend="numpy")
    base, oracle = computed(attention, shape, kind), computed(parity.in_dtype(attention, "float64"), shape, kind)
    made = worker._module(backend).passes(attention.to(backend), shape, kind)
    made = {name: one for name, one in made.items() if chosen(one.role)}
    assert made
    for name, implementation in made.items():
        results = implementation.make()()
        found = {} if results.output is None else {"output": mha.to_numpy(results.output)}
        if kind == "training":
            found["input"] = sum(map(mha.to_numpy, results.by_input))
            found["weights"] = in_order(map(mha.to_numpy, results.by_weights))
        gradients_alone = kind == "training" and (
            adapters.lacks(backend, "automatic differentiation") or name.startswith("attention.gradients")
        )
        assert set(oracle) - set(found) == ({"output"} if gradients_alone else set())
        for part, X in found.items():
            limit = parity.bound("float32", oracle[part], base[part], gradient=part != "output")
            assert parity.error(X, oracle[part]) <= limit, (name, part)


def computed(attention, shape, kind):
    """The output, in training also the gradient by the input, and those by all weights in one array in order."""
    dtype = attention.config.dtype
    X, cotangent = shape.inputs().astype(dtype), shape.cotangent().astype(dtype)
    call = {"valid_lens": shape.lengths(), **shape.call()}
    output = {"output": attention(X, X, X, **call)}
    if kind == "inference":
        return output
    gradients = attention.gradients(X, X, X, **call, cotangent=cotangent)
    by_input = sum(gradients.pop(name) for name in ("queries", "keys", "values"))
    return output | {"input": by_input, "weights": in_order(gradients.values())}


def in_order(arrays):
    """All numbers of some arrays in order, so that it does not matter how an implementation packs its weights.

    Two arrays in order are never further from each other than the two as they were.
    """
    return np.sort(np.concatenate([X.reshape(-1) for X in arrays]))


@pytest.mark.parametrize("kind", cases.PASSES)
def test_a_worker_names_the_implementations(backend, kind):
    found = worker.implementations(backend, kind)["roles"]
    assert set(found) == {name for name, shape in (cases.SHAPES | cases.SWEEP).items() if not shape.decodes}
    for roles in found.values():
        assert next(iter(roles)) == REFERENCE
    for name in cases.SWEEP:
        assert len({report.LOOKS[role] for role in found[name].values()}) == len(found[name])
    for shape, like in {"S": CAUSAL, "C": CAUSAL, "T128": CAUSAL, "G": GROUPED, "W": WINDOW, "P": PACKED}.items():
        made = worker._module(backend).passes(like.layer(backend), like, kind)
        roles = {name: implementation.role for name, implementation in made.items()}
        others = cases.find(shape).simpler()
        assert found[shape] == roles | {f"{REFERENCE}, {other}": "simpler layer" for other in others}


@pytest.mark.parametrize("kind", cases.PASSES)
def test_the_frameworks_own_ways_stand_beside_ours(backend, kind):
    of_theirs, framework = ("native", "eager native", "second native", "kernel"), adapters.of(backend)
    for shape, roles in worker.implementations(backend, kind)["roles"].items():
        theirs = {name for name, role in roles.items() if role in of_theirs}
        assert theirs == set(framework.beside_groups if shape == "G" else framework.beside)
        compiled = {name for name, role in roles.items() if role == "second kernel"}
        assert compiled == set(framework.beside_segments if (shape, kind) == ("P", "inference") else ())


# A worker


def planted(monkeypatch, steps):
    """Give NumPy these steps by name in place of what it has, and return its benchmarks."""
    module = worker._module("numpy")
    made = {name: Implementation(name, lambda step=step: step) for name, step in steps.items()}
    monkeypatch.setattr(module, "passes", lambda *_: made)
    return module


def test_a_wrong_implementation_is_refused(monkeypatch):
    one = np.ones(3, "float32")
    planted(monkeypatch, {REFERENCE: lambda: Results(one), "readable": lambda: Results(1.001 * one)})
    with pytest.raises(ValueError, match=r"^readable differs by .* from attention.layer in the output"):
        worker.times("numpy", "S", "inference", [REFERENCE, "readable"], 0)


RIGHT = Results(np.float32([1.0]), (np.float32([0.5]),), (np.float32([7.0]),))


@pytest.mark.parametrize("wrong", ["output", "by_input"])
@pytest.mark.parametrize("found", [1.00015, -1.0, np.nan, [1.0, 1.0]])
def test_output_and_gradient_by_the_input_must_agree(wrong, found):
    other = getattr(RIGHT, wrong)
    other = (other[0] * np.float32(found),) if wrong == "by_input" else other * np.float32(found)
    worker.check_agreement({"first": RIGHT, "same": RIGHT}.items())
    with pytest.raises(ValueError, match=r"^other differs"):
        worker.check_agreement({"first": RIGHT, "same": RIGHT, "other": RIGHT._replace(**{wrong: other})}.items())


def test_parts_of_the_gradient_by_the_input_are_added_and_a_missing_output_is_not_compared():
    parts = Results(None, tuple(np.float32([X]) for X in (0.25, 0.125, 0.125)))
    for results in ({"first": RIGHT, "other": parts}, {"first": parts, "other": RIGHT}):
        worker.check_agreement(results.items())
    with pytest.raises(ValueError, match=r"^other differs by 1.2e-01 from first in the gradient"):
        worker.check_agreement({"first": RIGHT, "other": parts._replace(by_input=parts.by_input[:2])}.items())


def test_times(monkeypatch):
    """A clock that runs as the steps say: 3 and 6 ms."""
    now, order, calls = [0.0], [], {REFERENCE: 0, "readable": 0}

    def step(name, seconds):
        def call():
            order.append(name)
            calls[name] += 1
            now[0] += seconds
            return Results(np.ones(1))

        return call

    module = planted(monkeypatch, {REFERENCE: step(REFERENCE, 3e-3), "readable": step("readable", 6e-3)})
    monkeypatch.setattr(module, "product", lambda A: lambda: now.__setitem__(0, now[0] + len(A) * 1e-6))
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    result = worker.times("numpy", "S", "inference", [REFERENCE, "readable"], 0.5)
    # A sample lasts 7 * 3 and 4 * 6 ms, a round 45: the twelfth ends after half a second.
    assert result["rounds"] == 12
    assert result["milliseconds"] == pytest.approx({REFERENCE: 3.0, "readable": 6.0})
    assert result["ratios"] == {"readable": pytest.approx([2.0, 2.0, 2.0])}
    assert result["overheads"] == {"readable": pytest.approx(3000.0)}
    assert result["rate"] == pytest.approx(2 * 1024**3 / 1024e-6 / 1e9)
    assert [order[8 : 8 + 22].index(name) for name in calls] == [0, 7]
    assert order[8 + 11 : 8 + 22] == 4 * ["readable"] + 7 * [REFERENCE]
    assert worker.times("numpy", "S", "inference", ["readable"], 0)["ratios"] == {}
    assert worker.times("numpy", "S", "inference", [REFERENCE, "readable"], 0)["rounds"] == 5


def test_what_rounds_come_to():
    """Medians, that one slow round does not change; of ratios and differences, not those of medians."""
    layer, readable = [1e-3, 9e-3, 2e-3, 4e-3, 3e-3], [2e-3, 9e-3, 8e-3, 6e-3, 3e-3]
    rounds = [{REFERENCE: one, "readable": other} for one, other in zip(layer, readable, strict=True)]
    result = worker.summary(rounds)
    assert result["milliseconds"] == pytest.approx({REFERENCE: 3.0, "readable": 6.0})
    assert result["ratios"] == {"readable": pytest.approx([1.0, 1.5, 2.0])}  # of 2, 1, 4, 1.5, 1
    assert result["overheads"] == {"readable": pytest.approx(1000.0)}  # of 1000, 0, 6000, 2000, 0
    assert worker.summary([{"readable": 1.0}]) == {"milliseconds": {"readable": 1000.0}, "ratios": {}, "overheads": {}}


def test_peak_memory():
    before = peak.reset_peak()
    len(np.ones(2**23))  # 64 MiB, gone at once
    assert 63 < (peak.peak() - before) / 2**20 < 80  # the kernel counts pages in batches
    assert (peak.peak() - peak.reset_peak()) / 2**20 > 60
    assert peak.peak() - peak.reset_peak() < 2**20


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_peak_memory_where_no_file_tells_it(monkeypatch, platform, unit):
    import resource

    def no_file(field):
        raise OSError(field)

    monkeypatch.setattr(peak, "_status", no_file)
    monkeypatch.setattr(peak.sys, "platform", platform)
    assert peak.peak() == unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.long(*adapters.COMPILED)
def test_a_worker_of_each_backend(backend):
    names = [REFERENCE, "readable"]
    result = parent.work("times", backend=backend, shape="S", kind="inference", names=names, seconds=0)
    assert set(result) == {"rate", "rounds", "milliseconds", "ratios", "overheads"}, result
    assert (result["rounds"], list(result["milliseconds"])) == (5, names)


def test_a_worker_says_what_there_is_to_measure():
    roles = parent.work("implementations", backend="numpy", kind="inference")["roles"]
    assert roles["S"] == {REFERENCE: "layer", "readable": "readable", "attention(...), NumPy arrays": "call"}
    assert roles["W"] == roles["S"] | {f"{REFERENCE}, no window": "simpler layer"}


def test_users_calls_are_measured_on_every_backend(backend):
    inference, training = (worker.implementations(backend, kind)["roles"] for kind in cases.PASSES)
    of = ["own arrays"] * (not adapters.lacks(backend, "arrays of its own")) + ["NumPy arrays"]
    for shape in inference.keys() & cases.SHAPES:
        calls = {name for name, role in (inference[shape] | training[shape]).items() if role in report.CALLS}
        assert calls == {f"attention(...), {arrays}" for arrays in of} | {f"attention.gradients(...), {of[0]}"}


def test_a_worker_that_fails_is_one_line(monkeypatch, tmp_path):
    assert "no_such" in parent.work("times", backend="numpy", shape="no_such", kind="", names=[], seconds=0)["error"]
    script = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(script))
    script.write_text("#!/bin/sh\necho hello\necho '{\"rate\": 1.0}'\n", encoding="utf-8")
    script.chmod(0o755)
    assert parent.work("times") == {"rate": 1.0}
    for code, error in {
        "kill -9 $$": "the process was ended by signal 9 (SIGKILL); memory may have run out",
        "kill -11 $$": "the process was ended by signal 11 (SIGSEGV)",
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
            return {"roles": {shape: {REFERENCE: "layer", "readable": "readable"} for shape in cases.SWEEP}}
        asked.append((what, arguments["shape"], arguments.get("name") or arguments["names"]))
        if what == "memory":
            return {
                "mebibytes": {REFERENCE: 1.0, "readable": (cases.SWEEP[arguments["shape"]].T / 128) ** 2}[
                    arguments["name"]
                ]
            }
        milliseconds = dict.fromkeys(arguments["names"], 2.0)
        return {"rate": 1.0, "rounds": 5, "milliseconds": milliseconds, "ratios": {}, "overheads": {}}

    monkeypatch.setattr(parent, "work", work)
    monkeypatch.setattr(parent, "available", lambda: 110.0)
    runner, shown = parent.Runner(0, lambda now: shown.append(now)), []
    runner.sweep("numpy", "inference")
    # 1 and 4 MiB; four times 4 are less than half of 110, four times 16 are not.
    assert [shape for what, shape, name in asked if name == "readable"] == ["T128", "T256", "T512"]
    assert [shape for what, shape, name in asked if name == REFERENCE] == list(cases.SWEEP)
    timed = [names for what, shape, names in asked if what == "times"]
    assert timed == 3 * [[REFERENCE, "readable"]] + 4 * [[REFERENCE]]
    assert runner.report.left_out == [
        "numpy, inference: readable beyond T = 512, where it took 16 of 110 MiB that were free"
    ]
    assert len(runner.report.sweep) == 3 + 7
    assert shown[0] == "numpy, inference: implementations"
    assert len(shown) - 1 == len(asked) == runner.steps(["numpy"], ["inference"], [], True, True) - 4


def test_the_memory_that_is_free():
    assert 10 < processes.available() < 2**24
