"""`mha parity`: its table, its files and its exit code, on right, wrong, broken and dying backends."""

import json
import os
import sys
import time
from html import escape
from pathlib import Path
from xml.etree import ElementTree

import adapters
import in_tf32
import pytest
from commands import refused, run, run_installed

import mha
from mha import parity
from mha.core import dispatch
from mha.parity.cases.run import workers

FEW = ("--case", "mask")
CHECKS = {"output and weights", "steps", "gradients", "lesson", "gradients of the lesson", "hidden keys", "padding"}


@pytest.fixture
def python(tmp_path):
    """Makes another Python, that does what a shell script says in place of comparing."""

    def make(script, name="python"):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    return make


def about(**others):
    told = json.dumps({"total": 3, "about": {"mha": mha.__version__, "python": "3.0"} | others})
    return f"echo '{told}'"


BEGINS = """echo '{"begins": "float64, mask"}'"""


KERNELS = "products", "FLASH_ATTENTION", "MATH", "mx.fast"  # on a processor


@pytest.mark.long(*adapters.COMPILED)
def test_parity_passes_and_writes_files(tmp_path, backend):
    files = {name: tmp_path / f"parity.{name}" for name in ("json", "junit", "html")}
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    result = run("parity", "--backends", f"{backend},{backend}", *FEW, *options)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert f"on {backend}, all within their bounds" in result.stdout
    report = json.loads(files["json"].read_text(encoding="utf-8"))
    assert report["mha"] == mha.__version__
    about = report["backends"][backend]
    assert set(about) == {*dispatch.FRAMEWORKS[backend].needs, "device", "kernels", "mha", "python"}
    assert report["passed"] is True
    assert {one["dtype"] for one in report["results"]} == {"float32", "float64"}
    assert {one["case"] for one in report["results"]} == {"mask"}
    assert {one["check"] for one in report["results"]} == CHECKS
    assert all(one["passed"] and one["error"] <= one["bound"] for one in report["results"])
    *table, device, kernels, _ = result.stdout.splitlines()[2:]
    assert device == f"computed at: {backend} {about['device']}"
    assert kernels == f"pooled by: {backend} {about['kernels']}"
    assert kernels.split()[3].rstrip(",") in KERNELS
    assert len(table) == len(CHECKS)
    assert all(line.startswith(backend) and " pass" in line for line in table)
    suite = ElementTree.parse(files["junit"]).getroot()[0]
    assert suite.attrib == {"name": backend, "tests": str(len(report["results"])), "failures": "0"}
    named = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert named == report["backends"][backend]
    assert {case.get("classname") for case in suite.iter("testcase")} == {f"{backend}.{check}" for check in CHECKS}
    page = files["html"].read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("<tr>") == 1 + len(report["results"])
    assert page.count(f"<h2>{backend}</h2>") == 1
    assert sorted(tmp_path.iterdir()) == sorted(files.values())


@pytest.mark.backends("numpy")
def test_the_quick_suite_has_what_is_exact_too():
    result = run("parity", "--backends", "numpy", "--json", "-")
    assert result.exit_code == 0
    found = {one["check"] for one in json.loads(result.stdout)["results"]}
    assert found == CHECKS | {"transposes", "sync", "save and load", "answer by hand"}


@pytest.mark.backends("numpy", "torch")
def test_one_dtype_of_one_case_in_another_python(backend):
    options = ("--backends", backend, *FEW, "--dtype", "float64", "--python", f"{backend}={sys.executable}")
    result = run("parity", *options, "--json", "-")
    assert result.exit_code == 0, result.output
    assert {one["dtype"] for one in json.loads(result.stdout)["results"]} == {"float64"}


def test_comparing_fails_on_an_error(monkeypatch, backend):
    def raises(*arguments, **options):
        # Keras writes its messages like this.
        raise RuntimeError("\x1b[1mplanted\x1b[0m\n\n  by a test")

    monkeypatch.setattr(dispatch.load(backend), "attend", raises)
    case = next(case for case in parity.CASES if case.name == "mask")
    results = parity.check_case(backend, case, "float64") + parity.check_exact(backend, "float64")
    failed = [one for one in results if not one.passed]
    assert {one.check for one in failed} >= {"output and weights", "hidden keys", "padding", "answer by hand"}
    assert {(one.where, one.error) for one in failed} == {("RuntimeError: planted by a test", float("inf"))}
    assert {one.cause for one in parity.check_case(backend, case, "float32")} == {""}


