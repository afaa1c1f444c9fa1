"""`config.json` beside a checkpoint: what it says of the attention is used, and what it says wrongly is refused.

Letters: H heads, G heads of keys and values, d width of a head, D width of the output.
"""

import json
import os
import re

import numpy as np
import pytest
import safetensors.numpy
from commands import run
from layers import assert_same_weights

import mha
from mha.weights import models

from .llama_config import LLAMA, MODEL, PREFIX, WINDOWED, WINDOWS, D, G, H, arrays, d

LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0, "original_max_position_embeddings": 64}
SLOWED = mha.Rotary(frequencies=mha.llama3_frequencies(d, 5e5, 4.0, 1.0, 3.0, 64))


FOURTHS = mha.Rotary(base=1e6, frequencies=tuple(angle / 4 for angle in mha.Rotary(d, 1e6).angles()))
NORMS = {"qk_norm": mha.Norm("rms", 1e-5)}
PLAIN = {"num_heads": H, "num_key_value_heads": G, "key_dim": d, "rotary": mha.Rotary()}
# What a model says, and the options of the layer.
MODELS = {
    "LLaMA 2": ({"model_type": "llama"}, {}),
    "LLaMA 2, null": ({"model_type": "llama", "rope_scaling": None, "head_dim": None, "hidden_size": 24}, {}),
    "LLaMA 3": ({"model_type": "llama", "rope_theta": 5e5}, {"rotary": mha.Rotary(base=5e5)}),
    "LLaMA 3.1": (
        {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": LLAMA3 | {"rope_type": "llama3"}},
        {"rotary": mha.Rotary(base=5e5, frequencies=SLOWED.frequencies)},
    ),
    "LLaMA 3.1, transformers 5": (
        {"model_type": "llama", "rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 5e5}},
        {"rotary": mha.Rotary(base=5e5, frequencies=SLOWED.frequencies)},
    ),
    "LLaMA, slowed down": (
        {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2}},
        {"rotary": mha.Rotary(frequencies=tuple(angle / 2 for angle in mha.Rotary(d).angles()))},
    ),
    "Mistral": ({"model_type": "mistral", "sliding_window": 5}, {"window": (4, 0)}),
    "Phi-3.5 MoE": ({"model_type": "phimoe", "sliding_window": 5}, {"window": (4, 0), "rotary": mha.Rotary(base=1e6)}),
    "Mistral, no window": ({"model_type": "mistral", "sliding_window": None}, {}),
    "Qwen2": ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": False}, {}),
    "Qwen2, null": ({"model_type": "qwen2", "use_sliding_window": None}, {}),
    "Qwen2, window": ({"model_type": "qwen2", "max_window_layers": 1} | WINDOWS, {"window": (7, 0)}),
    "Qwen2, window later": ({"model_type": "qwen2", "max_window_layers": 2} | WINDOWS, {}),
    "Qwen3": ({"model_type": "qwen3"}, {"qk_norm": mha.Norm("rms", 1e-5)}),
    "Gemma 2": (
        {"model_type": "gemma2", "sliding_window": 8, "query_pre_attn_scalar": 16, "final_logit_softcapping": 30.0},
        {"scale": 0.25, "softcap": 50.0},
    ),
    "Gemma 2, window": (
        {"model_type": "gemma2", "layer_types": WINDOWED, "attn_logit_softcapping": None},
        {"scale": 0.0625, "window": (4095, 0)},
    ),
    "Gemma 3": (
        {"model_type": "gemma3_text", "layer_types": WINDOWED[::-1], "rope_scaling": {"type": "linear", "factor": 4}},
        NORMS | {"scale": 0.0625, "rotary": FOURTHS},
    ),
    "Gemma 3, window": (
        {"model_type": "gemma3_text", "sliding_window": 8, "rope_theta": 2e6, "rope_scaling": {"factor": 4}},
        NORMS | {"scale": 0.0625, "window": (7, 0)},
    ),
    "Gemma 3, transformers 5": (
        {
            "model_type": "gemma3_text",
            "layer_types": WINDOWED,
            "sliding_window": 8,
            "_sliding_window_pattern": 6,
            "rope_parameters": {"sliding_attention": {"rope_theta": 5.0}, "full_attention": {"rope_theta": 7.0}},
        },
        NORMS | {"scale": 0.0625, "window": (7, 0), "rotary": mha.Rotary(base=5.0)},
    ),
    "Qwen3, window": (
        {"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]} | WINDOWS,
        {"qk_norm": mha.Norm("rms", 1e-5), "window": (7, 0)},
    ),
    "Qwen3, window before": (
        {"model_type": "qwen3", "layer_types": ["sliding_attention", "full_attention"]} | WINDOWS,
        {"qk_norm": mha.Norm("rms", 1e-5)},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_a_model_says_is_what_the_layer_has(write, rng, name):
    model, options = MODELS[name]
    has_bias, has_norms = name.startswith("Qwen2"), "qk_norm" in options
    path = write(model, bias=has_bias, normed=has_norms)
    found = mha.load(path, "numpy")
    given = {"bias": has_bias, "value_dim": d} | PLAIN | options
    expected = mha.MultiHeadAttention(D, **given, backend="numpy")
    assert found.config == expected.config
    stored = safetensors.numpy.load_file(path)
    for letter in "qkvo":
        assert np.array_equal(found.weights[f"W_{letter}.kernel"], stored[f"{PREFIX}{letter}_proj.weight"].T)
    if has_norms:
        told = stored[f"{PREFIX}k_norm.weight"]
        assert np.array_equal(found.weights["k_norm.scale"], told + 1 if name.startswith("Gemma") else told)
    expected.weights = found.weights
    X = rng.normal(size=(2, 9, D)).astype("float32")
    assert np.array_equal(found(X, X, X, causal=True), expected(X, X, X, causal=True))


@pytest.mark.parametrize("name", ["Mistral", "Qwen3, window"])
def test_arguments_that_say_the_same_are_no_contradiction(write, name):
    model, options = MODELS[name]
    path = write(model, normed="qk_norm" in options)
    config = mha.load(path, "numpy").config
    again = {"rotary": mha.Rotary(base=10000), "window": list(config.window), "qk_norm": config.qk_norm}
    assert mha.load(path, "numpy", num_heads=H, **again).config == config


QWEN2 = {"model_type": "qwen2", **WINDOWS}
REFUSED = {
    "no object": ("[]", "expected a JSON object, not []"),
    "cut": ('{"model_type": "lla', "Unterminated string"),
    "a name twice": ('{"model_type": "llama", "model_type": "llama"}', "'model_type' comes 2 times"),
    "no UTF-8": ('{"model_type": "\udcff"}', "codec can't decode"),
    "other heads": (LLAMA, "says 4 heads, but num_heads is 2; leave it out", {"num_heads": 2}),
    "other base": (LLAMA, "says rotary=Rotary(dim=6, base=10000.0", {"rotary": mha.Rotary(base=5.0)}),
    "other window": ({"model_type": "mistral"}, "says window=(4095, 0), not (4096, 0)", {"window": (4096, 0)}),
    "no kind": ({}, "model_type is 'None', whose attention is not known in scheme 'llama': expected one of"),
    "another kind": ({"model_type": "diffllama"}, "model_type is 'diffllama', whose attention is not known"),
    "heads in quotes": ({"model_type": "llama", "num_attention_heads": "4"}, "num_attention_heads is '4'"),
    "more of a rotation": (
        LLAMA | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "rope_parameters of rope_type 'default' has partial_rotary_factor, which is not known",
    ),
    "less of a rotation": (
        LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}},
        "rope_scaling of rope_type 'llama3' lacks high_freq_factor, low_freq_factor",
    ),
    "a rotation in words": (LLAMA | {"rope_scaling": "linear"}, "rope_scaling is 'linear', expected options"),
    "base of 0": (LLAMA | {"rope_theta": 0}, "rope_theta is 0, expected a finite number above 0"),
    "partly": (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, which may change the att"),
    "capped": (LLAMA | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0, which may change"),
    "another's window": (LLAMA | {"sliding_window": 8}, "sliding_window is 8, which may change"),
    "other layers": (
        QWEN2 | {"layer_types": ["full_attention", "linear_attention"]},
        "layer_types has 'linear_attention' for layer 1, expected full_attention or sliding_attention",
    ),
    "too few layers": (QWEN2 | {"layer_types": ["sliding_attention"]}, "layer_types has None for layer 1"),
    "a window of no size": (
        {"model_type": "qwen3", "layer_types": ["sliding_attention"] * 2},
        "has a window for layer 1, but sliding_window is missing or not used",
    ),
    "a scale of 0": (
        {"model_type": "gemma2", "query_pre_attn_scalar": 0},
        "query_pre_attn_scalar is 0, expected a finite number above 0",
    ),
    "rotations in a word": (
        {"model_type": "gemma3_text", "rope_parameters": {"full_attention": "linear", "sliding_attention": "linear"}},
        "rope_parameters is 'linear', expected options by name",
    ),
    "a rotation in a list": (LLAMA | {"rope_scaling": {"type": ["linear"]}}, "rope_type is \"['linear']\", exp"),
    "a very wide head": (
        LLAMA | {"head_dim": 10**12, "rope_scaling": {"type": "linear", "factor": 2}},
        "head_dim is 1000000000000, expected at most 65536",
    ),
    "a base next to nothing": (
        LLAMA | {"rope_theta": 5e-324, "head_dim": 1000, "rope_scaling": {"type": "linear", "factor": 2}},
        "config.json beside it, which does not describe such a layer: ",
    ),
    "rotations by windows of no size": (
        {"model_type": "gemma3_text", "sliding_window": None},
        "sliding_window is None",
    ),
    "no width": ({"model_type": "qwen3", "head_dim": None, "hidden_size": None}, "hidden_size is None"),
    "a window of 0": ({"model_type": "mistral", "sliding_window": 0}, "sliding_window is 0, expected at least 1"),
    "other groups": (LLAMA | {"num_key_value_heads": 4}, "make num_key_value_heads = 2 with 4 heads, expected 4"),
    "other width": (LLAMA | {"head_dim": 8}, "make key_dim = 6 with 4 heads, expected 8"),
    "norms that are not there": ({"model_type": "qwen3"}, "but the layer has no weights of norms of queries"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_model_says_wrongly_is_refused(write, tmp_path, case):
    model, text, *options = REFUSED[case]
    path = write({} if isinstance(model, str) else model)
    if isinstance(model, str):
        (tmp_path / "config.json").write_bytes(model.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=re.escape(text)) as raised:
        mha.load(path, "numpy", **dict(*options))
    assert str(raised.value).startswith(f"{path} ")
    assert str(raised.value).isprintable()


# What models have that no kind here has; another model's value of each.
UNKNOWN = {
    "floor_scale": 8192.0,
    "num_kv_shared_layers": 20,
    "global_head_dim": 512,
    "num_global_key_value_heads": 4,
    "gating": True,
    "qk_scale_factor": 0.7,
    "short_mscale": 1.1,
    "clip_qkv": 8.0,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_option_about_attention_that_is_not_known_is_refused_by_name(write, name):
    path = write(LLAMA | {name: UNKNOWN[name]})
    with pytest.raises(ValueError, match=f"{name} is {UNKNOWN[name]}, which may change the attention and is not known"):
        mha.load(path, "numpy")
    assert mha.load(write(LLAMA | {name: None}), "numpy").config.num_heads == H


def test_norms_of_a_model_without_them_are_refused(write):
    with pytest.raises(TypeError, match="qk_norm is not given, expected"):
        mha.load(write(LLAMA, normed=True))


def test_a_large_config_is_not_read(write, monkeypatch):
    path = write(LLAMA)
    monkeypatch.setattr(models.config, "LIMIT", 20)
    with pytest.raises(ValueError, match=r"config\.json beside it, .* more than 20 bytes"):
        mha.load(path)


def test_a_config_that_is_no_file_is_refused(write, tmp_path):
    path = write(None)
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ValueError, match=r"config\.json is a FIFO, expected a regular file"):
        mha.load(path)


def test_the_text_part_of_a_model_of_several_parts(tmp_path, rng):
    named = {f"language_model.{name}": X for name, X in arrays(rng, normed=True).items()}
    safetensors.numpy.save_file(named, tmp_path / "model.safetensors")
    text = MODEL | {"model_type": "gemma3_text", "sliding_window": 8}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    assert mha.load(tmp_path / "model.safetensors").config.window == (7, 0)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": None}))
    with pytest.raises(ValueError, match="model_type is 'gemma3', whose attention is not known"):
        mha.load(tmp_path / "model.safetensors")


def test_one_is_added_in_float32(tmp_path, rng):
    halves = {name: (X / 99).astype("float16") for name, X in arrays(rng, normed=True).items()}
    safetensors.numpy.save_file(halves, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(MODEL | {"model_type": "gemma3_text"}))
    found = mha.load(tmp_path / "model.safetensors", "numpy").weights["q_norm.scale"]
    expected = 1 + halves[f"{PREFIX}q_norm.weight"].astype("float32")
    assert found.dtype == "float16"
    assert np.array_equal(found, expected.astype("float16"))


# Without a config.json


def test_whether_positions_rotate_is_asked(write):
    path = write(None)
    with pytest.raises(TypeError, match="num_heads is not given, expected an int"):
        mha.load(path, rotary=None)
    with pytest.raises(TypeError, match=r"rotary is not given, expected an mha\.Rotary or None") as raised:
        mha.load(path, num_heads=H)
    text = str(raised.value)
    assert text.endswith(f"; {path} does not say it")
    with pytest.raises(TypeError, match=re.escape(text.removesuffix(f"; {path} does not say it"))):
        mha.from_native(safetensors.numpy.load_file(path), num_heads=H)


@pytest.mark.parametrize("rotary", [None, mha.Rotary(base=5e5)])
def test_what_is_said_is_what_the_layer_has(write, rotary):
    path = write(None, normed=True)
    said = {"num_heads": H, "rotary": rotary, "qk_norm": "rms", "window": (3, 0), "scale": 0.5, "softcap": 9.0}
    found = mha.load(path, "numpy", **said)
    taken = mha.from_native(safetensors.numpy.load_file(path), backend="numpy", **said)
    expected = mha.MultiHeadAttention(D, num_key_value_heads=G, key_dim=d, value_dim=d, **said, backend="numpy")
    assert found.config == taken.config == expected.config
    assert_same_weights(found.weights, taken.weights)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"rotray": None}, TypeError, "rotray is no argument here, expected one of num_key_value_heads, scale, "),
        ({"rotary": None, "num_key_value_heads": 3}, ValueError, "expected 3"),
        ({"query_size": 2}, TypeError, "query_size is no argument here"),
        ({"rotary": 1e4}, TypeError, "rotary is 10000.0 (float), expected an mha.Rotary"),
        ({"rotary": None, "qk_norm": "rms"}, ValueError, "qk_norm is 'rms', but the layer has no weights of norms"),
        ({"rotary": None, "num_heads": 3}, ValueError, "k_proj.weight has 12 outputs, expected 24"),
    ],
)
def test_what_is_said_wrongly_is_refused(write, options, error, text):
    with pytest.raises(error, match=re.escape(text)):
        mha.load(write(None), **{"num_heads": 12 if "rotray" in options else H} | options)


def test_a_norm_over_all_heads_is_said(tmp_path, rng):
    wide = arrays(rng, normed=True) | {f"{PREFIX}q_norm.weight": np.ones(H * d, "float32")}
    with pytest.raises(ValueError, match=r"q_norm\.weight has 24 numbers, expected 6, the width of a head"):
        mha.from_native(wide, num_heads=H, rotary=None, qk_norm="rms")
    norm = mha.Norm("rms", over="all")
    with pytest.raises(ValueError, match=r"k_norm\.weight has 6 numbers, expected 12, the width of all 2 heads, or 6"):
        mha.from_native(wide, num_heads=H, rotary=None, qk_norm=norm)
    both = wide | {f"{PREFIX}k_norm.weight": np.ones(2 * d, "float32")}
    assert mha.from_native(both, num_heads=H, rotary=None, qk_norm=norm).config.qk_norm == norm
    del wide[f"{PREFIX}q_norm.weight"]
    with pytest.raises(ValueError, match=r"lacks .*q_norm\.weight, though it has .*k_norm\.weight"):
        mha.from_native(wide, num_heads=H, rotary=None, qk_norm="rms")


def test_own_files_and_layers_say_everything(tmp_path):
    layer = mha.MultiHeadAttention(6, 2, backend="numpy")
    layer.save(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("not JSON, and not looked at")
    assert mha.load(tmp_path / "model.safetensors", "numpy").config == layer.config
    with pytest.raises(ValueError, match="has the configuration of its layer itself; leave out rotary"):
        mha.load(tmp_path / "model.safetensors", rotary=None)
    with pytest.raises(ValueError, match="rotary came with a layer, which has its own configuration"):
        mha.from_native(layer.layer, rotary=None)


# Commands


def test_commands_read_it_too(write, tmp_path):
    path = write(MODELS["Qwen3, window"][0], normed=True)
    shown = run("weights", "show", str(path))
    assert shown.exit_code == 0
    assert re.search(
        r"^llama +model\.layers\.1\.self_attn\. +4 .*num_key_value_heads=2.*window=\(7, 0\)", shown.stdout, re.M
    )
    assert run("convert", str(path), str(tmp_path / "out")).exit_code == 0
    assert mha.load(tmp_path / "out", "numpy").config == mha.load(path, "numpy").config
    refused = run("convert", str(path), str(tmp_path / "out"), "--num-heads", "2")
    assert refused.exit_code == 2
    assert "config.json beside it, which says 4 heads, but --num-heads is 2; leave it out" in refused.stderr
    (tmp_path / "config.json").write_text("{")
    shown = run("weights", "show", str(path))
    assert shown.exit_code == 0
    assert "config.json beside it, which does not describe such a layer" in " ".join(shown.stdout.split())


def test_convert_asks_for_what_nothing_says(write, tmp_path):
    path, out = write(None, normed=True), tmp_path / "out"
    arguments = ["convert", str(path), str(out), "--num-heads", "4", "--qk-norm", "rms"]
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert "pass --rotary BASE as the model's configuration says, or --rotary none" in refused.stderr
    assert run(*arguments, "--rotary", "500000").exit_code == 0
    assert mha.load(out, "numpy").config.rotary == mha.Rotary(d, 5e5)
    assert run(*arguments, "--rotary", "none").exit_code == 0
    assert mha.load(out, "numpy").config.rotary is None
    wrong = run(*arguments, "--rotary", "fast")
    assert wrong.exit_code == 2
    assert "--rotary is 'fast': base of Rotary is 'fast' (str), expected a number above 0" in wrong.stderr
