"""Output gates in files: an array of their own, or beside the queries of each head; and values that are the keys.

Letters: H heads, D hidden units, d the width of a head, dv that of a head of values.
"""

import json

import numpy as np
import pytest
import safetensors.numpy

import mha
from mha.weights import models, schemes

from .gated_layers import AT, MODEL, QWEN, D, H, d, dv

GEMMA = {
    "model_type": "gemma4_text",
    "global_head_dim": d,
    "num_hidden_layers": 4,
    "layer_types": 2 * ["full_attention"],
}


def arrays(rng, width=d, **others):
    """The kernels of a layer by LLaMA's names, and others."""
    shapes = {"q_proj": (H * d, D), "k_proj": (H * d, D), "v_proj": (H * width, D), "o_proj": (D, H * width)} | others
    return {f"{name}.weight": rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def read(named, **options):
    return mha.from_native(named, num_heads=H, rotary=None, backend="numpy", **options)


@pytest.mark.parametrize(("outputs", "kind"), [(H * dv, "element"), (H, "head")])
def test_a_gate_with_an_array_of_its_own(rng, outputs, kind):
    named = arrays(rng, dv, gate_proj=(outputs, D))
    found = read(named)
    assert found.config.output_gate == kind
    assert np.array_equal(found.weights["W_g.kernel"], named["gate_proj.weight"].T)
    assert read(named, output_gate=kind).config == found.config
    back = schemes.from_canonical(found.config, found.weights, "llama")
    assert {name: X.tolist() for name, X in back.items()} == {name: X.tolist() for name, X in named.items()}


def test_a_gate_of_heads_of_width_1_is_what_one_says(rng):
    named = arrays(rng, 1, gate_proj=(H, D))
    assert [read(named, output_gate=kind).config.output_gate for kind in ("element", "head")] == ["element", "head"]


@pytest.mark.parametrize("bias", [False, True])
def test_a_gate_beside_the_queries_of_each_head(rng, bias):
    named = arrays(rng, q_proj=(2 * H * d, D))
    rows, biases = named["q_proj.weight"], rng.normal(size=2 * H * d).astype("float32")
    if bias:
        named |= {"q_proj.bias": biases} | {f"{name}_proj.bias": np.zeros(H * d, "float32") for name in "kv"}
    weights = read(named, output_gate="element").weights
    for h in range(H):
        own, first = slice(h * d, (h + 1) * d), 2 * h * d
        assert np.array_equal(weights["W_q.kernel"][:, own], rows[first : first + d].T)
        assert np.array_equal(weights["W_g.kernel"][:, own], rows[first + d : first + 2 * d].T)
        if bias:
            assert np.array_equal(weights["W_q.bias"][own], biases[first : first + d])
            assert np.array_equal(weights["W_g.bias"][own], biases[first + d : first + 2 * d])


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        (
            {"q_proj": (2 * H * d - 2, D)},
            {"output_gate": "element"},
            "q_proj.weight has 34 outputs, expected a multiple of 6",
        ),
        ({"q_proj": (4 * H * d, D)}, {"output_gate": "element"}, "k_proj.weight has 18 outputs, expected 36 as q_proj"),
        (
            {"gate_proj": (H + 1, D)},
            {},
            r"gate_proj.weight is a kernel of \(in, out\) = \(13, 4\), expected \(13, 18\) of ",
        ),
        ({"gate_proj": (H, D + 1)}, {}, r"= \(14, 3\), expected \(13, 18\) of .*'element' or \(13, 3\) of .*'head'"),
        (
            {"gate_proj": (H, D)},
            {"output_gate": "element"},
            r"= \(13, 3\), expected \(13, 18\) of output_gate='element'$",
        ),
        ({"gate_proj": (H, D)}, {"output_gate": "heads"}, "output_gate is 'heads', expected one of element, head"),
    ],
)
def test_a_gate_that_does_not_fit_is_refused(rng, changed, options, message):
    with pytest.raises(ValueError, match=message):
        read(arrays(rng, **changed), **options)


