"""`mha bench`: what it measures is right, and what it cannot measure it says; how fast anything is, is not tested."""

import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import run

import mha
from mha import dispatch, parity
from mha.benchmarks import cases, report, worker
from mha.benchmarks import run as parent
from mha.benchmarks.cases import Shape
from mha.benchmarks.run import Report, Row
from mha.cli import bench as command
from mha.cli import terminal

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
    X, call = shape.inputs(), {"valid_lens": shape.lengths(), "causal": shape.causal}
    gradients = attention.gradients(X, X, X, **call, cotangent=shape.cotangent())
    expected = [sum(gradients.pop(name) for name in ("queries", "keys", "values"))] if kind == "training" else []
    expected = [*([] if (backend, kind) == ("numpy", "training") else [attention(X, X, X, **call)]), *expected]
    made = importlib.import_module(f"mha.benchmarks.{backend}").implementations(attention.to(backend), shape, kind)
    assert list(made) == cases.implementations(backend, kind)
    for name, make in made.items():
        results = [to_numpy(result) for result in make()()]
        for found, array in zip(results, expected, strict=False):
            assert parity.error(found, array) <= 1e-5 * parity.largest(array), name
        # As many gradients as weights, of the same norm all in all, however an implementation packs them.
        assert (len(results) > len(expected)) == (kind == "training")
        norms = [
            sum(float((W.astype("float64") ** 2).sum()) for W in some)
            for some in (results[len(expected) :], gradients.values())
        ]
        assert kind == "inference" or norms[0] == pytest.approx(norms[1], rel=1e-4), name


def test_looks_tell_the_roles_of_a_backend_apart():
    for roles in cases.IMPLEMENTATIONS.values():
        assert len({report.LOOKS[role] for role in roles.values()}) == len(roles)
    assert set(cases.IMPLEMENTATIONS) == set(dispatch.FRAMEWORKS)


# A worker


def test_a_wrong_implementation_is_refused(monkeypatch):
    module = importlib.import_module("mha.benchmarks.numpy")
    implementations = module.implementations

    def planted(*arguments):
        made = implementations(*arguments)
        return made | {"readable": lambda: lambda: [1.001 * X for X in made["readable"]()()]}

    monkeypatch.setattr(module, "implementations", planted)
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

        return lambda: call

    module = importlib.import_module("mha.benchmarks.numpy")
    monkeypatch.setattr(
        module, "implementations", lambda *_: {"fast": step("fast", 3e-3), "readable": step("readable", 6e-3)}
    )
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
    assert len(shown) == len(asked) == parent.steps(["numpy"], ["inference"], [], True, True) - 4


def test_the_memory_that_is_free():
    assert 10 < parent.available() < 2**24


# The command


def test_tables_and_json(tmp_path):
    path = tmp_path / "bench.json"
    result = run("bench", "--backends", "numpy", "--shapes", "S", "--seconds", "0", "--json", str(path))
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text(encoding="utf-8"))
    assert set(found) == {"machine", "rows", "sweep", "failed", "left_out"}
    assert found["sweep"] == found["failed"] == found["left_out"] == []
    names = [(row["kind"], row["shape"], row["implementation"]) for row in found["rows"]]
    assert names == [("inference", "S", "fast"), ("inference", "S", "readable"), ("training", "S", "fast")]
    for row in found["rows"]:
        assert row["milliseconds"] > 0
        assert row["mebibytes"] >= 0
        assert row["rounds"] == 5
        assert row["floor"] == pytest.approx(cases.SHAPES["S"].floor(row["kind"], row["rate"]))
        assert (row["ratios"] is None) == (row["implementation"] == "fast")
        assert row["ratios"] is None or row["ratios"] == sorted(row["ratios"])
    lines = result.stdout.splitlines()
    assert f"{os.cpu_count()} cores" in lines[0]
    assert f"numpy {np.__version__}" in lines[2]
    assert [line.strip() for line in lines if line.startswith("numpy")] == ["numpy, inference", "numpy, training"]
    assert sum(line.startswith("S ") for line in lines) == 3 + 2
    assert max(map(len, lines[3:])) <= 100
    assert list(tmp_path.iterdir()) == [path]


