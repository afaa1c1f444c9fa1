"""Models whose layers differ: which of them rotate positions, and which have a window, as `config.json` says."""

import dataclasses
import json
import re

import numpy as np
import pytest
import safetensors.numpy
from commands import run

import mha
from mha.weights import models

from .llama_config import LLAMA, MODEL, PREFIX, WINDOWED, WINDOWS, D, G, H, arrays, d

SMOLLM3 = {"model_type": "smollm3", "no_rope_layers": [1, 0], "max_window_layers": 28}
LLAMA4 = {"model_type": "llama4_text", "rope_theta": 5e5, "no_rope_layers": [], "attention_chunk_size": 64}
TURNED = {"rotary": mha.Rotary(base=5e5, interleaved=True), "chunk": 64}
BACKWARDS = mha.Rotary(frequencies=[-(10000.0 ** (-2 * i / d)) for i in range(d // 2)])
MINISTRAL = {"model_type": "ministral", "sliding_window": 8}
CWM = {"model_type": "cwm", "sliding_window": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 3.0}}
EXPERTS = {"model_type": "cohere2_moe", "sliding_window": 8}
COHERE2 = {"model_type": "cohere2", "position_embedding_type": "rope_gptj", "rotary_pct": 1.0, "rope_theta": 50000}
COHERE2 |= {"sliding_window": 4096, "sliding_window_pattern": 4, "use_qk_norm": False, "rope_scaling": None}


# What a model says, and the options of the layer.
MODELS = {
    "SmolLM3": (
        {"model_type": "smollm3", "no_rope_layers": [0, 1], "no_rope_layer_interval": 2, "rope_theta": 5e6},
        {"rotary": mha.Rotary(base=5e6)},
    ),
    "SmolLM3, no rotation": (SMOLLM3 | {"sliding_window": 8, "use_sliding_window": False}, {"rotary": None}),
    "SmolLM3, no rotation, window": (SMOLLM3 | WINDOWS, {"rotary": None, "window": (7, 0)}),
    "SmolLM3, types": (SMOLLM3 | WINDOWS | {"layer_types": WINDOWED[::-1]}, {"rotary": None}),
    "Mistral, types that count for nothing": (
        {"model_type": "mistral", "sliding_window": 8, "layer_types": ["full_attention"] * 2},
        {"rotary": mha.Rotary(), "window": (7, 0)},
    ),
    "Ministral": (MINISTRAL | {"layer_types": WINDOWED}, {"rotary": mha.Rotary(), "window": (7, 0)}),
    "Ministral, no window": (MINISTRAL | {"layer_types": WINDOWED[::-1]}, {"rotary": mha.Rotary()}),
    "Llama 4": (LLAMA4, TURNED | {"qk_norm": mha.Norm("rms", 1e-5, after=True)}),
    "Llama 4, listed": (
        LLAMA4 | {"no_rope_layers": [0, 1], "layer_types": ["full_attention"] * 2, "use_qk_norm": False},
        TURNED | {"chunk": None},
    ),
    "Llama 4, no rotation": (
        LLAMA4 | {"no_rope_layer_interval": 2, "attn_scale": 0.2, "floor_scale": 16},
        {"temperature": mha.Temperature(0.2, 16)},
    ),
    "Llama 4, no rotation, no temperature": (LLAMA4 | {"no_rope_layers": [1, 0], "attn_temperature_tuning": False}, {}),
    "nanochat": ({"model_type": "nanochat"}, {"rotary": BACKWARDS, "qk_norm": mha.Norm("rms", 1e-5, after=True)}),
    "Cohere2": (COHERE2, {"rotary": mha.Rotary(base=5e4, interleaved=True), "window": (4095, 0)}),
    "CWM": (CWM, {"rotary": mha.Rotary(base=3.0), "window": (7, 0)}),
    "CWM, no window": (CWM | {"layer_types": WINDOWED[::-1]}, {"rotary": mha.Rotary(base=3.0)}),
    "Cohere2, experts": (EXPERTS, {"rotary": mha.Rotary(interleaved=True), "window": (7, 0)}),
    "Cohere2, experts, no window": (EXPERTS | {"sliding_window_pattern": 2}, {"rotary": None}),
    "Cohere2, experts, after one layer without": (
        EXPERTS | {"sliding_window_pattern": 2, "first_k_dense_replace": 1},
        {"rotary": mha.Rotary(interleaved=True), "window": (7, 0)},
    ),
    "Cohere2, no experts": (EXPERTS | {"first_k_dense_replace": 2}, {"rotary": mha.Rotary(interleaved=True)}),
    "Cohere2, no experts, window": (
        EXPERTS | {"first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": 3},
        {"rotary": mha.Rotary(interleaved=True), "window": (7, 0)},
    ),
    "Cohere2, no experts, no window": (
        EXPERTS | {"first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": 2},
        {"rotary": None},
    ),
    "Cohere2, no experts by types": (
        EXPERTS | {"layer_types": WINDOWED[::-1], "mlp_layer_types": ["sparse", "dense"]},
        {"rotary": mha.Rotary(interleaved=True)},
    ),
    "Cohere2, experts by types": (
        EXPERTS | {"layer_types": WINDOWED[::-1], "mlp_layer_types": ["dense", "sparse"], "first_k_dense_replace": 2},
        {"rotary": None},
    ),
    "Cohere2, no window": (COHERE2 | {"sliding_window_pattern": 2}, {"rotary": None}),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_is_what_the_model_says_of_its_number(write, name):
    model, options = MODELS[name]
    given = {"num_key_value_heads": G, "key_dim": d, "value_dim": d} | options
    assert mha.load(write(model), "numpy").config == mha.MultiHeadAttention(D, H, **given, backend="numpy").config


REFUSED = {
    "chunks of no size": (LLAMA4 | {"attention_chunk_size": 0}, "chunk is 0, expected at least 1"),
    "windows in place of chunks": (
        LLAMA4 | {"layer_types": WINDOWED},
        "layer_types has 'sliding_attention' for layer 1, expected full_attention or chunked_attention",
    ),
    "no rotation in words": (SMOLLM3 | {"no_rope_layers": "all"}, "no_rope_layers has None for layer 1, expected 1"),
    "a rotation of 2": (SMOLLM3 | {"no_rope_layers": [1, 2]}, "no_rope_layers has 2 for layer 1, expected 1"),
    "pairs of another kind": (
        COHERE2 | {"position_embedding_type": "absolute"},
        "position_embedding_type is 'absolute', which may change the attention",
    ),
    "pairs of Cohere's kind": (
        LLAMA | {"position_embedding_type": "rope_gptj"},
        "position_embedding_type is 'rope_gptj', which may change the attention",
    ),
    "a part of Cohere's": (COHERE2 | {"rotary_pct": 0.5}, "rotary_pct is 0.5, which may change the attention"),
    "layers that are neither dense nor sparse": (
        EXPERTS | {"sliding_window_pattern": 2, "mlp_layer_types": ["dense", "thick"]},
        "mlp_layer_types has 'thick' for layer 1, expected dense or sparse",
    ),
    "Granite without a scale": (
        {"model_type": "granite", "attention_multiplier": None},
        "attention_multiplier is None",
    ),
    "norms in words": (
        {"model_type": "glm4_moe", "partial_rotary_factor": 0.7, "use_qk_norm": "yes"},
        "use_qk_norm is 'yes' (str), expected True or False",
    ),
    "windows of Cohere's of no size": (COHERE2 | {"sliding_window": None}, "sliding_window is None"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_model_says_wrongly_of_a_layer_is_refused(write, case):
    model, text = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(text)):
        mha.load(write(model), "numpy")


@pytest.mark.parametrize(
    ("model", "rotary", "norm"),
    [
        ({"model_type": "exaone_moe"}, mha.Rotary(d), mha.Norm("rms", 1e-5)),
        ({"model_type": "exaone_moe", "sliding_window_pattern": 2}, None, mha.Norm("rms", 1e-5)),
        (
            {"model_type": "glm4_moe", "use_qk_norm": True, "partial_rotary_factor": 0.7},
            mha.Rotary(4),
            mha.Norm("rms", 1e-5),
        ),
        ({"model_type": "apertus", "rope_parameters": {"rope_theta": 3.0}}, mha.Rotary(d, 3.0), mha.Norm("rms", 1e-5)),
    ],
)
def test_a_normed_layer_is_what_the_model_says_of_its_number(model, rotary, norm):
    found = models.options_in(MODEL | model, "llama", PREFIX)
    assert (found["rotary"], found["qk_norm"]) == (rotary, norm)


def test_a_rotation_that_is_none_is_the_default_of_its_kind():
    model = MODEL | {"model_type": "cwm"}
    found = models.options_in(model | {"rope_parameters": None}, "llama", PREFIX)
    assert found == models.options_in(model, "llama", PREFIX)
    assert found["rotary"] == mha.Rotary(d, 1e6, frequencies=mha.llama3_frequencies(d, 1e6, 16.0, 1.0, 4.0, 8192))


@pytest.mark.parametrize(("number", "owner"), [(2, 0), (3, 1)])
def test_a_layer_without_keys_of_its_own_is_refused(number, owner):
    model = MODEL | {"model_type": "gemma4_text", "num_kv_shared_layers": 2, "num_hidden_layers": 4}
    model["layer_types"] = 2 * ["sliding_attention", "full_attention"]
    words = f"layer {number} has no keys and values of its own, but those of model.layers.{owner}.self_attn"
    with pytest.raises(ValueError, match=re.escape(words)):
        models.options_in(model, "llama", f"model.layers.{number}.self_attn.")
    assert models.options_in(model, "llama", "model.layers.1.self_attn.")["value_norm"] == mha.Norm("rms", 1e-5)


TYPES = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}
PLAIN = {"rope_theta": 5e3, "sliding_window": None}
# What models say whose arrays lie as MLX's do, and the options of layer 1.
OF_MLX = {
    "llama, windows": (LLAMA | TYPES, {"window": (7, 0)}),
    "llama, a window that no layer has": (LLAMA | {"sliding_window": 8, "layer_types": None}, {"window": None}),
    "llama, neighbours": (LLAMA | PLAIN | {"rope_traditional": True},
        {"rotary": mha.Rotary(base=5e3, interleaved=True)}),
    "llama, halves": (LLAMA | PLAIN | {"rope_traditional": False}, {"rotary": mha.Rotary(base=5e3)}),
    "mistral, windows": (PLAIN | TYPES | {"model_type": "mistral"}, {"window": (7, 0)}),
    "mistral": (PLAIN | {"model_type": "mistral"}, {"window": None}),
    "ministral3": (TYPES | {"model_type": "ministral3", "rope_parameters": {
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 5e3, "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 8}}, {"window": (7, 0)}),
    "gemma2": ({"model_type": "gemma2", "layer_types": None}, {"window": None}),
    "gpt_oss": ({"model_type": "gpt_oss", "rope_theta": 5e3, "rope_scaling": None, "layer_types": TYPES["layer_types"]},
        {"rotary": mha.Rotary(base=5e3)}),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_MLX)
def test_models_of_mlx_read_what_others_do_not(name):
    said, options = OF_MLX[name]
    found = models.options_in(MODEL | said, "llama", PREFIX, form="mlx")
    if found.get("rotary") is not None:
        found["rotary"] = dataclasses.replace(found["rotary"], dim=None)
    assert {key: found[key] for key in options} == options


def test_others_do_not_read_it():
    with pytest.raises(ValueError, match=r"layer_types is .*, which may change the attention"):
        models.options_in(MODEL | LLAMA | TYPES, "llama", PREFIX)
    with pytest.raises(ValueError, match="sliding_window is 8, which may change the attention"):
        models.options_in(MODEL | LLAMA | {"sliding_window": 8}, "llama", PREFIX)
    with pytest.raises(ValueError, match="layer_types is"):
        models.options_in(MODEL | PLAIN | TYPES | {"model_type": "mistral"}, "llama", PREFIX)


@pytest.mark.parametrize(("number", "window"), [(0, (127, 0)), (1, None)])
def test_a_gpt_oss_has_sinks(tmp_path, rng, number, window):
    yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    model = {"model_type": "gpt_oss", "rope_theta": 150000, "rope_scaling": yarn, "initial_context_length": 4096}
    model |= {"layer_types": WINDOWED[::-1], "sliding_window": 128}
    yarn["original_max_position_embeddings"] = 4096
    named = {name.removeprefix(PREFIX): X for name, X in arrays(rng, bias=True).items()}
    named |= {"o_proj.bias": rng.normal(size=D).astype("float32"), "sinks": rng.normal(size=H).astype("float32")}
    prefix, path = f"model.layers.{number}.self_attn.", tmp_path / "model.safetensors"
    safetensors.numpy.save_file({prefix + name: X for name, X in named.items()}, path)
    (tmp_path / "config.json").write_text(json.dumps(MODEL | model))
    found = mha.load(path, "numpy")
    rotary = mha.yarn(d, rope_theta=150000, factor=32, original_max_position_embeddings=4096, truncate=False)
    given = {"num_key_value_heads": G, "key_dim": d, "value_dim": d, "bias": True, "sinks": True, "rotary": rotary}
    assert found.config == mha.MultiHeadAttention(D, H, **given, window=window, backend="numpy").config
    assert np.array_equal(found.weights["sinks"], named["sinks"])
    assert run("convert", str(path), str(tmp_path / "out")).exit_code == 0
    assert mha.load(tmp_path / "out", "numpy").config == found.config
    del named["sinks"]
    safetensors.numpy.save_file({prefix + name: X for name, X in named.items()}, path)
    with pytest.raises(ValueError, match="sinks is True, but the layer has no sinks"):
        mha.load(path)


@pytest.mark.parametrize(
    ("model", "what"), [({"model_type": "qwen2"} | WINDOWS, "have a window"), (SMOLLM3, "rotate no positions")]
)
def test_layers_that_differ_need_the_number_of_this_one(model, what):
    with pytest.raises(ValueError, match=rf"some layers {what}, and prefix '' has no layers\.NUMBER"):
        models.options_in(MODEL | model, "llama", "")
