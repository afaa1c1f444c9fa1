"""Files whose metadata say who wrote them: MLX lays some arrays otherwise than others, and packs some into few bits.

Letters: D width, H heads, G numbers of a group that share a scale.
"""

import json
import re
import sys

import numpy as np
import pytest
import safetensors.numpy
from commands import run
from layers import assert_same_weights

import mha
from mha import parity
from mha.core.options.config import Config, shapes
from mha.weights import models, readers, schemes
from mha.weights.readers import quantised

from .gated_layers import AT, QWEN

H, D, G = 2, 64, 32
CONFIG = {"model_type": "gpt2", "n_head": H}
LLAMA = {"model_type": "llama", "num_attention_heads": H, "hidden_size": D, "num_key_value_heads": 1}
HOW = {"quantization": {"group_size": G, "bits": 4}}
INDEX = "model.safetensors.index.json"


def weights(rng, config):
    return {name: rng.normal(size=shape).astype("float32") for name, shape in shapes(config).items()}


def of_layer(config, arrays, scheme, prefix):
    laid = schemes.from_canonical(config, arrays, scheme)
    return {prefix + name: np.ascontiguousarray(X) for name, X in laid.items()}


def write(folder, arrays, form, config):
    """A model as a library writes it: arrays, the format in their metadata, and a configuration beside them."""
    folder.mkdir(exist_ok=True)
    safetensors.numpy.save_file(arrays, folder / "model.safetensors", {"format": form})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# 1. GPT-2, whose names stay as they are while its kernels are turned


@pytest.fixture
def gpt2(rng, tmp_path):
    """Two layers of GPT-2, as transformers and as mlx-lm write them; the output's kernels are square."""
    config = Config(D, H, bias=True)
    layers = [weights(rng, config) for _ in range(2)]
    found = {}
    for form, scheme, before in (("pt", "gpt2", ""), ("mlx", "gpt2-mlx", "model.")):
        arrays = {}
        for number, layer in enumerate(layers):
            arrays |= of_layer(config, layer, scheme, f"{before}h.{number}.attn.")
        found[form] = write(tmp_path / form, arrays, form, CONFIG)
    return layers, found


def test_what_a_file_says_decides_how_its_arrays_lie(gpt2):
    layers, folders = gpt2
    for number, expected in enumerate(layers):
        for folder in folders.values():
            for scheme in ("auto", "gpt2"):
                prefix = f"{'model.' if folder.name == 'mlx' else ''}h.{number}.attn"
                layer = mha.load(folder, "numpy", scheme=scheme, prefix=prefix)
                assert_same_weights(layer.weights, expected)
                assert layer.config.num_heads == H


def test_two_files_of_one_model_are_the_same(gpt2):
    _, folders = gpt2
    report = parity.compare_files(folders["pt"], folders["mlx"])
    assert report
    assert report.layers[1] == (("gpt2", "h.1.attn."), ("gpt2-mlx", "model.h.1.attn."))
    assert parity.compare_files(folders["mlx"], folders["pt"], scheme_a="gpt2")


def test_without_a_word_of_mlx_the_shapes_show_how_kernels_lie(gpt2, tmp_path):
    _, folders = gpt2
    arrays = safetensors.numpy.load_file(folders["mlx"] / "model.safetensors")
    silent = write(tmp_path / "silent", arrays, "pt", CONFIG)
    for said in ({}, {"scheme": "gpt2"}, {"scheme": "gpt2-mlx"}):
        layer = mha.load(silent, prefix="model.h.1.attn", **said)
        assert_same_weights(layer.weights, gpt2[0][1])
    in_memory = mha.from_native(arrays, scheme="gpt2-mlx", prefix="model.h.1.attn", num_heads=H)
    assert_same_weights(in_memory.weights, layer.weights)


def test_each_shard_says_its_own_format(gpt2, tmp_path):
    layers, folders = gpt2
    places = {}
    for number, (form, before) in enumerate((("pt", ""), ("mlx", "model."))):
        arrays = safetensors.numpy.load_file(folders[form] / "model.safetensors")
        own = {name: X for name, X in arrays.items() if name.startswith(f"{before}h.{number}.")}
        safetensors.numpy.save_file(own, tmp_path / f"{form}.safetensors", {"format": form})
        places |= dict.fromkeys(own, f"{form}.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    for prefix, expected in (("h.0.attn", layers[0]), ("model.h.1.attn", layers[1])):
        found = mha.load(tmp_path / INDEX, prefix=prefix, num_heads=H)
        assert_same_weights(found.weights, expected)


def test_what_is_shown_of_a_file_names_its_scheme(gpt2):
    shown = run("weights", "show", str(gpt2[1]["mlx"]))
    assert shown.exit_code == 0
    assert re.search(r"gpt2-mlx +model.h.1.attn. +2 +GPT-2 as mlx-lm stores it", shown.output)
    assert "metadata: format='mlx'" in shown.output


def test_norms_of_files_of_mlx_have_the_1_in_them(tmp_path):
    gemma = {"model_type": "gemma3_text", "hidden_size": D, "layer_types": ["full_attention"] * 4}
    for model, form, folded in ((QWEN, "", True), (QWEN, "pt", True), (QWEN, "mlx", False), (gemma, "mlx", True)):
        assert models.options_in(model, "llama", AT, form=form).get("fold_one", False) == folded
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN))
    assert "fold_one" in models.options(path, "llama", AT)
    assert "fold_one" not in models.options(path, "llama", AT, form="mlx")