def test_a_table_of_given_numbers():
    rows = [
        Row("torch", "training", "XL", "fast", 1234.5, 9, None, 2048.06, 61.28, 99.0),
        Row("torch", "training", "XL", "F.scaled_dot_product_attention", 12.34, 9, [0.5, 1.25, 2.0], None, 61.28, 99.0),
        Row("torch", "training", "C", "fast"),
    ]
    console = terminal.console()
    with console.capture() as capture:
        console.print(report.table(rows))
    lines = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert lines[0] == "torch, training"
    assert lines[3:6] == [
        "XL fast 1234 2,048.1",
        "XL F.scaled_dot_product_attention 12.3 1.25 (0.50 to 2.00)",
        "XL matrix products alone 61.3",
    ]
    assert "C fast" in lines
    assert max(map(len, capture.get().splitlines())) <= 100


def test_a_failure_is_said_and_the_rest_is_shown(monkeypatch):
    work = parent.work

    def fails(what, **arguments):
        return {"error": "RuntimeError: planted"} if arguments.get("name") == "readable" else work(what, **arguments)

    monkeypatch.setattr(parent, "work", fails)
    result = run(
        "bench", "--backends", "numpy", "--shapes", "S", "--kinds", "inference", "--seconds", "0", "--json", "-"
    )
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "mha: numpy, inference, S, readable: RuntimeError: planted"
    fast, readable = json.loads(result.stdout)["rows"]
    assert fast["milliseconds"] > 0
    assert readable["milliseconds"] is readable["mebibytes"] is None


