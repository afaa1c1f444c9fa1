"""`mha bench --devices`: every way to split a layer is checked and measured; how fast any is, is not tested."""

import copy
import json
import os
import sys
import textwrap
import time
import types

import numpy as np
import pytest
from commands import run
from one_rank import OF_RANKS, measured, of_ranks

from mha.bench import cases, devices, ranks, report
from mha.bench.devices import SplitMeasurement, SplitReport
from mha.bench.steps import UNSPLIT, Results, UnavailableError, Way
from mha.cli import bench as command
from mha.cli import terminal
from mha.core import dispatch

OURS = ["unsplit", "heads", "ulysses", "ring", "gather", "ring in order"]
WAYS = {"torch": [*OURS, "context_parallel"], "jax": OURS}
NUMBERS = ("milliseconds", "rounds", "processor", "busiest", "mebibytes", "share")


# Real devices


@pytest.mark.backends("torch", "jax")
@pytest.mark.long("torch", "jax")
def test_tables_and_json(backend, tmp_path):
    path = tmp_path / "bench.json"
    given = ("--devices", "2", "--shapes", "S32", "--kinds", "training", "--seconds", "0", "--json", str(path))
    result = run("bench", "--backends", backend, *given)
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text(encoding="utf-8"))
    assert set(found) == {"machine", "devices", "rows", "failed"}
    assert (found["devices"], found["failed"]) == (2, [])
    assert [(row["backend"], row["kind"], row["shape"]) for row in found["rows"]] == [
        (backend, "training", "S32") for _ in WAYS[backend]
    ]
    rows = {row["way"]: row for row in found["rows"]}
    assert list(rows) == WAYS[backend]
    for name, row in rows.items():
        if name == "context_parallel":
            assert row["problem"] == "it takes no lengths, window, segments or shared heads of keys"
            assert {row[one] for one in NUMBERS} == {None}
            continue
        assert row["problem"] is None
        assert row["rounds"] == 5
        assert row["milliseconds"] > 0
        assert row["processor"] > 0
        assert row["mebibytes"] >= 0
        if backend == "torch" and name != UNSPLIT:
            assert 1 <= row["busiest"] <= 2
        else:
            assert row["busiest"] is None
    assert rows[UNSPLIT]["processor"] == rows[UNSPLIT]["share"] == 1
    lines = result.stdout.splitlines()
    assert [line.strip() for line in lines if line.startswith(backend)] == [f"{backend}, training, 2 devices"]
    found = [line for line in lines if line.startswith("S32 ")]
    assert all(f" {way} " in line for line, way in zip(found, WAYS[backend], strict=True))


def planted(monkeypatch, folder, backend, code):
    """Let ranks run this code before they measure; bench: the module of a backend that splits layers."""
    start = f"""
        import importlib, os, sys
        from mha.bench import ranks
        from mha.bench.steps import Results
        bench = importlib.import_module("mha.bench.frameworks.ranks.{backend}")
    """
    lines = textwrap.dedent(start) + textwrap.dedent(code) + "ranks.main(sys.argv[1])\n"
    (folder / "planted_ranks.py").write_text(lines, encoding="utf-8")
    monkeypatch.setattr(devices, "WORKER", "planted_ranks")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))


@pytest.mark.backends("torch", "jax")
@pytest.mark.long("torch", "jax")
def test_what_cannot_be_split_says_why_and_segments_are_split(backend, monkeypatch, tmp_path):
    """Five heads on two devices; and lengths, and segments, of which each rank has its rows, 19 or 18."""
    code = """
        from mha.bench import cases
        cases.SHAPES["P"] = cases.Shape("P", 2, 37, 24, 4, keys="all", causal=True, segments=4)
    """
    planted(monkeypatch, tmp_path, backend, code)
    given = ("--devices", "2", "--shapes", "S-ragged,P", "--kinds", "inference", "--seconds", "0", "--no-memory")
    result = run("bench", "--backends", backend, *given, "--json", "-")
    assert result.exit_code == 0, result.output
    rows = {(row["shape"], row["way"]): row for row in json.loads(result.stdout)["rows"]}
    assert list(rows) == [(shape, way) for shape in ("S-ragged", "P") for way in WAYS[backend]]
    refused = {
        "torch": {("S-ragged", "heads"), ("S-ragged", "context_parallel"), ("P", "context_parallel")},
        "jax": {("S-ragged", "heads"), ("S-ragged", "ulysses")},
    }
    assert {place for place, row in rows.items() if row["problem"]} == refused[backend]
    assert rows["S-ragged", "heads"]["problem"].startswith("num_heads is 5, expected a multiple of")
    for place, row in rows.items():
        assert row["mebibytes"] is row["share"] is None
        assert (row["processor"] is None) == (place in refused[backend])


