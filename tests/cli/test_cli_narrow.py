"""On a terminal of 60 columns no word, number or path is broken or cut, and lines fit if their words do."""

import numpy as np
import pytest
import safetensors.numpy
from commands import keeps_words, shown
from rich.rule import Rule
from stored import stored

import mha
from mha.bench import devices
from mha.bench.run import Measurement, Report
from mha.cli import bench
from mha.core import dispatch
from mha.core.tables import text

PREFIX = "model.text_encoder.layers.0.attention."
COMMANDS = ["demo", "explain", "backends", "parity", "bench", "weights", "weights show", "convert", "compare", "audit"]
CALL = "attention(...), NumPy arrays"
ROW = Measurement("numpy", "inference", "S", CALL, "NumPy call", 0.262, 9, [1.54, 1.61, 1.86], 36.0, 0.04)
MACHINE = {
    "processor": "Abacus(R) of Many Beads 9999 @ 2.50 Hz", "cores": 2, "system": "Linux-6.18.44-x86_64-with-glibc2.36",
    "mha": "0.1.0", "python": "3.11.7", "frameworks": {"numpy": "2.4.6", "torch": "2.13.0+cpu", "tensorflow": "2.21.0"},
}  # fmt: skip


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(monkeypatch, command, width):
    _, wide, _ = shown(monkeypatch, 100, *command.split(), "--help")
    code, found, lines = shown(monkeypatch, width, *command.split(), "--help")
    assert code == 0
    # Of what a command does, the list of commands shows as much as there is room for.
    assert {word for word in found if not word.endswith("...")} <= wide
    assert max(map(len, lines)) <= width


def test_demo(monkeypatch, backend):
    monkeypatch.setenv("MHA_BACKEND", "numpy")
    lines = keeps_words(monkeypatch, "demo", "--backend", backend)
    (code,) = [line.split(":")[0].strip() for line in lines if line.strip().startswith(str(dispatch.FOLDER))]
    assert code == str(dispatch.FOLDER / backend)


def test_backends(monkeypatch, absent):
    monkeypatch.setenv("MHA_BACKEND", "numpy")
    framework = dispatch.Framework(("no_such_framework_at_all",), packages=("no-such-framework-at-all>=3.14",) * 2)
    monkeypatch.setitem(dispatch.FRAMEWORKS, absent, framework)
    lines = keeps_words(monkeypatch, "backends")
    assert any('"no-such-framework-at-all>=3.14"' in line for line in lines)


def test_bench(monkeypatch):
    measured = Report(
        [ROW], left_out=[f"numpy, inference, XL: {CALL}: half of the free memory may not be enough for it"]
    )
    rows = [
        devices.SplitMeasurement("torch", "training", "XL-all", "unsplit", 2625.4, 5, 1.0, None, 77.5, 1.0),
        devices.SplitMeasurement("torch", "training", "XL-all", "ring", 2571.7, 5, 2.18, 1.04, 114.5, 1.48),
        devices.SplitMeasurement("torch", "training", "XL-all", "context_parallel", problem="it takes no lengths"),
    ]
    monkeypatch.setattr(devices, "BACKENDS", ("numpy",))
    monkeypatch.setattr(bench.run, "machine", lambda names: MACHINE)
    monkeypatch.setattr(bench, "_measure", lambda *asked: measured)
    monkeypatch.setattr(bench, "_measure_devices", lambda *asked: devices.SplitReport(4, rows))
    for options, number in (((), "ms 0.26"), (("--devices", "4"), "processor time 2.18")):
        assert number in " ".join(keeps_words(monkeypatch, "bench", "--backends", "numpy", *options))


@pytest.fixture
def checkpoint(tmp_path):
    _, arrays = stored("bert", PREFIX)
    safetensors.numpy.save_file({name: np.ascontiguousarray(X) for name, X in arrays.items()}, tmp_path / "model")
    return str(tmp_path / "model")


def test_weights_show(monkeypatch, checkpoint, tmp_path):
    lines = keeps_words(monkeypatch, "weights", "show", checkpoint)
    assert f"{PREFIX}self.query.weight" in lines
    mha.MultiHeadAttention(6, 3, bias=True, backend="numpy").save(tmp_path / "own")
    keeps_words(monkeypatch, "weights", "show", str(tmp_path / "own"))


@pytest.mark.parametrize("arguments", [["--from", "brt"], ["--prefix", "model"], [], ["--num-heads", "7"]])
def test_errors(monkeypatch, checkpoint, tmp_path, arguments):
    keeps_words(monkeypatch, "convert", checkpoint, str(tmp_path / "out"), *arguments, code=2)


def test_a_report_in_a_pipe_has_100_columns():
    assert text(Rule(characters="-")) == "-" * 100