DYING = {
    "a crash": (
        f"{about()}; {BEGINS}; kill -11 $$",
        "runs", "the process was ended by signal 11 (SIGSEGV), in check 1 of 3 (float64, mask)",
    ),
    "no memory": (
        f"{about()}; kill -9 $$",
        "runs", "the process was ended by signal 9 (SIGKILL); memory may have run out, before its first check",
    ),
    "last words": (
        f"{about()}; {BEGINS}; echo '{{\"results\": []}}'; echo oh, no >&2; exit 3",
        "runs", "oh, no, in check 2 of 3 (float64, mask)",
    ),
    "no end": (
        f"{about()}; {BEGINS}; sleep 60",
        "runs", "gave nothing for 1 seconds, in check 1 of 3 (float64, mask)",
    ),
    "no start": ("echo No module named mha >&2; exit 1", "starts", "No module named mha"),
    "no worker": ("echo hello", "starts", "/python is no Python with mha: it printed 'hello'"),
    "another version": (about(mha="0.0"), "loads", f"is not this version, {mha.__version__}; install this"),
    "a broken framework": ("echo '{\"broken\": \"OSError: no such library\"}'", "loads", "OSError: no such library"),
}  # fmt: skip


@pytest.mark.backends("numpy")
@pytest.mark.parametrize("name", DYING)
def test_a_process_that_dies_is_a_failed_result_and_the_others_go_on(python, name):
    script, check, words = DYING[name]
    # Where a second is the limit, NumPy on a busy machine would pass it, too.
    backends, limit = ("torch", "1") if name == "no end" else ("torch,numpy", "60")
    options = ("--backends", backends, "--python", f"torch={python(script)}", "--limit", limit)
    result = run("parity", *FEW, *options, "--json", "-")
    assert result.exit_code == 1, result.output
    report = json.loads(result.stdout)
    (failed,) = (one for one in report["results"] if not one["passed"])
    assert (failed["backend"], failed["check"]) == ("torch", check)
    assert words in failed["where"]
    assert "failed, on torch;" in result.stderr
    assert {one["check"] for one in report["results"][1:]} == (CHECKS if "numpy" in backends else set())


@pytest.mark.backends("numpy")
def test_failures_in_files(python, tmp_path):
    script = 'echo \'{"broken": "a <b> \\u0001 & c"}\''
    files = {name: tmp_path / f"parity.{name}" for name in ("junit", "html")}
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert run("parity", "--backends", "jax", "--python", f"jax={python(script)}", *options).exit_code == 1
    (failure,) = ElementTree.parse(files["junit"]).getroot().iter("failure")
    assert failure.get("message").startswith("a <b>   & c: error inf")
    assert "<td>a &lt;b&gt;   &amp; c</td>" in files["html"].read_text(encoding="utf-8")


@pytest.mark.backends("torch", "mlx")
def test_a_report_names_tf32_and_the_line_that_switches_it_off(python, tmp_path, backend):
    there = python(f'shift 2; exec "{sys.executable}" "{in_tf32.__file__}" "$@"')
    files = {name: tmp_path / f"parity.{name}" for name in ("junit", "html")}
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    options += ["--case", "mask", "--case", "window, offset", "--python", f"{backend}={there}"]
    result = run("parity", "--backends", f"{backend},numpy", *options)
    assert result.exit_code == 1, result.output
    words = "TF32 arithmetic: matrix products keep 10 bits behind the leading one. Switch it off: "
    cause = words + dispatch.facts("TF32_OFF")[backend]
    assert [line for line in result.stdout.splitlines() if "TF32" in line] == [f"{backend}: {cause}"]
    failures = [one.get("message") for one in ElementTree.parse(files["junit"]).getroot().iter("failure")]
    assert len(failures) == 2
    assert all(one.endswith(f". {cause}") for one in failures)
    assert files["html"].read_text(encoding="utf-8").count(f"<p>{escape(cause, quote=False)}</p>") == 1


