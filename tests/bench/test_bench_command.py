"""`mha bench` as a command: its tables, its JSON, its picture, its errors, and the processes that it starts."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import adapters
import numpy as np
import pytest
from commands import run

from mha.bench import cases, report
from mha.bench import run as parent
from mha.bench.run import Measurement, Report
from mha.cli import bench as command
from mha.cli import terminal

HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
# Of what the picture is drawn: each implementation with its role.
ROLES = {
    "torch": {"attention.layer": "layer", "readable": "readable", "nn.MultiheadAttention": "native"},
    "jax": {"attention.layer": "layer", "readable": "readable", "nnx.MultiHeadAttention": "second native"},
}


def test_tables_and_json(tmp_path):
    path = tmp_path / "bench.json"
    result = run("bench", "--backends", "numpy", "--shapes", "S", "--seconds", "0", "--json", str(path))
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text(encoding="utf-8"))
    assert set(found) == {"machine", "rows", "sweep", "failed", "left_out"}
    assert found["machine"]["device"] == "cpu"
    assert found["sweep"] == found["failed"] == found["left_out"] == []
    names = [(row["kind"], row["shape"], row["implementation"]) for row in found["rows"]]
    assert names == [
        ("inference", "S", "attention.layer"),
        ("inference", "S", "readable"),
        ("inference", "S", "attention(...), NumPy arrays"),
        ("training", "S", "attention.layer"),
        ("training", "S", "attention.gradients(...), NumPy arrays"),
    ]
    for row in found["rows"]:
        assert row["milliseconds"] > 0
        assert row["mebibytes"] >= 0
        assert row["rounds"] == 5
        assert row["floor"] == pytest.approx(cases.SHAPES["S"].floor(row["kind"], row["rate"]))
        assert (row["ratios"] is None) == (row["overhead"] is None) == (row["implementation"] == "attention.layer")
        assert row["ratios"] is None or row["ratios"] == sorted(row["ratios"])
    lines = result.stdout.splitlines()
    assert lines[0].endswith(f", {os.cpu_count()} cores; no GPU was used")
    assert f"numpy {np.__version__}" in lines[2]
    assert [line.strip() for line in lines if line.startswith("numpy")] == ["numpy, inference", "numpy, training"]
    assert sum(line.startswith("S ") for line in lines) == 5 + 2
    assert max(map(len, lines[3:])) <= 100
    assert list(tmp_path.iterdir()) == [path]


def test_a_table_of_given_numbers():
    rows = [
        Measurement("torch", "training", "XL", "attention.layer", "layer", 1234.5, 9, None, None, 2048.06, 61.28, 99.0),
        Measurement("torch", "training", "XL", "kernel", "kernel", 12.34, 9, [0.5, 1.25, 2.0], 7.0, None, 61.28, 99.0),
        Measurement("torch", "training", "XL", "called", "call", 12.34, 9, [0.5, 1.25, 2.0], 1234.5, 3.0, 61.28, 99.0),
        Measurement(
            "torch", "training", "XL", "from NumPy", "NumPy call", 12.34, 9, [0.5, 1.25, 2.0], -5.6, 3.0, 61.28, 99.0
        ),
        Measurement("torch", "training", "C", "attention.layer", "layer"),
    ]
    console = terminal.console()
    with console.capture() as capture:
        console.print(report.table(rows))
    lines = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert lines[0] == "torch, training"
    assert lines[3:8] == [
        "XL attention.layer 1234 2,048.1",
        "XL kernel 12.3 1.25 (0.50 to 2.00)",
        "XL called 12.3 1.25 (0.50 to 2.00) 1,234 3.0",
        "XL from NumPy 12.3 1.25 (0.50 to 2.00) -6 3.0",
        "XL matrix products alone 61.3",
    ]
    assert "C attention.layer" in lines
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
    layer, readable, called = json.loads(result.stdout)["rows"]
    assert layer["milliseconds"] > 0
    assert called["milliseconds"] > 0
    assert readable["milliseconds"] is readable["mebibytes"] is None


@pytest.fixture
def measured(monkeypatch):
    """Nothing is measured: the rows of a sweep that was given; the list holds what was asked for."""
    asked = []
    sweep = [
        Measurement(backend, kind, shape.name, name, role, len(kind) * shape.T + i, 5, mebibytes=1e-3 * shape.T + i)
        for backend in ROLES
        for kind in cases.PASSES
        for shape in cases.SWEEP.values()
        for i, (name, role) in enumerate(ROLES[backend].items())
    ]
    monkeypatch.setattr(command, "_measure", lambda *arguments: asked.append(arguments) or Report(sweep=sweep))
    return asked


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--backends", "cupy"], f"--backends is 'cupy', expected one of {adapters.NAMES}"),
        (["--shapes", "S,Q"], f"--shapes is 'Q', expected one of {', '.join(cases.SHAPES)}"),
        (["--shapes", "T128"], f"--shapes is 'T128', expected one of {', '.join(cases.SHAPES)}"),
        (["--kinds", "both"], "--kinds is 'both', expected one of inference, training, decoding"),
        (["--shapes", ""], "nothing to measure: expected a kind in --kinds, and a shape in --shapes or --plot"),
        (["--kinds", "decoding", "--shapes", "S"], "a shape in --shapes or --plot; those that begin with D are of"),
        (["--kinds", "inference", "--shapes", "D"], "those that begin with D are of decoding, all others of the other"),
        (["--kinds", ","], "nothing to measure: expected a kind in --kinds, and a shape in --shapes or --plot"),
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


def test_options(measured):
    assert run("bench", "--backends", "numpy,numpy", "--shapes", "XL, S", "--no-memory").exit_code == 0
    assert measured == [
        (["numpy"], ["inference", "training", "decoding"], [cases.SHAPES["XL"], cases.SHAPES["S"]], 10.0, False, False)
    ]


def test_a_picture_needs_matplotlib(measured, monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else object())
    result = run("bench", "--backends", "numpy", "--plot", str(tmp_path / "bench.svg"))
    assert (result.exit_code, measured) == (2, [])
    assert result.stderr == 'mha: --plot needs matplotlib: pip install "matplotlib>=3.8"\n'


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

    @pytest.mark.parametrize(("suffix", "magic"), [("svg", b"<?xml")])
    def test_a_picture_of_given_numbers(measured, tmp_path, suffix, magic):
        path = tmp_path / f"bench.{suffix}"
        result = run("bench", "--backends", "numpy", "--shapes", "", "--plot", str(path))
        assert result.exit_code == 0, result.output
        assert measured == [(["numpy"], ["inference", "training", "decoding"], [], 10.0, True, True)]
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
            roles = ROLES[("torch", "jax")[place % 2]]
            assert [line.get_label() for line in panel.lines] == list(roles)
            looks = [report.LOOKS[role] for role in roles.values()]
            assert [(line.get_color(), line.get_marker()) for line in panel.lines] == looks
            for i, line in enumerate(panel.lines):
                assert list(line.get_xdata()) == [shape.T for shape in cases.SWEEP.values()]
                scale = 1e-3 if place // 2 % 2 else len(cases.PASSES[place // 4])
                assert list(line.get_ydata()) == [scale * T + i for T in line.get_xdata()]
        colours = [{line.get_label(): line.get_color() for line in panel.lines} for panel in panels[:2]]
        assert all(colours[0][name] == colours[1][name] for name in ("attention.layer", "readable"))


# Processes


def test_an_interrupt_ends_the_worker():
    # Python leaves the signal ignored if what started it ignores it, as a shell does for what runs in the background.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from mha.cli import app; app()"
    command = [sys.executable, "-c", code, "bench", "--backends", "numpy", "--shapes", "XL", "--no-memory"]
    command += ["--kinds", "inference", "--seconds", "60"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            worker = _child(process, "times", time.monotonic() + 60)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) != 0
        finally:
            process.kill()
    until = time.monotonic() + 5  # the system may take a moment to forget it
    while _command(worker):
        assert time.monotonic() < until
        time.sleep(0.1)


def _child(process, what, until):
    """The id of a worker that measures, when there is one."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while True:
        assert process.poll() is None
        assert time.monotonic() < until
        for child in children.read_text(encoding="utf-8").split():
            if f"mha.bench.worker\0{what}" in _command(child):
                return child
        time.sleep(0.1)


def _command(process):
    """The command of a process, its parts ended by NUL; empty if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""
