"""`mha parity`: its table, its JSON and its exit code, on right, wrong and broken backends."""

import json
import os

import pytest
from commands import run, run_installed

import mha
from mha import dispatch, parity

FEW_CASES = tuple(case for case in parity.CASES if case.name == "mask")


@pytest.fixture
def few_cases(monkeypatch):
    monkeypatch.setattr(parity.suite, "CASES", FEW_CASES)


def test_parity_passes_and_writes_json(few_cases, tmp_path, backend):
    path = tmp_path / "parity.json"
    result = run("parity", "--backends", f"{backend},{backend}", "--json", str(path))
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert f"on {backend}, all within their bounds" in result.stdout
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["mha"] == mha.__version__
    assert set(report["backends"][backend]) == {*dispatch.FRAMEWORKS[backend].needs, "device"}
    assert report["passed"] is True
    assert {one["dtype"] for one in report["results"]} == set(dispatch.load(backend).DTYPES)
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
    module = dispatch.load(backend)
    attend = module.attend

    def wrong(*arguments, **options):
        result = attend(*arguments, **options)
        # The output alone, of which gradients are made, stays right.
        return (result[0] * 0.999, result[1]) if isinstance(result, tuple) else result

    monkeypatch.setattr(module, "attend", wrong)
    result = run("parity", "--backends", backend, "--json", "-")
    assert result.exit_code == 1
    failed = {one["check"] for one in json.loads(result.stdout)["results"] if not one["passed"]}
    # NumPy's error is the oracle's as well: the answer by hand can tell, and the output alone.
    assert failed == {"answer by hand", "output and weights"}
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