def test_a_scheme_without_gates_refuses_one(rng):
    named = {name.replace("o_proj", "out_proj"): X for name, X in arrays(rng).items()}
    with pytest.raises(ValueError, match="output_gate is 'head', but the layer has no weights of a gate"):
        mha.from_native(named, scheme="opt", num_heads=H, output_gate="head")
    config = read(arrays(rng, gate_proj=(H, D))).config
    for scheme in ("keras", "opt"):
        with pytest.raises(ValueError, match=f"scheme '{scheme}' has no place for .*output_gate"):
            schemes.from_canonical(config, mha.MultiHeadAttention(**vars(config), backend="numpy").weights, scheme)


@pytest.mark.parametrize(("every", "window"), [(4, (7, 0)), (2, None)])
def test_layers_of_afmoe_without_a_window_do_not_rotate(every, window):
    model = MODEL | {"model_type": "afmoe", "sliding_window": 8, "global_attn_every_n_layers": every}
    found = models.options_in(model, "llama", AT)
    assert (found["rotary"], found["window"]) == (window and mha.Rotary(d), window)
    assert (found["output_gate"], found["qk_norm"]) == ("element", mha.Norm("rms", 1e-5))


def test_layers_with_linear_attention_are_refused():
    found = models.options_in(QWEN, "llama", AT)
    assert (found["output_gate"], found["fold_one"], found["rotary"].dim) == ("element", True, 4)
    with pytest.raises(ValueError, match="layer_types has 'linear_attention' for layer 0, expected full_attention or"):
        models.options_in(QWEN, "llama", "model.layers.0.self_attn.")


def test_values_that_are_the_keys(rng, tmp_path):
    named = arrays(rng)
    del named["v_proj.weight"]
    with pytest.raises(ValueError, match=r"the layer at prefix '' lacks v_proj.weight, which scheme 'llama' needs"):
        read(named)
    weights = read(named, values_are_keys=True).weights
    assert np.array_equal(weights["W_v.kernel"], named["k_proj.weight"].T)
    assert np.array_equal(weights["W_v.kernel"], weights["W_k.kernel"])
    with pytest.raises(TypeError, match="values_are_keys is 1"):
        read(named, values_are_keys=1)
    assert read(arrays(rng), values_are_keys=True).weights.keys() == weights.keys()


def test_gemma_4_says_whose_keys_a_layer_has(rng, tmp_path):
    """A layer that has queries alone is named with its owner; the prefix is enough to choose it."""
    held = {AT + name: X for name, X in arrays(rng).items()}
    held |= {AT.replace("1", "3") + name: X for name, X in arrays(rng).items() if name[0] in "qo"}
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(held, path)
    with pytest.raises(ValueError, match=r"lacks model.layers.3.self_attn.k_proj.weight, which scheme 'llama' needs"):
        mha.load(path, "numpy", prefix="model.layers.3.self_attn", num_heads=H, rotary=None)
    model = MODEL | GEMMA | {"num_kv_shared_layers": 2, "layer_types": 4 * ["full_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(model))
    with pytest.raises(
        ValueError, match=r"layer 3 has no keys and values of its own, but those of model.layers.1.self_attn"
    ):
        mha.load(path, "numpy", prefix="model.layers.3.self_attn")


@pytest.mark.parametrize("types", [None, 4 * ["sliding_attention"]])
def test_the_last_layer_of_gemma_4_has_no_window(types):
    model = MODEL | GEMMA | {"layer_types": types, "attention_k_eq_v": True}
    found = [models.options_in(model, "llama", f"model.layers.{number}.self_attn.") for number in range(4)]
    assert [one["window"] for one in found] == [*3 * [(511, 0)], None]
    assert [one.get("values_are_keys", False) for one in found] == [False, False, False, True]
