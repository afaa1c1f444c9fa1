"""Checkpoints of T5, whose biases are elsewhere, and in Meta's own layout, with what is beside them.

Letters: H heads, G heads of keys and values, d width of a head, D width of the output.
"""

import json
import re

import numpy as np
import pytest
import safetensors.numpy
from commands import run
from layers import assert_same_weights

import mha
from mha import parity

H, G, d, D = 4, 2, 6, 20
BLOCK = "encoder.block.0.layer.0.SelfAttention."
LAYER = "layers.1.attention."


def t5(rng):
    """A first layer of T5, with its table of biases."""
    shapes = {"q": (H * d, D), "k": (H * d, D), "v": (H * d, D), "o": (D, H * d), "relative_attention_bias": (32, H)}
    return {f"{BLOCK}{name}.weight": rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def halves(rng):
    """A layer as Hugging Face stores LLaMA: component i of a head turns with component i + d / 2."""
    shapes = {"q_proj": (H * d, D), "k_proj": (G * d, D), "v_proj": (G * d, D), "o_proj": (D, H * d)}
    return {f"{name}.weight": rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def pairs(arrays):
    """The same layer as Meta stores it: component 2i turns with component 2i + 1."""
    order = np.arange(d).reshape(2, -1).T.ravel()  # (d,): 0, n, 1, n + 1, ...
    found = {f"{LAYER}inner_attention.rope.freqs": np.ones(d // 2, "float32")}
    for letter, heads in (("q", H), ("k", G), ("v", G), ("o", None)):
        kernel = arrays[f"{letter}_proj.weight"]
        rows = (np.arange(heads)[:, None] * d + order).ravel() if letter in "qk" else slice(None)  # (heads * d,)
        found[f"{LAYER}w{letter}.weight"] = kernel[rows]
    return found


@pytest.fixture
def write(tmp_path):
    """Writes a checkpoint, and a description beside it, and returns the path of the first."""

    def written(arrays, name=None, said=None):
        path = tmp_path / "model.safetensors"
        safetensors.numpy.save_file(arrays, path)
        if name is not None:
            (tmp_path / name).write_text(json.dumps(said))
        return path

    return written


# T5

MODEL = {"model_type": "t5", "num_heads": H, "d_kv": d, "d_model": D, "relative_attention_num_buckets": 32}
MODEL |= {"relative_attention_max_distance": 128, "dropout_rate": 0.1, "is_encoder_decoder": True}


@pytest.mark.parametrize("kind", ["t5", "mt5", "umt5", "switch_transformers", None])
def test_t5_is_not_scaled(write, rng, kind):
    arrays = t5(rng)
    path = write(arrays, "config.json" if kind else None, MODEL | {"model_type": kind})
    found = mha.load(path, "numpy", num_heads=None if kind else H)
    expected = mha.MultiHeadAttention(D, H, key_dim=d, value_dim=d, scale=1.0, backend="numpy")
    assert found.config == expected.config
    for letter in "qkvo":
        assert np.array_equal(found.weights[f"W_{letter}.kernel"], arrays[f"{BLOCK}{letter}.weight"].T)
    taken = mha.from_native(arrays, num_heads=H, backend="numpy")
    assert taken.config == found.config
    assert mha.from_native(arrays, num_heads=H, scale=None).config.scale is None


@pytest.mark.parametrize(
    ("model", "options", "text"),
    [
        ({"d_kv": 8}, {}, "make key_dim = 6 with 4 heads, expected 8"),
        ({"d_kv": None}, {}, "d_kv is None"),
        ({"num_heads": 3}, {"num_heads": 4}, "says 3 heads, but num_heads is 4"),
        ({}, {"scale": 0.5}, "says scale=1.0, not 0.5; leave it out"),
        ({"model_type": "longt5"}, {}, "model_type is 'longt5', whose attention is not known in scheme 't5'"),
        ({"encoder_attention_type": "local"}, {}, "encoder_attention_type is 'local', which may change"),
    ],
)
def test_what_does_not_describe_t5_is_refused(write, rng, model, options, text):
    path = write(t5(rng), "config.json", MODEL | model)
    with pytest.raises(ValueError, match=re.escape(text)):
        mha.load(path, **options)


def test_names_of_t5_with_biases_are_another_model_which_scales(write, rng):
    biases = {f"{BLOCK}{letter}.bias": np.ones(H * d if letter != "o" else D, "float32") for letter in "qkvo"}
    path = write({name: X for name, X in t5(rng).items() if "relative" not in name} | biases)
    found = mha.load(path, num_heads=H)
    assert (found.config.scale, found.config.bias) == (None, True)
    with pytest.raises(ValueError, match=r"SelfAttention\.k\.bias.*, for which scheme 't5' has no place"):
        mha.load(path, num_heads=H, scheme="t5", prefix=BLOCK)


# Meta's layout

PARAMS = {"dim": D, "n_layers": 2, "n_heads": H, "n_kv_heads": G, "head_dim": d, "norm_eps": 1e-5, "vocab_size": -1}
ROTARY = mha.Rotary(base=300.0, interleaved=True)


def test_metas_order_of_components_is_that_of_hugging_face_interleaved(write, rng):
    arrays = halves(rng)
    layer = mha.from_native(arrays, num_heads=H, rotary=mha.Rotary(base=300.0), backend="numpy")
    meta = mha.load(write(pairs(arrays), "params.json", PARAMS | {"rope_theta": 300.0}), "numpy")
    given = {"key_dim": d, "value_dim": d, "num_key_value_heads": G, "rotary": ROTARY, "backend": "numpy"}
    assert meta.config == mha.MultiHeadAttention(D, H, **given).config
    X = rng.normal(size=(2, 9, D)).astype("float32")
    assert parity.ratio(layer, meta(X, X, X, causal=True), X, X, X, causal=True) <= 1
    # The same rows taken for Hugging Face's compute something else.
    renamed = {
        name.removeprefix(f"{LAYER}w")[0] + "_proj.weight": X for name, X in pairs(arrays).items() if "w" in name
    }
    wrong = mha.from_native(renamed, num_heads=H, rotary=mha.Rotary(base=300.0), backend="numpy")
    assert parity.ratio(layer, wrong(X, X, X, causal=True), X, X, X, causal=True) > 1e3


@pytest.mark.parametrize("said", [None, PARAMS, PARAMS | {"rope_theta": 5e5, "use_scaled_rope": True}])
def test_a_rotation_that_is_not_said_is_asked_for(write, rng, said):
    path = write(pairs(halves(rng)), said and "params.json", said)
    heads = {} if said else {"num_heads": H}
    with pytest.raises(TypeError, match=r"no params\.json is there .* pass rotary=mha\.Rotary\(.*, interleaved=True\)"):
        mha.load(path, **heads)
    with pytest.raises(ValueError, match=r"rotary has interleaved=False, expected True: .* as in scheme 'llama'"):
        mha.load(path, rotary=mha.Rotary(), **heads)
    assert mha.load(path, "numpy", rotary=ROTARY, **heads).config.rotary == ROTARY.within(d)
    assert mha.load(path, "numpy", rotary=None, **heads).config.rotary is None


@pytest.mark.parametrize(
    ("said", "options", "text"),
    [
        ({"n_heads": 8}, {}, "which make key_dim = 3 with 8 heads, expected 6"),
        ({"n_kv_heads": None}, {}, "make num_key_value_heads = 2 with 4 heads, expected 4"),
        ({"head_dim": None}, {}, "make key_dim = 6 with 4 heads, expected 5"),
        ({"n_heads": None}, {}, "n_heads is None"),
        ({"rope_theta": 0}, {}, "rope_theta is 0, expected a finite number above 0"),
        ({"sliding_window": 4096}, {}, "sliding_window is 4096, which may change the attention"),
        ({"yarn": {"factor": 4}}, {}, "yarn is {'factor': 4}, which may change the attention"),
        ({"rope_theta": 5e5}, {"rotary": ROTARY}, "says rotary=Rotary(dim=None, base=500000.0"),
    ],
)
def test_what_does_not_describe_the_layer_is_refused(write, rng, said, options, text):
    path = write(pairs(halves(rng)), "params.json", PARAMS | said)
    with pytest.raises(ValueError, match=re.escape(text)):
        mha.load(path, **{"rotary": ROTARY} | options if "rope_theta" not in said else options)


def test_a_config_of_hugging_face_is_not_read_for_metas_layout(write, rng):
    path = write(pairs(halves(rng)), "config.json", {"model_type": "granite"})
    assert mha.load(path, "numpy", num_heads=H, rotary=ROTARY).config.scale is None


def test_convert_knows_that_metas_layout_is_interleaved(write, rng, tmp_path):
    path, out = write(pairs(halves(rng)), "params.json", PARAMS), tmp_path / "out"
    refused = run("convert", str(path), str(out))
    assert refused.exit_code == 2
    assert "pass --rotary BASE as the model's configuration says, or --rotary none" in refused.stderr
    assert run("convert", str(path), str(out), "--rotary", "300").exit_code == 0
    found, expected = mha.load(out, "numpy"), mha.load(path, "numpy", rotary=ROTARY)
    assert found.config == expected.config
    assert_same_weights(found.weights, expected.weights)
    shown = run("weights", "show", str(path))
    assert re.search(r"^meta +layers\.1\.attention\. +4 .*num_key_value_heads=2", shown.stdout, re.M)