# 2. Quantised arrays


def packed(rng, rows=D, bits=4, width=D):
    """A quantised kernel (rows, width): its parts as they lie in a file, and the floats that it stands for."""
    numbers = rng.integers(0, 2**bits, (rows, width))
    scales, biases = rng.normal(size=(2, rows, width // G)).astype("float32")
    words = numbers.reshape(rows, -1, 32 // bits).astype(np.uint64) << (np.arange(32 // bits, dtype=np.uint64) * bits)
    parts = {"weight": words.sum(2).astype(np.uint32), "scales": scales, "biases": biases}
    floats = numbers * scales.repeat(G, 1) + biases.repeat(G, 1)  # (rows, width)
    return parts, floats.astype("float32")


def llama(rng, folder, config=LLAMA | HOW, bits=4, only=("q_proj", "k_proj", "v_proj", "o_proj")):
    """A layer of LLaMA in a file of MLX, some of its kernels quantised, and its canonical kernels."""
    arrays, kernels = {}, {}
    for name, rows in (("q_proj", D), ("k_proj", D // H), ("v_proj", D // H), ("o_proj", D)):
        parts, floats = packed(rng, rows, bits)
        parts = parts if name in only else {"weight": floats}
        arrays |= {f"model.layers.0.self_attn.{name}.{part}": X for part, X in parts.items()}
        kernels[f"W_{name[0]}.kernel"] = floats.T
    return write(folder, arrays, "mlx", config), kernels


@pytest.mark.backends("mlx")
@pytest.mark.parametrize("bits", [4, 8, 2])
def test_a_quantised_layer_is_the_floats_that_it_stands_for(rng, tmp_path, bits):
    folder, expected = llama(rng, tmp_path, LLAMA | {"quantization": {"group_size": G, "bits": bits}}, bits)
    layer = mha.load(folder)
    assert (layer.config.num_heads, layer.config.num_key_value_heads, layer.config.dtype) == (H, 1, "float32")
    for name, X in layer.weights.items():
        assert np.abs(X - expected[name]).max() <= 2.0**-22 * np.abs(expected[name]).max()


@pytest.mark.backends("mlx")
def test_a_layer_may_be_quantised_otherwise_or_in_part(rng, tmp_path):
    at = "model.layers.0.self_attn.v_proj"
    how = {"quantization": {"group_size": G, "bits": 8, at: {"group_size": G, "bits": 4}, "lm_head": False}}
    folder, expected = llama(rng, tmp_path, LLAMA | how, only=("v_proj",))
    found = mha.load(folder).weights
    for name, X in found.items():
        assert np.abs(X - expected[name]).max() <= 2.0**-22 * np.abs(expected[name]).max()


@pytest.mark.backends("mlx")
@pytest.mark.parametrize("mode", ["affine", "mxfp4", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_mode_is_read_in_the_dtype_of_the_model(rng, tmp_path, mode, dtype):
    """What MLX packs errs by its few bits; scales that are floats say the dtype, or else the norms beside them."""
    import mlx.core as mx

    arrays, kernels = {"model.norm.weight": mx.ones(D, getattr(mx, dtype))}, {}
    for name, rows in (("q_proj", D), ("k_proj", D // H), ("v_proj", D // H), ("o_proj", D)):
        X = mx.array(rng.normal(size=(rows, D)), getattr(mx, dtype))
        kernels[f"W_{name[0]}.kernel"] = np.array(X.astype(mx.float32)).T
        parts = dict(zip(("weight", "scales", "biases"), mx.quantize(X, mode=mode), strict=False))
        arrays |= {f"model.layers.0.self_attn.{name}.{part}": X for part, X in parts.items()}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), arrays, {"format": "mlx"})
    sizes = dict(zip(("group_size", "bits"), quantised.MODES[mode], strict=True))
    said = {"quantization": sizes | {"mode": mode}}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | said))
    layer = mha.load(tmp_path)
    assert layer.config.dtype == dtype
    for name, X in layer.weights.items():
        error = np.abs(X.astype("float32") - kernels[name])
        assert 0 < error.mean() < (0.02 if sizes["bits"] == 8 else 0.2)


@pytest.mark.backends("mlx")
def test_a_quantised_file_is_compared_with_its_source(rng, tmp_path):
    folder, kernels = llama(rng, tmp_path / "packed", bits=4)
    place = "model.layers.0.self_attn."
    turned = {f"{place}{name[2]}_proj.weight": np.ascontiguousarray(X.T) for name, X in kernels.items()}
    source = write(tmp_path / "source", turned, "pt", LLAMA)
    report = parity.compare_files(source, folder)
    assert report
    note = "B is quantised (4 bits in groups of 32, mode affine): kernels that it was made of differ by that"
    assert report.notes == (note,)
    assert note[2:] in parity.compare_files(folder, source).notes[0]
    turned[f"{place}v_proj.weight"] *= 1.5
    other = write(tmp_path / "other", turned, "pt", LLAMA)
    assert not parity.compare_files(other, folder)
    shown = run("weights", "show", str(folder))
    assert shown.exit_code == 0
    assert re.search(r"self_attn.q_proj.weight +\(64, 64\) +float32", shown.output)
    assert "scales" not in shown.output


def test_what_unpacks_is_named_where_it_is_missing(rng, tmp_path, monkeypatch):
    folder, _ = llama(rng, tmp_path)
    monkeypatch.setattr(quantised, "FORMATS", {"mlx": "torch"})
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "mha.backends.torch", raising=False)
    with pytest.raises(ValueError, match=r"proj.weight quantised to 4 bits, which PyTorch unpacks: pip install .torch"):
        mha.load(folder)


def test_arrays_are_described_as_they_are_once_unpacked(rng, tmp_path, monkeypatch):
    monkeypatch.setattr(quantised, "FORMATS", {"mlx": "numpy"})
    folder, _ = llama(rng, tmp_path, only=("q_proj",))
    with readers.open_weights(folder) as source:
        place = "model.layers.0.self_attn."
        assert sorted(source.entries) == [f"{place}{name}_proj.weight" for name in "koqv"]
        assert len(source.entries) == 4
        assert f"{place}q_proj.scales" not in source.entries
        assert source.entries[f"{place}q_proj.weight"] == readers.Entry("float32", (D, D))
        assert source.entries[f"{place}o_proj.weight"] == readers.Entry("float32", (D, D))
        assert source.paths == (folder / "model.safetensors",)
        with pytest.raises(ValueError, match="expected one of int64"):
            source.read(f"{place}q_proj.weight", ("int64",))


def test_arrays_may_be_packed_each_in_its_own_way(tmp_path, monkeypatch):
    """Of 64 words of 32 bits, so many rows: k_proj by the usual group and bits of "affine", the others as is said."""
    monkeypatch.setattr(quantised, "FORMATS", {"mlx": "numpy"})
    place, words = "model.layers.0.self_attn.", np.zeros((3, 64), np.uint32)
    said = {"group_size": 16, "mode": "nvfp4", f"{place}v_proj": {"mode": "mxfp8"}, f"{place}k_proj": {"bits": 8}}
    arrays = {f"{place}{name}_proj.weight": words for name in "qkv"} | {"model.norm.weight": np.ones(3, np.float16)}
    arrays |= {
        f"{place}{name}_proj.scales": np.zeros((3, 512 // size), np.uint8) for name, size in (("q", 16), ("v", 64))
    }
    arrays[f"{place}k_proj.scales"] = np.zeros((3, 4), np.float16)
    write(tmp_path, arrays, "mlx", {"quantization": said | {"lm_head": False}})
    with readers.open_weights(tmp_path) as source:
        found = {name: source.entries[f"{place}{name}_proj.weight"] for name in "qkv"}
        assert source.packing_of(f"{place}v_proj.weight") == "8 bits in groups of 32, mode mxfp8"
        assert source.packing_of("model.norm.weight") == ""
    assert found == {name: readers.Entry("float16", (3, width)) for name, width in (("q", 512), ("k", 256), ("v", 256))}


SAID = {
    "has quantised arrays, and no config.json beside it whose quantization says how": LLAMA,
    "has quantised arrays, and no config.json beside it": LLAMA | {"quantization": 4},
    r"shape \(32, 8\) with scales of shape \(32, 2\), which does not fit 8 bits in groups of 32": (
        LLAMA | {"quantization": {"group_size": G, "bits": 8}}
    ),
    "does not fit 4 bits in groups of 64": LLAMA | {"quantization": {"bits": 4}},
    "does not fit 7 bits in groups of 32": LLAMA | {"quantization": {"group_size": G, "bits": 7}},
    "quantised in mode 'int4', expected one of affine, mxfp4": LLAMA | {"quantization": {"mode": "int4"}},
    "which does not say how .*_proj.weight lies: bits is 4.5": LLAMA | {"quantization": {"bits": 4.5}},
    "which does not say how .*_proj.weight lies: group_size is -1": LLAMA | {"quantization": {"group_size": -1}},
}


@pytest.mark.parametrize("words", SAID)
def test_what_is_said_of_quantised_arrays_must_fit_them(rng, tmp_path, monkeypatch, words):
    monkeypatch.setattr(quantised, "FORMATS", {"mlx": "numpy"})
    folder, _ = llama(rng, tmp_path, SAID[words])
    with pytest.raises(ValueError, match=words):
        mha.load(folder)


@pytest.mark.parametrize("form", ["pt", "gguf"])
def test_integers_of_others_are_no_floats(rng, tmp_path, form):
    folder, _ = llama(rng, tmp_path)
    write(folder, safetensors.numpy.load_file(folder / "model.safetensors"), form, LLAMA | HOW)
    with pytest.raises(ValueError, match=r"_proj.weight has dtype uint32, expected one of float64"):
        mha.load(folder)
