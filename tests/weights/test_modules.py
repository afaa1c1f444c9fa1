"""`mha.from_native` of modules as transformers has them, of stacks of layers, and with options that `mha` itself reads.

A module here has what such a module has: arrays by name, a config that writes itself as JSON, and its number.
"""

import json

import numpy as np
import pytest
import safetensors.numpy
from layers import assert_same_weights
from stored import asked, heads, stored

import mha
from mha import parity
from mha.core import dispatch
from mha.weights import models

D, H, G, WIDTH = 12, 3, 1, 4


class Config:
    """A configuration that writes itself."""

    def __init__(self, **values):
        self.values = values

    def to_json_string(self):
        return json.dumps(self.values)


class Module:
    """Arrays by name, of this module or of its parts, which alone has a configuration."""

    def __init__(self, arrays, config=None, layer_idx=None, parts=()):
        self.arrays, self.parts = arrays, parts
        if config is not None:
            self.config = config
        if layer_idx is not None:
            self.layer_idx = layer_idx

    def state_dict(self):
        return self.arrays

    def modules(self):
        return [self, *self.parts]


def gemma(rng, dtype="float32"):
    """The arrays of a layer of Gemma 3, and the configuration of its model, whose layers 0 and 2 have a window."""
    sizes = {"q_proj": (H * WIDTH, D), "k_proj": (G * WIDTH, D), "v_proj": (G * WIDTH, D), "o_proj": (D, H * WIDTH)}
    arrays = {f"{name}.weight": rng.normal(size=size).astype(dtype) for name, size in sizes.items()}
    arrays |= {f"{name}.weight": rng.normal(size=WIDTH).astype(dtype) for name in ("q_norm", "k_norm")}
    config = {
        "model_type": "gemma3_text", "num_attention_heads": H, "num_key_value_heads": G, "head_dim": WIDTH,
        "query_pre_attn_scalar": 16, "sliding_window": 8, "attention_dropout": 0.25, "rms_norm_eps": 1e-5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }  # fmt: skip
    return arrays, config