@pytest.fixture
def measured(monkeypatch):
    """Nothing is measured: the rows of a sweep that was given; the list holds what was asked for."""
    asked = []
    sweep = [
        Row(backend, kind, shape.name, name, len(kind) * shape.T + i, 5, None, 1e-3 * shape.T + i)
        for backend in ("torch", "jax")
        for kind in cases.KINDS
        for shape in cases.SWEEP.values()
        for i, name in enumerate(cases.IMPLEMENTATIONS[backend])
    ]
    monkeypatch.setattr(command, "_measure", lambda *arguments: asked.append(arguments) or Report(sweep=sweep))
    return asked


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--backends", "cupy"], "backend is 'cupy', expected one of numpy, torch, tensorflow, jax, mxnet"),
        (["--shapes", "S,Q"], "--shapes is 'Q', expected one of S, M, L, XL, R, C"),
        (["--shapes", "T128"], "--shapes is 'T128', expected one of S, M, L, XL, R, C"),
        (["--kinds", "both"], "--kinds is 'both', expected one of inference, training"),
        (["--shapes", ""], "nothing is to be measured, expected a kind and a shape, or --plot"),
        (["--kinds", ","], "nothing is to be measured, expected a kind and a shape, or --plot"),
        (["--json", "missing/bench.json"], "no folder"),
        (["--json", "."], "no regular file"),
    ],
)
def test_a_wrong_command_is_one_line_before_anything_is_measured(measured, arguments, text):
    result = run("bench", "--backends", "numpy", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert result.stderr.startswith("mha: ")
    assert result.stderr.count("\n") == 1
    assert measured == []


def test_a_missing_framework_is_one_line(measured, absent):
    result = run("bench", "--backends", absent)
    assert (result.exit_code, measured) == (2, [])
    assert "pip install 'mha[jax]'" in result.stderr


def test_options(measured):
    assert run("bench", "--backends", "numpy,numpy", "--shapes", "XL, S", "--no-memory").exit_code == 0
    assert measured == [
        (["numpy"], ["inference", "training"], [cases.SHAPES["XL"], cases.SHAPES["S"]], 10.0, False, False)
    ]


def test_a_picture_needs_matplotlib(measured, monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else object())
    result = run("bench", "--backends", "numpy", "--plot", str(tmp_path / "bench.svg"))
    assert (result.exit_code, measured) == (2, [])
    assert result.stderr == "mha: --plot needs matplotlib: pip install 'mha[plots]'\n"


if HAS_MATPLOTLIB:

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("bench", "expected a file whose suffix is one of "),
            ("bench.docx", "expected a file whose suffix is one of "),
            ("missing/bench.svg", "no folder"),
        ],
    )
    def test_a_picture_that_cannot_be_written_is_refused_first(measured, tmp_path, name, text):
        result = run("bench", "--backends", "numpy", "--plot", str(tmp_path / name))
        assert (result.exit_code, measured) == (2, [])
        assert text in result.stderr
        assert result.stderr.count("\n") == 1

    @pytest.mark.parametrize(("suffix", "magic"), [("svg", b"<?xml"), ("PNG", b"\x89PNG")])
    def test_a_picture_of_given_numbers(measured, tmp_path, suffix, magic):
        path = tmp_path / f"bench.{suffix}"
        result = run("bench", "--backends", "numpy", "--shapes", "", "--plot", str(path))
        assert result.exit_code == 0, result.output
        assert measured == [(["numpy"], ["inference", "training"], [], 10.0, True, True)]
        assert path.read_bytes().startswith(magic)
        assert list(tmp_path.iterdir()) == [path]

    def test_a_picture_shows_every_implementation_in_every_panel(measured, monkeypatch):
        from matplotlib.figure import Figure

        figures = []
        monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
        rows = command._measure().sweep
        report.picture(rows, "svg")
        panels = figures[0].axes
        assert [panel.get_ylabel() for panel in panels[::2]] == [
            "inference\nms", "inference\npeak memory, MiB", "training\nms", "training\npeak memory, MiB"
        ]  # fmt: skip
        assert [panel.get_title() for panel in panels[:2]] == ["torch", "jax"]
        for place, panel in enumerate(panels):
            assert panel.get_xscale() == panel.get_yscale() == "log"
            names = cases.IMPLEMENTATIONS[("torch", "jax")[place % 2]]
            assert [line.get_label() for line in panel.lines] == list(names)
            for i, line in enumerate(panel.lines):
                assert list(line.get_xdata()) == [shape.T for shape in cases.SWEEP.values()]
                scale = 1e-3 if place // 2 % 2 else len(cases.KINDS[place // 4])
                assert list(line.get_ydata()) == [scale * T + i for T in line.get_xdata()]
        colours = [{line.get_label(): line.get_color() for line in panel.lines} for panel in panels[:2]]
        assert all(colours[0][name] == colours[1][name] for name in ("fast", "readable"))


# Processes


def test_only_workers_import_frameworks(python):
    code = "import sys, mha; print('mha.benchmarks' in sys.modules); import mha.cli; print(*sys.modules)"
    first, _, rest = python(code).partition("\n")
    assert first == "False"
    assert not {"torch", "tensorflow", "keras", "jax", "flax", "mxnet", "matplotlib"} & set(rest.split())
    assert "mha.benchmarks.run" in rest.split()


def test_an_interrupt_ends_the_worker():
    command = [sys.executable, "-c", "from mha.cli import app; app()", "bench", "--backends", "numpy"]
    command += ["--shapes", "XL", "--no-memory", "--seconds", "60"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (found := children.read_text(encoding="utf-8").split()) or "mha.benchmarks.worker" not in _command(
            found
        ):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) != 0
    until = time.monotonic() + 5  # the system may take a moment to forget it
    while _command(found):
        assert time.monotonic() < until
        time.sleep(0.1)


def _command(found):
    """The command of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{found[0]}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""
