"""The rotation that `config.json` says of a model for long texts, beside a checkpoint; and what of it is refused."""

import json
import re

import numpy as np
import pytest
import safetensors.numpy
from commands import run

import mha
from mha.weights import models

from .llama_config import MODEL, PREFIX, D, G, H, arrays, d

LLAMA = {"model_type": "llama"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {"rope_type": "longrope", "short_factor": [1, 2, 3], "long_factor": [4, 5, 6]}
SIZES = {"original_max_position_embeddings": 32, "max_position_embeddings": 128}

COOLED = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 64}
COOLED |= {"llama_4_scaling_beta": 0.1, "max_position_embeddings": 1024}


ROTATIONS = {
    "LLaMA, YaRN": (
        {"model_type": "llama", "rope_parameters": YARN | {"rope_theta": 9.0, "mscale": 0.5, "truncate": False}},
        mha.yarn(d, rope_theta=9.0, factor=4.0, original_max_position_embeddings=32, truncate=False),
    ),
    "Qwen2, YaRN of old": (
        {"model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 4.0}},
        mha.yarn(d, rope_theta=1e4, factor=4.0, original_max_position_embeddings=128),
    ),
    "LLaMA, LongRoPE": (
        {"model_type": "llama", "rope_parameters": LONG | {"rope_theta": 9.0}, "original_max_position_embeddings": 32},
        mha.longrope(d, rope_theta=9.0, short_factor=[1, 2, 3], long_factor=[4, 5, 6], **SIZES),
    ),
    "LLaMA, dynamic": ({"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}}, mha.Rotary(d)),
    "LLaMA, proportional": (
        {"model_type": "llama", "rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.7}},
        mha.Rotary(frequencies=(1.0, 1e4 ** (-1 / 3), 0.0)),
    ),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_a_rotation_is_the_one_that_a_model_says(write, name):
    model, rotary = ROTATIONS[name]
    assert mha.load(write(model), "numpy").config.rotary == rotary.within(d)


REFUSED = {
    "a rotation of no type": (LLAMA | {"rope_scaling": {"type": "axial"}}, "rope_type is 'axial', expected one of"),
    "YaRN without a factor": (LLAMA | {"rope_scaling": {"type": "yarn"}}, "rope_type 'yarn' lacks factor"),
    "YaRN of a part": (
        LLAMA | {"rope_scaling": YARN | {"partial_rotary_factor": 0.5}},
        "partial_rotary_factor, which is not",
    ),
    "longrope": (LLAMA | {"rope_parameters": {"rope_type": "longrope"}}, "lacks long_factor, short_factor"),
    "factors of another width": (
        LLAMA | {"rope_parameters": LONG | {"long_factor": [1.0]}},
        "long_factor is [1.0] (list), expected 3",
    ),
    "one rotation where layers with a window have another": (
        {"model_type": "olmo3", "rope_parameters": YARN},
        "has factor, original_max_position_embeddings, rope_type, expected full_attention and sliding_attention",
    ),
    "a length without a rotation that goes by it": (LLAMA, "length is 0, expected at least 1", {"length": 0}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_rotation_that_is_wrong_is_refused(write, case):
    model, text, *options = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(text)):
        mha.load(write(model), "numpy", **dict(*options))


PHI3 = {"model_type": "phi3", "original_max_position_embeddings": 32, "sliding_window": 8, "full_attn_mod": 1}
OF_PHI3 = {
    "Phi-3": ({}, mha.Rotary(d)),
    "Phi-3, LongRoPE of old": (
        {"rope_scaling": LONG | {"rope_type": None, "type": "su"}},
        mha.longrope(d, rope_theta=1e4, short_factor=[1, 2, 3], long_factor=[4, 5, 6], **SIZES),
    ),
    "Phi-3, LongRoPE as YaRN": (
        {"rope_scaling": LONG | {"rope_type": None, "type": "yarn", "original_max_position_embeddings": 64}},
        mha.longrope(d, rope_theta=1e4, short_factor=[1, 2, 3], long_factor=[4, 5, 6], **SIZES),
    ),
    "Phi-4-mini": (
        {"partial_rotary_factor": 0.75, "rope_scaling": LONG | {"short_factor": [1, 2], "long_factor": [4, 5]}},
        mha.longrope(4, rope_theta=1e4, short_factor=[1, 2], long_factor=[4, 5], **SIZES),
    ),
}


@pytest.mark.parametrize("name", OF_PHI3)
def test_a_phi3_packs_queries_keys_and_values_one_after_another(tmp_path, rng, name):
    said, rotary = OF_PHI3[name]
    named = arrays(rng)
    packed = np.concatenate([named.pop(f"{PREFIX}{letter}_proj.weight") for letter in "qkv"])  # ((H + 2G) * d, D)
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(named | {f"{PREFIX}qkv_proj.weight": packed}, path)
    (tmp_path / "config.json").write_text(json.dumps(MODEL | PHI3 | said))
    found = mha.load(path, "numpy")
    options = {"num_key_value_heads": G, "key_dim": d, "value_dim": d, "rotary": rotary, "window": (7, 0)}
    assert found.config == mha.MultiHeadAttention(D, H, **options, backend="numpy").config
    kernels = [found.weights[f"W_{letter}.kernel"].T for letter in "qkv"]
    assert [len(kernel) for kernel in kernels] == [H * d, G * d, G * d]
    assert np.array_equal(np.concatenate(kernels), packed)
    assert np.array_equal(found.weights["W_o.kernel"].T, named[f"{PREFIX}o_proj.weight"])
    converted = run("convert", str(path), str(tmp_path / "out"))
    assert "qkv_proj.weight (out, in) part 3 of 3" in " ".join(converted.stdout.split())
    assert mha.load(tmp_path / "out", "numpy").config == found.config
    (tmp_path / "config.json").write_text(json.dumps(MODEL | PHI3 | {"num_key_value_heads": 1}))
    with pytest.raises(ValueError, match="make num_key_value_heads = 2 with 4 heads, expected 1"):
        mha.load(path)
    (tmp_path / "config.json").write_text(json.dumps(MODEL | PHI3 | {"model_type": "phimoe"}))
    with pytest.raises(ValueError, match="model_type is 'phimoe', whose attention is not known in scheme 'phi3'"):
        mha.load(path)


def test_a_length_is_nothing_to_a_layer_that_does_not_rotate(write):
    says = {"model_type": "smollm3", "rope_parameters": LONG | {"rope_theta": 9.0}, "no_rope_layers": [1, 0]}
    assert mha.load(write(says), "numpy", length=200).config.rotary is None


def test_a_rotation_goes_by_the_length_that_is_said(write, rng):
    says = {"model_type": "llama", "rope_parameters": LONG, "original_max_position_embeddings": 32}
    path, kept = write(says), {"rope_theta": 1e4, "short_factor": [1, 2, 3], "long_factor": [4, 5, 6]} | SIZES
    for length in (None, 32, 33):
        given = {} if length is None else {"length": length}
        assert mha.load(path, "numpy", **given).config.rotary == mha.longrope(d, **kept, length=length)
    assert mha.load(path, "numpy", length=33).config.rotary != mha.load(path, "numpy").config.rotary
    path = write({"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}})
    longer = mha.dynamic(d, rope_theta=1e4, factor=2.0, max_position_embeddings=128, length=200)
    assert mha.load(path, "numpy", length=200).config.rotary == longer
    assert run("convert", str(path), str(path.with_name("out")), "--length", "200").exit_code == 0
    assert mha.load(path.with_name("out"), "numpy").config.rotary == longer
    mha.load(path, "numpy", length=200).save(path.with_name("own"))
    with pytest.raises(ValueError, match="has the configuration of its layer itself; leave out length"):
        mha.load(path.with_name("own"), "numpy", length=200)
    with pytest.raises(ValueError, match="length came with arrays, whose rotation is the one that rotary says"):
        mha.from_native(arrays(rng), num_heads=H, rotary=None, length=200, backend="numpy")
    path.with_name("config.json").unlink()
    with pytest.raises(ValueError, match="length is given, but nothing beside the file says a rotation; leave it out"):
        mha.load(path, "numpy", num_heads=H, rotary=mha.Rotary(), length=200)


def test_ministral_has_a_temperature_beside_its_rotation(write):
    config = mha.load(write({"model_type": "ministral3", "rope_parameters": COOLED}), "numpy").config
    rotary = mha.yarn(d, rope_theta=1e6, factor=16.0, original_max_position_embeddings=64)
    assert (config.rotary, config.temperature) == (rotary, mha.Temperature(0.1, 64, 0))
    path = write({"model_type": "ministral3", "rope_parameters": COOLED | {"llama_4_scaling_beta": None}})
    with pytest.raises(ValueError, match="llama_4_scaling_beta is None"):
        mha.load(path, "numpy")


# Models with names of their own


def test_a_part_of_a_head_of_phi_turns():
    model, prefix = {"model_type": "phi", "num_attention_heads": 3, "hidden_size": 36}, "model.layers.1.self_attn."
    found = models.options_in(model | {"num_key_value_heads": 1}, "phi", prefix)
    expected = {"num_heads": 3, "key_dim": 12, "window": None}
    assert found == expected | {"num_key_value_heads": 1, "rotary": mha.Rotary(6)}
    found = models.options_in(model | {"partial_rotary_factor": 0.4, "rope_theta": 9.0}, "phi", prefix)
    assert found == expected | {"num_key_value_heads": 3, "rotary": mha.Rotary(4, 9.0)}
    with pytest.raises(ValueError, match="qk_layernorm is True, which may change the attention"):
        models.options_in(model | {"qk_layernorm": True}, "phi", prefix)


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl_text", "qwen3_vl_text"])
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("called", ["type", "rope_type"])
def test_tokens_of_texts_have_one_position_each(kind, name, called):
    model = {"model_type": kind, "num_attention_heads": 3, "hidden_size": 36, "head_dim": 12}
    for sort in ("mrope", "default"):
        said = {name: {called: sort, "mrope_section": [1, 1, 2], "rope_theta": 7.0, "mrope_interleaved": True}}
        found = models.options_in(model | said, "llama", "model.layers.1.self_attn.")
        assert found["rotary"] == mha.Rotary(12, 7.0)
        assert ("qk_norm" in found) is kind.startswith("qwen3")


MODERNBERT = {"model_type": "modernbert", "num_attention_heads": 3, "hidden_size": 30, "local_attention": 10}
BOTH = {"sliding_attention": {"rope_theta": 5.0}, "full_attention": {"rope_theta": 7.0}}
SLOWER = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}


@pytest.mark.parametrize(
    ("model", "layer", "rotary", "window"),
    [
        ({}, 0, mha.Rotary(10, 160000.0), None),
        ({}, 1, mha.Rotary(10, 1e4), (5, 5)),
        ({}, 2, mha.Rotary(10, 1e4), (5, 5)),
        ({}, 3, mha.Rotary(10, 160000.0), None),
        ({"global_attn_every_n_layers": 2, "global_rope_theta": 7.0}, 2, mha.Rotary(10, 7.0), None),
        ({"local_attention": 9, "local_rope_theta": 5.0}, 2, mha.Rotary(10, 5.0), (4, 4)),
        ({"layer_types": ["sliding_attention", "full_attention"]}, 0, mha.Rotary(10, 1e4), (5, 5)),
        ({"rope_parameters": BOTH}, 0, mha.Rotary(10, 7.0), None),
        ({"rope_parameters": BOTH}, 1, mha.Rotary(10, 5.0), (5, 5)),
        (SLOWER, 0, mha.linear(10, rope_theta=160000.0, factor=2.0), None),
        (SLOWER, 1, mha.linear(10, rope_theta=1e4, factor=2.0), (5, 5)),
    ],
)
def test_most_layers_of_modernbert_see_tokens_nearby_on_both_sides(model, layer, rotary, window):
    found = models.options_in(MODERNBERT | model, "modernbert", f"model.layers.{layer}.attn.")
    assert found == {"num_heads": 3, "key_dim": 10, "rotary": rotary, "window": window}