@pytest.mark.backends("torch", "jax")
@pytest.mark.long("torch", "jax")
def test_other_numbers_fail_and_the_rest_is_measured(backend, monkeypatch, tmp_path):
    code = """
        ways = bench.Group.ways

        def wrong(make):
            way = make()
            return way._replace(whole=lambda results: Results(1.01 * way.whole(results).output))

        bench.Group.ways = lambda *given: (found := ways(*given)) | {"ring": lambda: wrong(found["ring"])}
    """
    planted(monkeypatch, tmp_path, backend, code)
    given = ("--devices", "2", "--shapes", "S32", "--kinds", "inference", "--seconds", "0", "--no-memory")
    result = run("bench", "--backends", backend, *given, "--json", "-")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    (line,) = found["failed"]
    assert line.startswith(f"{backend}, inference, S32, ring: ValueError: ring differs by ")
    assert " from unsplit in the output" in line
    assert result.stderr.splitlines()[-1] == f"mha: {line}"
    rows = {row["way"]: row for row in found["rows"]}
    assert rows["ring"]["milliseconds"] is None
    assert rows["ring"]["problem"] in line
    assert rows["gather"]["milliseconds"] > 0


@pytest.mark.backends("torch")
def test_a_rank_that_dies_ends_the_others(backend, monkeypatch, tmp_path):
    planted(monkeypatch, tmp_path, backend, "bench.Group.ways = lambda self, *given: self.rank and os._exit(3)\n")
    given = ("--devices", "2", "--shapes", "S32", "--kinds", "inference", "--seconds", "0", "--json", "-")
    start = time.monotonic()
    result = run("bench", "--backends", backend, *given)
    assert time.monotonic() - start < 60  # far less than ranks wait for one another
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["rows"] == []
    (line,) = found["failed"]
    assert line.startswith(f"{backend}, inference, S32: rank ")


# What is measured, with ways of NumPy on one rank


@pytest.fixture
def ways(monkeypatch):
    """The makers of ways, empty, that the only rank measures; none is of a framework."""
    module = of_ranks()
    monkeypatch.setitem(sys.modules, OF_RANKS, module)
    return module.makers


def maker(value=1.0, taken=None, seconds=0.0, whole=lambda results: results):
    def step():
        time.sleep(seconds)
        return Results(np.full(3, value))

    return lambda: Way(step, whole, taken)


def raises(error):
    def make():
        raise error

    return make


def test_problems_of_ways(ways):
    ways |= {UNSPLIT: maker(), "fine": maker(), "none": raises(UnavailableError("no such call"))}
    halves = maker(2.0, whole=lambda results: Results(results.output / 2))
    ways |= {"wrong": maker(1.5), "broken": raises(KeyError("W_q")), "joined": halves}
    found = measured()
    assert list(found) == list(ways)
    assert found["none"] == {"problem": "no such call", "failed": False}
    assert found["broken"] == {"problem": "KeyError: 'W_q'", "failed": True}
    assert found["wrong"]["failed"]
    assert found["wrong"]["problem"].startswith("ValueError: wrong differs by 5.0e-01 from unsplit in the output")
    assert found["fine"]["rounds"] == found["joined"]["rounds"] == 5


def test_memory(ways):
    ways |= {UNSPLIT: maker(taken=3 * 2**20), "half": maker(taken=3 * 2**19), "none": raises(UnavailableError("no"))}
    found = measured(memory=True)
    assert [(found[name]["mebibytes"], found[name]["share"]) for name in (UNSPLIT, "half")] == [(3.0, 1.0), (1.5, 0.5)]
    assert "mebibytes" not in found["none"]
    assert "mebibytes" not in measured()["half"]
    ways[UNSPLIT] = maker(taken=0)
    assert measured(memory=True)["half"]["share"] is None


