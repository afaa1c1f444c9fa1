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
import safetensors.numpy
from rich.console import Console
from test_schemes import stored
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
    monkeypatch.setattr(parity.suite, "CASES", FEW_CASES)


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
    assert all(
        command in result.stdout
        for command in ("demo", "backends", "parity", "weights", "convert", "MHA_BACKEND", "Exit codes")
    )


@pytest.mark.parametrize("command", ["demo", "backends", "parity", "weights show", "convert"])
def test_help_has_an_example(command):
    result = run(*command.split(), "--help")
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
        # The output alone, of which gradients are made, stays right.
        return (result[0] * 0.999, result[1]) if isinstance(result, tuple) else result

    monkeypatch.setattr(tab, "attend", wrong)
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


# mha weights show, mha convert


@pytest.fixture
def bert(tmp_path):
    """A checkpoint of two layers, D = 6, with an array of another kind beside them."""
    rng, path = np.random.default_rng(7), tmp_path / "model.safetensors"
    arrays = {"embeddings.position_ids": np.arange(5)}
    for i in range(2):
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            arrays[f"layer.{i}.attention.{name}.weight"] = rng.normal(size=(6, 6)).astype("float32")
            arrays[f"layer.{i}.attention.{name}.bias"] = rng.normal(size=6).astype("float32")
    safetensors.numpy.save_file(arrays, path, {"format": "pt"})
    return path, arrays


def test_show_lists_arrays_and_layers(bert):
    path, arrays = bert
    result = run("weights", "show", str(path))
    assert result.exit_code == 0
    for name, X in arrays.items():
        shape, dtype = re.escape(str(X.shape)), X.dtype.name if X.dtype == "float32" else "I64"
        norm = f"{np.linalg.norm(X.astype('float64')):.6g}" if X.dtype == "float32" else ""
        assert re.search(rf"^{re.escape(name)} +{shape} +{dtype} +{norm} *$", result.stdout, re.MULTILINE), name
    assert "metadata: format='pt'" in result.stdout
    assert f"{path.stat().st_size:,} bytes, 17 arrays" in result.stdout
    for i in range(2):
        assert re.search(rf"^bert +layer\.{i}\.attention\. +not told +BERT", result.stdout, re.MULTILINE)


def test_show_tells_the_heads_that_arrays_tell(tmp_path):
    config, arrays = stored("flax", "a.")
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    result = run("weights", "show", str(tmp_path / "model.safetensors"))
    assert re.search(rf"^flax +a\. +{config.num_heads} ", result.stdout, re.MULTILINE)


def test_show_says_how_a_file_of_ours_is_configured(tmp_path):
    mha.MultiHeadAttention(6, 3, pooling="additive", backend="numpy").save(tmp_path / "layer.safetensors")
    result = run("weights", "show", str(tmp_path / "layer.safetensors"))
    assert result.exit_code == 0
    assert "a layer of mha: num_hiddens=6, num_heads=3," in result.stdout
    assert "pooling=additive" in result.stdout
    assert "layout='1'" in result.stdout


def test_show_says_what_is_not_finite_and_that_no_layer_is_there(tmp_path):
    safetensors.numpy.save_file({"table": np.full((2, 3), np.nan)}, tmp_path / "model.safetensors")
    result = run("weights", "show", str(tmp_path / "model.safetensors"))
    assert result.exit_code == 0
    assert re.search(r"^table +\(2, 3\) +float64 +nan", result.stdout, re.MULTILINE)
    assert "no attention layer of a known scheme: mha, d2l" in result.stdout


def test_convert_writes_the_layer_bit_for_bit(bert, tmp_path):
    path, arrays = bert
    before, out = path.read_bytes(), tmp_path / "layer.safetensors"
    arguments = ("convert", str(path), str(out), "--from", "bert", "--prefix", "layer.1.attention", "--num-heads", "3")
    dry = run(*arguments, "--dry-run")
    assert dry.exit_code == 0
    assert "is not written" in dry.stdout
    assert list(tmp_path.iterdir()) == [path]
    result = run(*arguments)
    assert result.exit_code == 0
    assert result.stdout.replace("is written", "") == dry.stdout.replace("is not written: --dry-run", "")
    assert re.search(r"W_q\.kernel .*layer\.1\.attention\.self\.query\.weight \(out, in\)", result.stdout)
    attention = mha.load(out, "numpy")
    assert attention.config.num_heads == 3
    assert np.array_equal(attention.weights["W_k.kernel"], arrays["layer.1.attention.self.key.weight"].T)
    assert np.array_equal(attention.weights["W_o.bias"], arrays["layer.1.attention.output.dense.bias"])
    assert path.read_bytes() == before


