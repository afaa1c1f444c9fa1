"""`mha weights show` and `mha convert`: what files hold, and layers out of them, bit for bit."""

import os
import re

import numpy as np
import pytest
import safetensors.numpy
from commands import narrow, refused, run
from stored import stored

import mha


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
        shape, dtype = re.escape(str(X.shape)), X.dtype.name if X.dtype == "float32" else "int64"
        norm = f"{np.linalg.norm(X.astype('float64')):.6g}" if X.dtype == "float32" else ""
        assert re.search(rf"^{re.escape(name)} +{shape} +{dtype} +{norm} *$", result.stdout, re.MULTILINE), name
    assert "metadata: format='pt'" in result.stdout
    assert f"{path.stat().st_size:,} bytes, 17 arrays" in result.stdout
    for i in range(2):
        assert re.search(rf"^bert +layer\.{i}\.attention\. +not recorded +BERT", result.stdout, re.MULTILINE)


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
    assert re.search(r"W_q\.bias .*layer\.1\.attention\.self\.query\.bias *\n", result.stdout)
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
    assert re.search(r"W_k\.bias .* 0 +zeros, no such array in the file", result.stdout)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--num-heads", "3"), "2 attention layers are there, expected one; choose --from bert --prefix layer.0.att"),
        (
            ("--from", "gpt2"),
            "no attention layer is there with --from gpt2, no --prefix; choose --from bert --prefix",
        ),
        (("--prefix", "layer.0.attention"), "--num-heads is not given, expected an int: "),
        (("--prefix", "layer.0.attention"), "; pass --num-heads ... as the model's configuration says\n"),
        (("--prefix", "layer.0.attention", "--num-heads", "4"), "expected a multiple of --num-heads = 4"),
        (("--prefix", "layer.0.attention", "--num-heads", "0"), ": --num-heads is 0"),
        (("--from", "brt", "--num-heads", "3"), ": --from is 'brt', expected one of auto, mha"),
    ],
)
def test_convert_says_in_one_line_what_is_wrong(bert, tmp_path, arguments, text):
    path, _ = bert
    out = tmp_path / "out"
    out.write_bytes(b"old")
    refused(text, "convert", str(path), str(out), *arguments)
    assert out.read_bytes() == b"old"


@pytest.mark.parametrize("command", [("weights", "show"), ("convert",)])
def test_a_file_that_is_none_of_weights_is_refused_in_one_line(tmp_path, command):
    rest = [str(tmp_path / "out")] if command == ("convert",) else []
    (tmp_path / "pickle").write_bytes(b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00}\x94.")
    (tmp_path / "empty").mkdir()
    for name, text in {"absent": "there is no file", "empty": "without weights", "pickle": "is a pickle"}.items():
        refused(text, *command, str(tmp_path / name), *rest)


def test_convert_does_not_write_over_its_input_or_nowhere(bert, tmp_path):
    path, _ = bert
    for out, text in {path: "a file of IN", tmp_path: "no regular file", tmp_path / "a" / "b": "no folder"}.items():
        refused(text, "convert", str(path), str(out), "--prefix", "layer.0.attention", "--num-heads", "3")


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
        refused("", *arguments)


@pytest.mark.parametrize(("width", "shown"), [(80, r"\n  shape {}; dtype {}; norm {}\n"), (200, " +{} +{} +{} *\n")])
def test_show_neither_folds_nor_cuts_long_names(tmp_path, monkeypatch, width, shown):
    name = "model.vision_tower." * 4 + "k_proj.weight"
    safetensors.numpy.save_file({name: np.full((1024, 3), 1e200)}, tmp_path / "model.safetensors")
    narrow(monkeypatch, width)
    result = run("weights", "show", str(tmp_path / "model.safetensors"))
    assert re.search(name + shown.format(r"\(1024, 3\)", "float64", r"5\.54256e\+201"), result.stdout)