@pytest.mark.backends("torch", "jax")
def test_a_backend_computes_at_a_device_by_its_name(backend):
    result = run("parity", "--backends", backend, *FEW, "--dtype", "float64", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert f"computed at: {backend} cpu\n" in result.stdout


@pytest.mark.backends("torch", "jax")
@pytest.mark.parametrize("device", ["cuda", "meta", "abacus"])
def test_a_device_that_is_not_there_ends_the_command(backend, device):
    title = dispatch.facts("TITLE")[backend]
    words = f"--device is '{device}', expected one that {title} has here, such as 'cpu': "
    refused(words, "parity", "--backends", backend, "--device", device)


@pytest.mark.backends("numpy")
def test_a_device_that_one_backend_lacks_ends_the_others(python, tmp_path):
    """By default, the backends are those that take a device."""
    waits = f"echo $$ > {tmp_path}/started; sleep 600"
    lacks = f'while [ ! -e {tmp_path}/started ]; do sleep 0.01; done; echo \'{{"absent": "device is gone"}}\''
    pythons = ("--python", f"jax={python(waits, 'slow')}", "--python", f"torch={python(lacks)}")  # jax begins first
    start = time.monotonic()
    refused("--device is gone", "parity", "--device", "cuda", *pythons)
    assert time.monotonic() - start < 300
    process = Path(f"/proc/{(tmp_path / 'started').read_text().strip()}")
    assert not process.exists()


@pytest.mark.backends("numpy")
def test_nothing_is_left_running(monkeypatch, python, tmp_path):
    """A process's children end with it."""
    script = f"sleep 60 & echo $! > {tmp_path}/child; {about()}; wait"
    runner = workers.Runner(pythons={"torch": python(script)}, limit=1)
    (outcome,) = runner.run(["torch"])
    assert not outcome.results[0].passed
    child = int((tmp_path / "child").read_text())
    end = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < end:
        time.sleep(0.01)  # until the system has taken it away
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.backends("numpy")
@pytest.mark.parametrize(
    ("cores", "memory", "at_once"),
    [(12, 1e6, 3), (2, 1e6, 2), (None, 1e6, 1), (12, 3 * 2048, 3), (12, 3 * 2047, 2), (12, 2 * 2047, 1), (12, 0, 1)],
)
def test_as_many_workers_at_once_as_processors_and_memory_allow(monkeypatch, python, cores, memory, at_once):
    """They share the processors, unless the user says how many threads each has."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(workers, "available", lambda: float(memory))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    there = python("""echo '{"broken": "'$OMP_NUM_THREADS'"}'""")
    backends = ["torch", "jax", "mxnet"]
    outcomes = workers.Runner(pythons=dict.fromkeys(backends, there)).run(backends)
    assert [one.results[0].where for one in outcomes] == [str((cores or 1) // at_once)] * 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    (outcome,) = workers.Runner(pythons={"torch": there}).run(["torch"])
    assert outcome.results[0].where == "5"


@pytest.mark.backends("numpy")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--device", "cpu"), "--backends has 'numpy', expected torch or jax with --device: numpy chooses its device"),
        (("--suite", "slow"), "--suite is 'slow', expected one of quick, full"),
        (("--case", "masks"), "did you mean 'mask'?"),
        (("--dtype", "float8"), "--dtype is 'float8', expected one of"),
        (("--python", "torch"), "--python is torch, expected BACKEND=FILE"),
        (("--python", "torch=/no/such/python"), "expected BACKEND=FILE with a Python that can be run"),
        (("--python", "caffe=python"), "--python is 'caffe', expected one of numpy"),
        (("--case", "2053 keys", "--dtype", "float16"), "nothing was compared"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_run_is_said(options, words):
    result = run("parity", "--backends", "numpy", *options)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize(("name", "words"), [("missing/parity.json", "no folder"), (".", "no regular file")])
def test_parity_says_before_it_starts_that_it_cannot_write(monkeypatch, tmp_path, name, words):
    monkeypatch.setattr(workers.Runner, "run", lambda *given: pytest.fail("the suite was started"))
    refused(words, "parity", "--backends", "numpy", "--json", str(tmp_path / name))


def test_a_file_that_cannot_be_written_stays_as_it_was(monkeypatch, tmp_path):
    def full(path, target):
        raise OSError(28, "No space left on device")

    path = tmp_path / "parity.json"
    path.write_text("old", encoding="utf-8")
    monkeypatch.setattr(os, "replace", full)
    result = run("parity", "--backends", "numpy", *FEW, "--json", str(path))
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.backends("numpy")
def test_installed_parity_in_a_pipe_is_plain_text():
    result = run_installed("parity", "--backends", "numpy", *FEW)
    assert (result.returncode, result.stderr) == (0, b"")
    text = result.stdout.decode()
    assert "\x1b" not in text
    # No cell is folded or cut: every line of the table starts with the backend.
    assert all(line.startswith("numpy") for line in text.splitlines()[2:-3])
    assert len(text.splitlines()[2:-3]) == len(CHECKS)
    assert "…" not in text