def test_convert_names_packed_parts_and_biases_of_zeros(tmp_path):
    _, arrays = stored("timm", "blocks.0.attn.")
    del arrays["blocks.0.attn.qkv.bias"]
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({name: np.ascontiguousarray(X) for name, X in arrays.items()}, path)
    result = run("convert", str(path), str(tmp_path / "out"), "--num-heads", "3", "--dry-run")
    assert result.exit_code == 0
    assert re.search(r"W_v\.kernel .*blocks\.0\.attn\.qkv\.weight \(out, in\) part 3 of 3", result.stdout)
    assert re.search(r"W_k\.bias .* 0 +zeros, for want of an array", result.stdout)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--num-heads", "3"), "2 attention layers are there, expected one; choose scheme='bert', prefix='layer.0.att"),
        (("--prefix", "layer.0.attention"), "num_heads is None, expected an int"),
        (("--prefix", "layer.0.attention", "--num-heads", "4"), "expected a multiple of num_heads = 4"),
        (("--prefix", "layer.0.attention", "--num-heads", "0"), "num_heads is 0"),
        (("--from", "brt", "--num-heads", "3"), "scheme is 'brt', expected one of auto, mha"),
    ],
)
def test_convert_says_in_one_line_what_is_wrong(bert, tmp_path, arguments, text):
    path, _ = bert
    out = tmp_path / "out"
    out.write_bytes(b"old")
    result = run("convert", str(path), str(out), *arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert result.stderr.startswith("mha: ")
    assert result.stderr.count("\n") == 1
    assert out.read_bytes() == b"old"


@pytest.mark.parametrize("command", [("weights", "show"), ("convert",)])
def test_a_file_that_is_none_of_weights_is_refused_in_one_line(tmp_path, command):
    rest = [str(tmp_path / "out")] if command == ("convert",) else []
    (tmp_path / "pickle").write_bytes(b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00}\x94.")
    for name, text in {"absent": "is not there", "": "is a directory", "pickle": "begins as a pickle does"}.items():
        result = run(*command, str(tmp_path / name), *rest)
        assert result.exit_code == 2
        assert text in result.stderr
        assert result.stderr.count("\n") == 1


def test_convert_does_not_write_over_its_input_or_nowhere(bert, tmp_path):
    path, _ = bert
    for out, text in {path: "are one file", tmp_path: "no regular file", tmp_path / "a" / "b": "no folder"}.items():
        result = run("convert", str(path), str(out), "--prefix", "layer.0.attention", "--num-heads", "3")
        assert result.exit_code == 2
        assert text in result.stderr


def test_paths_that_the_system_refuses_are_one_line(bert, tmp_path):
    path, _ = bert
    os.symlink("loop", tmp_path / "loop")
    layer = ("--prefix", "layer.0.attention", "--num-heads", "3")
    for arguments in (
        ("convert", str(path), str(tmp_path / "loop"), *layer),
        ("convert", str(tmp_path / "loop"), str(tmp_path / "out"), *layer),
        ("convert", str(path), str(tmp_path / ("x" * 300)), *layer),
        ("weights", "show", str(tmp_path / "loop")),
        ("parity", "--json", str(tmp_path / "loop")),
    ):
        result = run(*arguments)
        assert result.exit_code == 2, arguments
        assert result.stderr.startswith("mha: ")
        assert result.stderr.count("\n") == 1


def test_show_folds_long_names_and_cuts_nothing(tmp_path, monkeypatch):
    name = "model.vision_tower." * 4 + "k_proj.weight"
    safetensors.numpy.save_file({name: np.full((1024, 3), 1e200)}, tmp_path / "model.safetensors")
    monkeypatch.setattr(cli, "_console", lambda stderr=False: Console(stderr=stderr, width=80, markup=False))
    result = run("weights", "show", str(tmp_path / "model.safetensors"))
    assert "…" not in result.stdout
    assert re.search(r"\(1024, 3\) +float64 +5\.54256e\+201", result.stdout)