def test_memory_of_a_process_is_that_of_one_call(python):
    """Not what is there before the call, nor a peak of long ago: in a process of its own, where nothing else runs."""
    code = """
import sys
import numpy as np
import one_rank
from mha.bench.steps import UNSPLIT, Results, Way

kept = np.ones(2**23)  # 64 MiB

def step():
    return Results(np.ones(2**22)[:3] * kept[:3])  # 32 MiB, gone at once

module = sys.modules[one_rank.OF_RANKS] = one_rank.of_ranks()
module.makers[UNSPLIT] = lambda: Way(step, lambda results: results)
len(np.ones(2**24))
print(one_rank.measured(memory=True)[UNSPLIT]["mebibytes"])
"""
    found = python(code, PYTHONPATH=os.pathsep.join(sys.path))
    assert 31 < float(found) < 48  # the kernel counts pages in batches


def test_fast_calls_are_repeated_until_a_sample_takes_its_time(monkeypatch, ways):
    counts, now = {"slow": 0, UNSPLIT: 0}, [0.0]
    monkeypatch.setattr(ranks, "time", types.SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0]))

    def counted(name, seconds):
        def step():
            counts[name] += 1
            now[0] += seconds
            return Results(np.ones(3))

        return lambda: Way(step, lambda results: results)

    ways |= {UNSPLIT: counted(UNSPLIT, 1 / 1024), "slow": counted("slow", 1 / 16)}
    found = measured()
    assert counts["slow"] == 1 + 1 + 5  # to check, to see how long it takes, in five rounds
    assert counts[UNSPLIT] == 1 + 4 + 5 * 21  # of which 21 take 0.02 s and more
    assert [found[name]["milliseconds"] for name in counts] == [62.5, 0.9765625]


def test_a_turn_lasts_until_the_last_rank_ends(monkeypatch):
    """Of two ranks, of which one begins later and ends later; a third takes no part."""
    said = iter([None, [(10.0, 16.0, 1.0), (12.0, 18.0, 3.0), None]])
    group = types.SimpleNamespace(together=lambda value: next(said))
    assert ranks._turn(group, Way(None, lambda results: results), 4) == (2.0, [0.25, 0.75])


def test_what_rounds_come_to():
    """Medians, that one slow round does not change; of ratios in a round, not those of medians."""
    whole = [(1e-3, [1.0]), (9e-3, [4.0]), (2e-3, [2.0])]
    split = [(3e-3, [1.0, 3.0]), (5e-3, [6.0, 2.0]), (4e-3, [2.0, 2.0])]
    found = ranks.summary([{UNSPLIT: one, "ring": other} for one, other in zip(whole, split, strict=True)])
    assert found[UNSPLIT] == {"milliseconds": pytest.approx(2.0), "rounds": 3, "processor": 1.0, "busiest": None}
    # Of 4, 2, 2 and of 1.5, 1.5, 1.
    assert found["ring"] == {"milliseconds": pytest.approx(4.0), "rounds": 3, "processor": 2.0, "busiest": 1.5}


def test_a_table_of_given_numbers():
    rows = [
        SplitMeasurement("torch", "training", "C", UNSPLIT, 1234.5, 9, 1.0, None, 2048.06, 1.0),
        SplitMeasurement("torch", "training", "C", "ring", 12.34, 9, 2.344, 1.468, 114.5, 0.0559),
        SplitMeasurement("torch", "training", "C", "context_parallel", problem="no such call"),
        SplitMeasurement("torch", "training", "S", UNSPLIT, 1.0, 9, 1.0, None, None, None),
    ]
    console = terminal.console()
    with console.capture() as capture:
        console.print(report.table_of_devices(rows, 4))
    lines = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert lines[0] == "torch, training, 4 devices"
    assert lines[1] == "shape way ms processor time busiest MiB of memory note"
    assert lines[3:6] == [
        "C unsplit 1234 1.00 2,048.1 1.00",
        "C ring 12.3 2.34 1.47 114.5 0.06",
        "C context_parallel no such call",
    ]
    assert "S unsplit 1.00 1.00" in lines


# The command


@pytest.fixture
def asked(monkeypatch):
    """Nothing is measured; the list holds what was asked for."""
    found = []
    monkeypatch.setattr(command, "_measure_devices", lambda *given: found.append(given) or SplitReport(given[0]))
    return found


