"""The command line: what it prints, to whom, and with which exit code."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mha
from mha import cli, demo, dispatch, parity

ROOT = Path(demo.__file__).parent
FEW_CASES = tuple(case for case in parity.CASES if case.name == "mask")


def run(*arguments):
    return CliRunner().invoke(cli.app, arguments)


def run_installed(*arguments, **environment):
    """The installed command in a process of its own, its output in pipes."""
    command = shutil.which("mha", path=sysconfig.get_path("scripts"))
    # What would make a program write colours into a pipe, by the tester's own wish.
    unwanted = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "CLICOLOR_FORCE", "MHA_BACKEND", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return subprocess.run([command, *arguments], capture_output=True, env=kept | environment, timeout=300, check=False)


@pytest.fixture
def few_cases(monkeypatch):
    monkeypatch.setattr(parity, "CASES", FEW_CASES)


@pytest.fixture
def absent(monkeypatch):
    """A backend whose framework is not installed."""
    monkeypatch.setitem(dispatch.NEEDS, "jax", ("no_such_framework",))
    monkeypatch.delitem(sys.modules, "mha.backends.jax", raising=False)
    return "jax"


@pytest.fixture
def broken(monkeypatch):
    """A backend whose framework is there and raises an error of two lines when it is loaded."""
    load = dispatch.load

    def load_unless_broken(name):
        if name == "jax":
            raise OSError("libbroken.so:\n  undefined symbol")
        return load(name)

    monkeypatch.setitem(dispatch.NEEDS, "jax", ("numpy",))
    monkeypatch.setattr(dispatch, "load", load_unless_broken)
    return "jax"


# Every command


def test_without_a_command_the_help_is_shown():
    result = run()
    assert result.exit_code == 0
    assert result.stdout == run("--help").stdout
    assert all(command in result.stdout for command in ("demo", "backends", "parity", "MHA_BACKEND", "Exit codes"))


@pytest.mark.parametrize("command", ["demo", "backends", "parity"])
def test_help_has_an_example(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples?:\n.*mha {command}", result.stdout)


def test_version():
    assert run("--version").stdout == f"mha {mha.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["demo"], ["demo", "--backend", "cupy"], ["backends"], ["parity", "--backends", "cupy"]]
)
def test_an_unknown_backend_is_one_line_that_lists_the_known(monkeypatch, arguments):
    monkeypatch.setenv("MHA_BACKEND", "cupy")
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert re.fullmatch(r"mha: \w+ is 'cupy', expected one of numpy, torch, tensorflow, jax, mxnet\n", result.stderr)


@pytest.mark.parametrize("command", ["demo --backend", "parity --backends"])
def test_a_missing_framework_is_one_line_that_says_what_to_install(absent, command):
    result = run(*command.split(), absent)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "pip install 'mha[jax]'" in result.stderr


# mha demo


def test_demo_shows_the_steps_and_where_they_are_computed(monkeypatch, backend):
    monkeypatch.setenv("MHA_BACKEND", "numpy")
    result = run("demo", "--backend", backend)
    assert result.exit_code == 0, result.output
    assert f"on the backend '{backend}'" in result.stdout
    assert "mha.MultiHeadAttention(num_hiddens=100, num_heads=5, dropout=0.5)" in result.stdout
    assert "output.shape: (2, 4, 100)" in result.stdout
    row = re.compile(r"^(\w+) +(\(B.*?\)) +(\(\d.*?\))(?: +backends/(\w+).py:(\d+) (\w+))? *$", re.MULTILINE)
    rows = {name: rest for name, *rest in row.findall(result.stdout)}
    steps = mha.MultiHeadAttention(100, 5, backend="numpy").trace(*(np.ones((2, T, 100), "float32") for T in (4, 6, 6)))
    assert list(rows) == ["queries", "keys", "values", *steps]
    sizes = {"B": 2, "H": 5, "Q": 4, "K": 6, "D": 100, "d": 20, "dv": 20}
    for name, (letters, shape, *_) in rows.items():
        assert eval(letters, {}, sizes) == eval(shape)
        assert name not in steps or eval(shape) == steps[name].shape
    assert max(map(len, result.stdout.splitlines())) <= 80
    for name in steps:
        _, _, module, line, function = rows[name]
        assert module == backend
        code = (ROOT / "backends" / f"{module}.py").read_text(encoding="utf-8").splitlines()
        assert code[int(line) - 1].strip().startswith(f"def {function}(")
    assert rows["split_q"][4] == "transpose_qkv"
    assert rows["merged"][4] == "transpose_output"


def test_demo_shows_every_head(monkeypatch, backend):
    monkeypatch.setenv("MHA_BACKEND", backend)
    lines = run("demo").stdout.splitlines()
    top = next(i for i, line in enumerate(lines) if "head 0" in line)
    assert re.findall(r"head (\d)", lines[top]) == list("01234")
    heads = zip(*(re.findall(r"[^│╭╮╰╯|+]{14}", line) for line in lines[top + 1 : top + 6]), strict=True)
    pictures = ["\n".join(head) for head in heads]
    assert len(set(pictures)) == 5
    for picture in pictures:
        numbers, *queries = picture.splitlines()
        assert numbers.split() == list("012345")
        # Three keys may be seen by all four queries, the other three are blank.
        assert [bool(query[2:8].strip()) and " " not in query[2:8] for query in queries] == [True] * 4
        assert [query[8:].strip() for query in queries] == [""] * 4


def test_heat_map():
    weights = np.array([[0.0, 1e-9, 0.2], [0.5, 0.7, 1.0]])
    assert demo.heat_map(weights, demo.ASCII) == "   0 1 2\n0   ..--\n1 ++##@@"
    assert demo.heat_map(weights, demo.BLOCKS) == "   0 1 2\n0   ··░░\n1 ▒▒▓▓██"


def test_installed_demo_in_a_pipe_is_plain_text():
    result = run_installed("demo", PYTHONIOENCODING="utf-8")
    assert (result.returncode, result.stderr) == (0, b"")
    text = result.stdout.decode()
    assert "on the backend 'numpy'" in text
    assert "\x1b" not in text
    assert "█" in text


def test_installed_demo_does_without_unicode():
    result = run_installed("demo", PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, b"")
    assert "@@" in result.stdout.decode("ascii")


# mha backends


def test_backends_shows_version_and_device(monkeypatch, backend):
    monkeypatch.setenv("MHA_BACKEND", backend)
    result = run("backends")
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if line.startswith(backend))
    assert row.split()[:2] == [backend, dispatch.backends()[backend].version]
    assert dispatch.load(backend).device() in row
    assert row.rstrip().endswith("selected")
    assert [line.split()[0] for line in result.stdout.splitlines()[2:]] == list(dispatch.NEEDS)


@pytest.mark.parametrize(("selected", "code"), [("numpy", 0), ("jax", 1)])
def test_backends_says_what_is_missing(monkeypatch, absent, selected, code):
    monkeypatch.setenv("MHA_BACKEND", selected)
    result = run("backends")
    assert result.exit_code == code
    row = next(line for line in result.stdout.splitlines() if line.startswith(absent))
    assert "no_such_framework not installed: pip install 'mha[jax]'" in row


@pytest.mark.parametrize(("selected", "code"), [("numpy", 0), ("jax", 1)])
def test_backends_finishes_when_one_is_broken(monkeypatch, broken, selected, code):
    monkeypatch.setenv("MHA_BACKEND", selected)
    result = run("backends")
    assert result.exit_code == code
    row = next(line for line in result.stdout.splitlines() if line.startswith(broken))
    assert "broken: OSError: libbroken.so: undefined symbol" in row
    assert result.stdout.splitlines()[-1].startswith("mxnet")


# mha parity


def test_parity_passes_and_writes_json(few_cases, tmp_path, backend):
    path = tmp_path / "parity.json"
    result = run("parity", "--backends", f"{backend},{backend}", "--json", str(path))
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert f"on {backend}, all within their bounds" in result.stdout
    report = json.loads(path.read_text(encoding="utf-8"))
    tab = dispatch.load(backend)
    assert report["mha"] == mha.__version__
    assert set(report["backends"][backend]) == {*dispatch.NEEDS[backend], "device"}
    assert report["passed"] is True
    assert {one["dtype"] for one in report["results"]} == set(tab.DTYPES)
    assert {one["case"] for one in report["results"]} == {case.name for case in FEW_CASES} | {""}
    checks = {one["check"] for one in report["results"]}
    assert checks == {"output and weights", "steps", "gradients", "hidden keys", "padding"} | {
        "transposes", "sync", "save and load", "answer by hand"
    }  # fmt: skip
    assert all(one["passed"] and one["error"] <= one["bound"] for one in report["results"])
    table = result.stdout.splitlines()[2:-1]
    assert len(table) == len(checks)
    assert all(line.startswith(backend) and " pass" in line for line in table)
    assert list(tmp_path.iterdir()) == [path]


def test_parity_fails_on_a_wrong_backend(monkeypatch, few_cases, backend):
    tab = dispatch.load(backend)
    attend = tab.attend

    def wrong(*arguments, **options):
        result = attend(*arguments, **options)
        # The gradients of some tabs ask for the output alone, and stay right.
        return (result[0] * 0.999, result[1]) if isinstance(result, tuple) else result

    monkeypatch.setattr(tab, "attend", wrong)
    result = run("parity", "--backends", backend, "--json", "-")
    assert result.exit_code == 1
    failed = {one["check"] for one in json.loads(result.stdout)["results"] if not one["passed"]}
    # NumPy's error is the oracle's as well: only the answer by hand can tell.
    assert failed == {"answer by hand"} | ({"output and weights"} if backend != "numpy" else set())
    assert "FAIL" in result.stderr
    assert f"failed, on {backend};" in result.stderr


def test_parity_fails_on_an_error(monkeypatch, few_cases, backend):
    def raises(*arguments, **options):
        # Keras writes its messages like this.
        raise RuntimeError("\x1b[1mplanted\x1b[0m\n\n  by a test")

    monkeypatch.setattr(dispatch.load(backend), "attend", raises)
    result = run("parity", "--backends", backend, "--json", "-")
    assert result.exit_code == 1
    failed = [one for one in json.loads(result.stdout)["results"] if not one["passed"]]
    assert {one["check"] for one in failed} >= {"output and weights", "hidden keys", "padding", "answer by hand"}
    assert {one["where"] for one in failed} == {"RuntimeError: planted by a test"}
    assert {one["error"] for one in failed} == {None}
    assert "RuntimeError: planted by a test" in result.stderr


def test_parity_goes_on_after_a_broken_framework(few_cases, broken):
    result = run("parity", "--backends", f"{broken},numpy", "--json", "-")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    failed = [one for one in report["results"] if not one["passed"]]
    assert [(one["backend"], one["check"]) for one in failed] == [(broken, "loads")]
    assert failed[0]["where"] == "OSError: libbroken.so: undefined symbol"
    assert report["backends"][broken] == {}
    assert any(one["backend"] == "numpy" for one in report["results"])


@pytest.mark.parametrize(("name", "words"), [("missing/parity.json", "no folder"), (".", "no regular file")])
def test_parity_says_before_it_starts_that_it_cannot_write(monkeypatch, tmp_path, name, words):
    monkeypatch.setattr(parity, "plan", lambda backends: pytest.fail("the suite was started"))
    result = run("parity", "--backends", "numpy", "--json", str(tmp_path / name))
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def test_a_file_that_cannot_be_written_stays_as_it_was(monkeypatch, few_cases, tmp_path):
    def full(path, target):
        raise OSError(28, "No space left on device")

    path = tmp_path / "parity.json"
    path.write_text("old", encoding="utf-8")
    monkeypatch.setattr(os, "replace", full)
    result = run("parity", "--backends", "numpy", "--json", str(path))
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_installed_parity_in_a_pipe_is_plain_text():
    result = run_installed("parity", "--backends", "numpy")
    assert (result.returncode, result.stderr) == (0, b"")
    text = result.stdout.decode()
    assert "\x1b" not in text
    # No cell is folded or cut: every line of the table starts with the backend.
    assert all(line.startswith("numpy") for line in text.splitlines()[2:-1])
    assert "…" not in text