def saved(folder, arrays, config, at="model.layers.2.self_attn."):
    """The same as a file, beside its configuration."""
    safetensors.numpy.save_file({at + name: X for name, X in arrays.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "model.safetensors"


# 1. Modules


def test_a_module_says_what_its_file_says(tmp_path, rng):
    arrays, config = gemma(rng)
    expected = mha.load(saved(tmp_path, arrays, config), "numpy")
    module = Module(arrays, Config(**config), layer_idx=2)
    found = mha.from_native(module, backend="numpy")
    assert vars(found.config) == vars(expected.config) | {"dropout": 0.25}
    assert (found.config.window, found.config.scale, found.config.qk_norm) == ((7, 0), 0.25, mha.Norm("rms", 1e-5))
    assert_same_weights(found.weights, expected.weights)
    assert np.array_equal(found.weights["q_norm.scale"], 1 + arrays["q_norm.weight"])
    assert mha.from_native(Module(arrays, Config(**config), layer_idx=1)).config.window is None


def test_a_part_or_the_whole_may_have_the_configuration(tmp_path, rng):
    arrays, config = gemma(rng)
    expected = mha.load(saved(tmp_path, arrays, config), "numpy")
    named = {f"layers.{i}.self_attn.{name}": X for i in range(3) for name, X in arrays.items()}
    model = Module(named, Config(**config))
    with pytest.raises(ValueError, match="3 attention layers are there, expected one; choose scheme='llama', prefix="):
        mha.from_native(model)
    found = mha.from_native(model, prefix="layers.2.self_attn", backend="numpy")
    assert found.config.window == expected.config.window
    assert_same_weights(found.weights, expected.weights)
    bert, arrays = stored("bert")
    inner = Module(arrays, Config(model_type="bert", num_attention_heads=3))
    assert mha.from_native(Module(arrays, parts=[inner]), backend="numpy").config == bert


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_self_attention_alone_has_the_identity_as_its_output(dtype, bias):
    _, arrays = stored("bert", bias=bias, dtype=dtype)
    alone = {name.removeprefix("self."): X for name, X in arrays.items() if name.startswith("self.")}
    config = Config(model_type="bert", num_attention_heads=3, attention_probs_dropout_prob=0.1)
    layer = mha.from_native(Module(alone, config), backend="numpy")
    assert (layer.config.dtype, layer.config.bias, layer.config.num_hiddens) == (dtype, bias, 3 * 7)
    assert layer.config.dropout == 0.1
    assert np.array_equal(layer.weights["W_o.kernel"], np.eye(21))
    assert np.array_equal(layer.weights["W_v.kernel"], arrays["self.value.weight"].T)
    assert not layer.weights.get("W_o.bias", np.zeros(1)).any()


def test_what_a_module_contradicts_or_cannot_say_is_refused(rng):
    arrays, config = gemma(rng)
    module = Module(arrays, Config(**config), layer_idx=2)
    for options, text in (
        ({"num_heads": 4}, "source has a config, which says 3 heads, but num_heads is 4; leave it out"),
        ({"scale": 0.5}, "source has a config, which says scale=0.25, not 0.5; leave it out"),
        ({"layer": 1}, "layer is 1, expected None for a layer"),
        ({"scheme": "bert"}, "no attention layer is there with scheme='bert'"),
    ):
        with pytest.raises(ValueError, match=f"^{text}"):
            mha.from_native(module, **options)
    for changed, text in (
        ({"model_type": "diffllama"}, "model_type is 'diffllama', whose attention is not known"),
        ({"attention_multiplier": 3}, "attention_multiplier is 3, which may change the attention and is not known"),
        ({"layer_types": None}, "some layers have a window, and prefix '' has no layers.NUMBER"),
    ):
        other = Module(arrays, Config(**config | changed), layer_idx=None if "layer_types" in changed else 2)
        with pytest.raises(ValueError, match=r"^source has a config, which does not describe such a layer: ") as raised:
            mha.from_native(other)
        assert text in str(raised.value)
    with pytest.raises(ValueError, match=r"no attention layer of a known scheme is there; .* the arrays are table"):
        mha.from_native(Module({"table": np.ones((2, 3))}, Config(model_type="bert")))
    other = Module(arrays, Config(**config))
    other.modules = [module]  # of something else, which has the name alone
    for source in (Module(arrays), other):
        with pytest.raises(TypeError, match=r"source is a .*Module, expected named arrays"):
            mha.from_native(source)


# 2. Options that `mha` reads


def test_options_that_the_reader_of_config_json_returns_are_taken(tmp_path, rng):
    arrays, config = gemma(rng)
    path = saved(tmp_path, arrays, config)
    expected = mha.load(path, "numpy")
    read = models.options(tmp_path / "config.json", "llama", "model.layers.2.self_attn.")
    assert {"key_dim", "num_key_value_heads", "fold_one", "num_heads", "window"} <= read.keys()
    found = mha.from_native(arrays, backend="numpy", **read)
    assert found.config == expected.config
    assert_same_weights(found.weights, expected.weights)
    (tmp_path / "config.json").unlink()
    found = mha.load(path, "numpy", **read)
    assert found.config == expected.config
    assert_same_weights(found.weights, expected.weights)


@pytest.mark.parametrize(
    ("option", "error", "text"),
    [
        ({"key_dim": 5}, ValueError, "which make key_dim = 4 with 3 heads, expected 5"),
        ({"num_key_value_heads": 3}, ValueError, "which make num_key_value_heads = 1 with 3 heads, expected 3"),
        ({"fold_one": 1}, TypeError, "fold_one is 1"),
        ({"query_size": 12}, TypeError, "query_size is no argument here, expected one of num_key_value_heads, scale"),
    ],
)
def test_what_arrays_show_must_agree(rng, option, error, text):
    arrays, _ = gemma(rng)
    with pytest.raises(error, match=text):
        mha.from_native(arrays, num_heads=H, rotary=None, qk_norm="rms", **option)


def test_one_is_added_to_norms_alone(rng):
    arrays = {name: X for name, X in gemma(rng)[0].items() if "norm" not in name}
    with pytest.raises(ValueError, match="fold_one is True, but the layer has no norms of queries and keys"):
        mha.from_native(arrays, num_heads=H, rotary=None, fold_one=True)


# 3. Stacks


@pytest.mark.parametrize("scheme", ["flax", "keras", "bert", "gpt2", "llama", "t5"])
def test_a_layer_of_a_stack_is_chosen_by_its_number(scheme):
    config, arrays = stored(scheme)
    stack = {name: np.stack([X - 1, X, X + 1, X + 2]) for name, X in arrays.items()}
    options = {"num_heads": heads(scheme), "backend": "numpy"} | asked(scheme)
    for number, by in enumerate((-1, 0, 1, 2)):
        found = mha.from_native(stack, layer=number, **options)
        expected = mha.from_native({name: X + by for name, X in arrays.items()}, **options)
        assert found.config == expected.config == config
        assert_same_weights(found.weights, expected.weights)


def test_a_stack_without_a_number_and_a_number_without_a_stack_are_refused():
    _, arrays = stored("flax", "attention.")
    stack = {name: np.stack([X] * 4) for name, X in arrays.items()}
    with pytest.raises(ValueError, match=r"has shape \(4, .*pass layer=0, or another below 4$"):
        mha.from_native(stack)
    for number in (4, -1):
        with pytest.raises(ValueError, match=f"layer is {number}, expected one from 0 to 3, as the arrays have"):
            mha.from_native(stack, layer=number)
    with pytest.raises(TypeError, match=r"layer is 1\.0 \(float\), expected an int"):
        mha.from_native(stack, layer=1.0)
    with pytest.raises(ValueError, match="layer is 0, but the arrays are no stack of layers along their first axis: "):
        mha.from_native(arrays, layer=0)
    stack["attention.key.bias"] = stack["attention.key.bias"][:3]
    with pytest.raises(ValueError, match="layer is 0, but the arrays are no stack of layers"):
        mha.from_native(stack, layer=0)
    with pytest.raises(ValueError, match="layer is 0, expected None for a layer"):
        mha.from_native(mha.MultiHeadAttention(6, 2, backend="numpy").layer, layer=0)


@pytest.mark.backends("jax")
def test_a_stack_that_flax_scans():
    import jax
    from flax import linen

    class Block(linen.Module):
        @linen.compact
        def __call__(self, X, _):
            return linen.MultiHeadDotProductAttention(H, name="attention")(X, X), None

    stack = linen.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)()
    X = jax.numpy.ones((2, 5, D))
    X = np.random.default_rng(5).normal(size=(2, 5, D)).astype("float32")
    params = stack.init(jax.random.key(0), X, None)
    layers = [mha.from_native(params, layer=number, backend="numpy") for number in range(3)]
    for number, layer in enumerate(layers):
        kernel = np.asarray(params["params"]["attention"]["query"]["kernel"])[number]  # (D, H, d)
        assert np.array_equal(layer.weights["W_q.kernel"], kernel.reshape(D, D))
    expected, base = X.astype("float64"), X
    for layer in layers:
        expected, base = parity.in_dtype(layer, "float64")(*[expected] * 3), layer(*[base] * 3)
    found = np.asarray(stack.apply(params, X, None)[0])
    assert parity.error(found, expected) <= parity.bound("float32", expected, base)


# 4. bfloat16


@pytest.mark.backends(*(name for name, known in dispatch.FRAMEWORKS.items() if "bfloat16" in known.dtypes))
def test_weights_of_bfloat16_go_into_a_framework_in_one_call(backend):
    layer = mha.MultiHeadAttention(D, H, dtype="bfloat16", backend="numpy")
    for name, X in layer.weights.items():
        array = mha.tensor(X, backend=backend)
        assert "bfloat16" in str(array.dtype)
        assert dispatch.backend_of(array) == backend
        assert mha.to_numpy(array).tobytes() == X.tobytes(), name