def test_failures_end_the_command_with_1(monkeypatch):
    """A way that fails has a row and a line, a shape that fails a line; a way that is not there has a row alone."""
    fine = {"milliseconds": 1.0, "rounds": 5, "processor": 1.0, "busiest": None}
    results = {
        "S": {"error": "rank 1: no memory"},
        "M": {"ways": {UNSPLIT: fine, "ring": {"problem": "KeyError: 'W_q'", "failed": True}}},
        "L": {"ways": {UNSPLIT: fine, "heads": {"problem": "num_heads is 5", "failed": False}}},
    }
    monkeypatch.setattr(devices, "BACKENDS", ("numpy",))
    monkeypatch.setattr(devices, "work", lambda backend, count, given, progress: copy.deepcopy(results[given["shape"]]))
    given = ("--backends", "numpy", "--devices", "2", "--kinds", "training")
    result = run("bench", *given, "--shapes", "S,M,L", "--json", "-")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    failed = ["numpy, training, S: rank 1: no memory", "numpy, training, M, ring: KeyError: 'W_q'"]
    assert found["failed"] == failed
    assert [f"mha: {line}" for line in failed] == result.stderr.splitlines()[-2:]
    rows = [(row["shape"], row["way"], row["milliseconds"], row["problem"]) for row in found["rows"]]
    assert rows == [
        ("M", UNSPLIT, 1.0, None), ("M", "ring", None, "KeyError: 'W_q'"),
        ("L", UNSPLIT, 1.0, None), ("L", "heads", None, "num_heads is 5"),
    ]  # fmt: skip
    assert run("bench", *given, "--shapes", "L").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--plot", "bench.svg"], "--plot came with --devices, which draws nothing; leave one of them out"),
        (["--kinds", "decoding"], "--kinds is 'decoding', expected one of inference, training"),
        (["--shapes", "D-16"], "--shapes is 'D-16', expected one of S, S-ragged"),
        (["--shapes", ""], "nothing to measure: expected a kind in --kinds and a shape in --shapes"),
        (["--kinds", ","], "nothing to measure: expected a kind in --kinds and a shape in --shapes"),
        (["--json", "missing/bench.json"], "no folder"),
    ],
)
def test_a_wrong_command_is_one_line_before_anything_is_measured(asked, monkeypatch, arguments, text):
    monkeypatch.setattr(devices, "BACKENDS", ("numpy",))
    result = run("bench", "--backends", "numpy", "--devices", "2", *arguments)
    assert (result.exit_code, asked) == (2, [])
    assert text in result.stderr
    assert result.stderr.startswith("mha: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("count", ["1", "65", "x"])
def test_the_number_of_devices(asked, count):
    result = run("bench", "--devices", count)
    assert (result.exit_code, asked) == (2, [])
    assert "Invalid value for '--devices'" in result.stderr


@pytest.mark.backends("numpy", "tensorflow", "mxnet")
def test_backends_that_split_no_layer_are_refused(asked, backend):
    result = run("bench", "--backends", backend, "--devices", "2")
    assert (result.exit_code, asked) == (2, [])
    expected = f"--backends is {backend!r}, expected torch or jax with --devices: mha.parallel splits layers of these"
    assert result.stderr == f"mha: {expected}\n"


def test_all_that_are_installed_and_split_layers_are_measured(asked, monkeypatch):
    monkeypatch.setattr(devices, "BACKENDS", ("numpy",))
    assert run("bench", "--devices", "3").exit_code == 0
    shapes = [cases.SHAPES["XL-all"], cases.SHAPES["C"]]
    assert asked == [(3, ["numpy"], ["inference", "training"], shapes, 10.0, True)]
    given = ("--shapes", "S, W", "--kinds", "training", "--seconds", "2", "--no-memory")
    assert run("bench", "--backends", "numpy", "--devices", "64", *given).exit_code == 0
    assert asked[1] == (64, ["numpy"], ["training"], [cases.SHAPES["S"], cases.SHAPES["W"]], 2.0, False)


def test_where_no_installed_backend_splits_layers(asked, monkeypatch):
    monkeypatch.setattr(devices, "BACKENDS", ())
    result = run("bench", "--devices", "2")
    assert (result.exit_code, asked) == (2, [])
    assert result.stderr.startswith("mha: --devices needs ")


def test_the_backends_that_split_layers_are_measured():
    able = [name for name, known in dispatch.facts("PARALLEL", ()).items() if {"parallelize", "attend"} & {*known}]
    assert list(devices.BACKENDS) == able
