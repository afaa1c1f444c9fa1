"""Naming schemes: every scheme both ways, and layers found among many arrays.

Letters: H heads, d and dv widths of a query or key head and of a value head, D width of the output.
"""

import re

import numpy as np
import pytest
from layers import assert_same_weights
from stored import SCHEMES, heads, layer, stored

from mha.core.options.config import Config, shapes
from mha.weights import schemes

# 1. Both ways


@pytest.mark.parametrize(("bias", "dtype"), [(True, "float32"), (False, "float16")], ids=["bias", "no-bias"])
@pytest.mark.parametrize("square", [False, True], ids=["wide", "square"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_there_and_back(scheme, square, bias, dtype):
    config, weights = layer(scheme, bias, dtype, square)
    arrays = schemes.from_canonical(config, weights, scheme)
    found, back = schemes.to_canonical(arrays, scheme, num_heads=heads(scheme))
    assert found == config
    assert_same_weights(back, weights)
    assert not any(np.shares_memory(X, array) for X in back.values() for array in arrays.values())
    assert all(X.flags.c_contiguous for X in back.values())


# Where the scheme puts canonical numbers, said once more and without the table: array[index]=weight[index].
# Widths of heads: 5, but 7 of values where they differ.
SPOTS = """
mha: W_q.kernel[10,14]=W_q.kernel[10,14] W_o.bias[18]=W_o.bias[18] W_o.kernel[20,18]=W_o.kernel[20,18]
d2l: W_v.weight[20,3]=W_v.kernel[3,20] W_k.bias[14]=W_k.bias[14] W_o.weight[18,20]=W_o.kernel[20,18]
torch: in_proj_weight[14,2]=W_q.kernel[2,14] in_proj_weight[15,2]=W_k.kernel[2,0]
  in_proj_weight[44,2]=W_v.kernel[2,14] in_proj_bias[16]=W_k.bias[1] in_proj_bias[30]=W_v.bias[0]
  out_proj.weight[18,4]=W_o.kernel[4,18]
torch-separate: k_proj_weight[14,12]=W_k.kernel[12,14] v_proj_weight[1,16]=W_v.kernel[16,1]
  in_proj_bias[29]=W_k.bias[14] out_proj.bias[18]=W_o.bias[18] out_proj.weight[18,14]=W_o.kernel[14,18]
keras: query.kernel[10,2,1]=W_q.kernel[10,11] value.kernel[3,1,6]=W_v.kernel[3,13] value.bias[2,0]=W_v.bias[14]
  attention_output.kernel[2,1,18]=W_o.kernel[15,18] attention_output.bias[18]=W_o.bias[18]
keras3: key_dense.vars.0[10,2,1]=W_k.kernel[10,11] value_dense.vars.1[2,0]=W_v.bias[14]
  output_dense.vars.0[2,1,18]=W_o.kernel[15,18]
flax: key.kernel[12,1,4]=W_k.kernel[12,9] key.bias[1,4]=W_k.bias[9] out.kernel[1,6,0]=W_o.kernel[13,0]
mlx: query_proj.weight[14,10]=W_q.kernel[10,14] key_proj.weight[3,12]=W_k.kernel[12,3]
  value_proj.bias[20]=W_v.bias[20] out_proj.weight[18,20]=W_o.kernel[20,18]
bert: self.query.weight[14,10]=W_q.kernel[10,14] self.key.weight[3,12]=W_k.kernel[12,3]
  self.value.bias[20]=W_v.bias[20] output.dense.weight[18,20]=W_o.kernel[20,18]
albert: key.weight[3,12]=W_k.kernel[12,3] dense.bias[18]=W_o.bias[18] dense.weight[18,20]=W_o.kernel[20,18]
distilbert: k_lin.weight[3,12]=W_k.kernel[12,3] out_lin.bias[18]=W_o.bias[18]
  out_lin.weight[18,20]=W_o.kernel[20,18]
vit: attention.value.weight[20,3]=W_v.kernel[3,20] output.dense.weight[18,20]=W_o.kernel[20,18]
timm: qkv.weight[15,2]=W_k.kernel[2,0] qkv.bias[30]=W_v.bias[0] proj.weight[18,4]=W_o.kernel[4,18]
gpt2: c_attn.weight[2,14]=W_q.kernel[2,14] c_attn.weight[2,15]=W_k.kernel[2,0]
  c_attn.weight[2,44]=W_v.kernel[2,14] c_attn.bias[30]=W_v.bias[0] c_proj.weight[4,18]=W_o.kernel[4,18]
gpt2-mlx: c_attn.weight[14,2]=W_q.kernel[2,14] c_attn.weight[15,2]=W_k.kernel[2,0]
  c_attn.weight[44,2]=W_v.kernel[2,14] c_attn.bias[30]=W_v.bias[0] c_proj.weight[18,4]=W_o.kernel[4,18]
llama: k_proj.weight[3,12]=W_k.kernel[12,3] o_proj.weight[18,20]=W_o.kernel[20,18]
meta: wk.weight[3,12]=W_k.kernel[12,3] wo.weight[18,20]=W_o.kernel[20,18]
neox: query_key_value.weight[4,2]=W_q.kernel[2,4] query_key_value.weight[5,2]=W_k.kernel[2,0]
  query_key_value.weight[29,2]=W_v.kernel[2,9] query_key_value.bias[31]=W_q.bias[11]
  dense.weight[18,4]=W_o.kernel[4,18]
phi3: qkv_proj.weight[14,2]=W_q.kernel[2,14] qkv_proj.weight[15,2]=W_k.kernel[2,0]
  qkv_proj.weight[44,2]=W_v.kernel[2,14] qkv_proj.bias[31]=W_v.bias[1] o_proj.weight[18,4]=W_o.kernel[4,18]
phi: k_proj.weight[3,12]=W_k.kernel[12,3] dense.weight[18,20]=W_o.kernel[20,18]
modernbert: Wqkv.weight[14,2]=W_q.kernel[2,14] Wqkv.weight[15,2]=W_k.kernel[2,0]
  Wqkv.weight[44,2]=W_v.kernel[2,14] Wo.weight[18,4]=W_o.kernel[4,18]
t5: q.weight[14,10]=W_q.kernel[10,14] o.weight[18,20]=W_o.kernel[20,18]
mpnet: q.bias[14]=W_q.bias[14] o.weight[18,20]=W_o.kernel[20,18]
blip: qkv.weight[15,2]=W_k.kernel[2,0] projection.weight[18,4]=W_o.kernel[4,18]
internvl: v_proj.weight[20,3]=W_v.kernel[3,20] projection_layer.weight[18,20]=W_o.kernel[20,18]
equinox: query_proj.weight[14,10]=W_q.kernel[10,14] key_proj.bias[3]=W_k.bias[3]
  value_proj.weight[20,3]=W_v.kernel[3,20] output_proj.weight[18,20]=W_o.kernel[20,18]
haiku: query.w[10,14]=W_q.kernel[10,14] key.b[3]=W_k.bias[3] value.w[3,20]=W_v.kernel[3,20]
  linear.w[20,18]=W_o.kernel[20,18]
vit_pytorch: to_qkv.weight[15,2]=W_k.kernel[2,0] to_qkv.bias[44]=W_v.bias[14]
  to_out.0.weight[18,4]=W_o.kernel[4,18]
megatron: linear_qkv.weight[4,2]=W_q.kernel[2,4] linear_qkv.weight[5,2]=W_k.kernel[2,0]
  linear_qkv.weight[29,2]=W_v.kernel[2,9] linear_qkv.bias[31]=W_q.bias[11]
  linear_proj.weight[18,4]=W_o.kernel[4,18]
flash_attn: Wqkv.weight[14,2]=W_q.kernel[2,14] Wqkv.weight[15,2]=W_k.kernel[2,0] Wqkv.bias[44]=W_v.bias[14]
  out_proj.weight[18,4]=W_o.kernel[4,18]
esmc: layernorm_qkv.1.weight[15,2]=W_k.kernel[2,0] layernorm_qkv.1.weight[44,2]=W_v.kernel[2,14]
  out_proj.weight[18,4]=W_o.kernel[4,18]
whisper: query.weight[14,10]=W_q.kernel[10,14] key.weight[3,12]=W_k.kernel[12,3] value.bias[20]=W_v.bias[20]
  out.weight[18,20]=W_o.kernel[20,18]
diffusers: to_q.weight[14,10]=W_q.kernel[10,14] to_k.weight[3,12]=W_k.kernel[12,3]
  to_out.0.bias[18]=W_o.bias[18] to_out.0.weight[18,20]=W_o.kernel[20,18]
opt: v_proj.weight[20,3]=W_v.kernel[3,20] out_proj.weight[18,20]=W_o.kernel[20,18]
"""


def test_each_number_has_its_place():
    tables = re.findall(r"^(\S+): ((?:.|\n  )*)", SPOTS, re.MULTILINE)
    assert sorted(scheme for scheme, _ in tables) == SCHEMES
    for scheme, spots in tables:
        (_, arrays), (_, weights) = stored(scheme), layer(scheme)
        for array, here, weight, there in re.findall(r"(\S+)\[(\S+)\]=(\S+)\[(\S+)\]", spots):
            numbers = arrays[array][indices(here)], weights[weight][indices(there)]
            assert numbers[0] == numbers[1], (scheme, array, weight)


def indices(text):
    return tuple(map(int, text.split(",")))


@pytest.mark.parametrize("scheme", ["bert", "gpt2", "keras"])
def test_transposed_and_foreign_memory(scheme):
    config, arrays = stored(scheme)
    odd = {name: np.asfortranarray(X).astype(X.dtype.newbyteorder()) for name, X in arrays.items()}
    found, weights = schemes.to_canonical(odd, scheme, num_heads=heads(scheme))
    assert found == config
    assert_same_weights(weights, layer(scheme)[1])


@pytest.mark.parametrize(
    ("scheme", "without"),
    [
        ("llama", ["o_proj"]),
        ("opt", ["k_proj"]),
        ("opt", ["q_proj", "k_proj", "v_proj"]),
        ("vit", ["attention.key"]),
        ("vit", ["attention.query", "attention.key", "attention.value"]),
        ("timm", ["qkv"]),
        ("whisper", ["key"]),
        ("diffusers", ["to_q", "to_k", "to_v"]),
        ("equinox", ["key_proj", "output_proj"]),
        ("equinox", ["query_proj", "key_proj", "value_proj"]),
        ("megatron", ["linear_proj"]),
    ],
)
def test_biases_that_a_scheme_may_lack_are_zeros(scheme, without):
    _, arrays = stored(scheme)
    for name in without:
        del arrays[f"{name}.bias"]
    config, weights = schemes.to_canonical(arrays, scheme, num_heads=3)
    assert config.bias
    _, expected = layer(scheme)
    places = schemes.SCHEMES[scheme].places
    lacking = [name for name in schemes.PROJECTIONS if places[f"{name}.bias"].name.removesuffix(".bias") in without]
    assert_same_weights(
        weights, expected | {f"{name}.bias": np.zeros_like(expected[f"{name}.bias"]) for name in lacking}
    )


@pytest.mark.parametrize(
    "scheme", ["keras", "flax", "llama", "meta", "neox", "megatron", "phi3", "phi", "flash_attn", "diffusers"]
)
def test_groups_there_and_back(rng, scheme):
    config = Config(18, 6, num_key_value_heads=2, bias=True, qk_norm="layer" if scheme == "flax" else None)
    weights = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes(config).items()}
    arrays = schemes.from_canonical(config, weights, scheme)
    if scheme == "flax":
        assert np.array_equal(arrays["key_ln.scale"], weights["k_norm.scale"])
        assert arrays["key.kernel"].shape == (18, 2, 3)
    found, back = schemes.to_canonical(arrays, scheme, num_heads=heads(scheme) and 6)
    assert found == config
    assert_same_weights(back, weights)


def test_sinks_there_and_back(rng):
    config = Config(18, 6, num_key_value_heads=2, sinks=True)
    weights = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes(config).items()}
    arrays = schemes.from_canonical(config, weights, "llama")
    assert np.array_equal(arrays["sinks"], weights["sinks"])
    found, back = schemes.to_canonical(arrays, "llama")  # they show the number of heads
    assert found == config
    assert_same_weights(back, weights)
    for name, X, text in (
        ("q_proj.weight", arrays["q_proj.weight"], "sinks is False, but the layer has sinks"),
        ("sinks", np.ones((6, 1), "float32"), r"sinks has shape \(6, 1\), expected 1 axes, H"),
    ):
        with pytest.raises(ValueError, match=text):
            schemes.to_canonical(arrays | {name: X}, "llama", sinks=False)
    with pytest.raises(ValueError, match="sinks has 6 heads, expected 3 as num_heads"):
        schemes.to_canonical(arrays, "llama", num_heads=3)
    del arrays["sinks"]
    with pytest.raises(ValueError, match="sinks is True, but the layer has no sinks"):
        schemes.to_canonical(arrays, "llama", num_heads=6, sinks=True)


# 2. Layers among many arrays


@pytest.mark.parametrize("prefix", ["", "encoder.layers.0.attn."])
def test_a_scheme_is_recognised_and_no_other(prefix):
    for scheme in SCHEMES:
        assert_recognised(scheme, prefix)


def assert_recognised(scheme, prefix):
    _, arrays = stored(scheme, prefix)
    arrays = {"zeros": np.zeros(3)} | arrays if prefix else arrays

    def formats(name):
        return schemes.SCHEMES[scheme].format

    assert schemes.recognise(arrays, formats) == [(scheme, prefix)]
    assert schemes.choose(arrays, formats=formats) == (scheme, prefix)
    assert schemes.choose(arrays, scheme, prefix) == (scheme, prefix)
    assert schemes.choose(arrays, scheme) == (scheme, prefix)
    assert schemes.choose(arrays, prefix=prefix.removesuffix("."), formats=formats) == (scheme, prefix)


def test_the_format_of_a_file_chooses_among_schemes_of_the_same_names():
    names = [*stored("gpt2", "h.0.attn.")[1], *stored("gpt2", "h.1.attn.")[1]]

    def formats(name):
        return "mlx" if name.startswith("h.1.") else "pt"

    assert schemes.recognise(names) == [("gpt2", "h.0.attn."), ("gpt2", "h.1.attn.")]
    assert schemes.recognise(names, formats) == [("gpt2", "h.0.attn."), ("gpt2-mlx", "h.1.attn.")]
    for asked in ("auto", "gpt2", "gpt2-mlx"):
        assert schemes.choose(names, asked, "h.1.attn", formats) == ("gpt2-mlx", "h.1.attn.")
    for asked in ("auto", "gpt2"):
        assert schemes.choose(names, asked, "h.0.attn", formats) == ("gpt2", "h.0.attn.")


def test_names_that_only_end_alike_are_no_layer():
    _, arrays = stored("llama")
    assert schemes.recognise({f"my_{name}": X for name, X in arrays.items()}) == []
    assert schemes.recognise(["q_proj.weight", "other.k_proj.weight", "v_proj.weight", "o_proj.weight"]) == []


def model():
    """The names of a model: two layers of self-attention, one of attention across, and other arrays."""
    names = ["embed.weight"]
    for number in (1, 10):
        names += stored("opt", f"decoder.layers.{number}.self_attn.")[1]
        names += stored("opt", f"decoder.layers.{number}.encoder_attn.")[1]
        names += [f"decoder.layers.{number}.norm.weight"]
    return names


def test_layers_come_in_the_order_of_the_names():
    layers = [f"decoder.layers.{number}.{name}." for number in (1, 10) for name in ("self_attn", "encoder_attn")]
    assert schemes.recognise(model()) == [("opt", prefix) for prefix in layers]
    for prefix in layers:
        assert schemes.choose(model(), prefix=prefix) == ("opt", prefix)
        assert len(schemes.layer_names(model(), "opt", prefix)) == 8


def test_several_layers_are_listed():
    with pytest.raises(ValueError, match="4 attention layers are there, expected one; choose") as error:
        schemes.choose(model())
    for number in (1, 10):
        assert f"scheme='opt', prefix='decoder.layers.{number}.self_attn.'" in str(error.value)


def test_a_prefix_that_is_too_short_lists_what_begins_with_it():
    with pytest.raises(ValueError, match=r"no attention layer .* prefix='decoder\.layers\.10'; choose") as error:
        schemes.choose(model(), prefix="decoder.layers.10")
    assert "prefix='decoder.layers.10.encoder_attn.'" in str(error.value)
    assert "layers.1." not in str(error.value)


def test_a_scheme_and_a_prefix_at_which_nothing_is_are_said_with_what_is_there():
    with pytest.raises(
        ValueError, match=r"no attention layer .* scheme='opt', prefix='x'; choose scheme='opt', prefix="
    ):
        schemes.choose(model(), "opt", "x")
    part = "k_proj.weight"
    assert schemes.choose([f"x.{part}"], "opt", "x") == schemes.choose([f"x.{part}"], "opt", "x.") == ("opt", "x.")
    assert schemes.choose([part], "opt", "") == ("opt", "")


def test_a_long_list_is_cut():
    names = [name for number in range(12) for name in stored("bert", f"layer.{number}.")[1]]
    with pytest.raises(ValueError, match=r"12 attention layers .* prefix='layer.7.'; and 4 more$"):
        schemes.choose(names)
    with pytest.raises(ValueError, match=r"the arrays are a.0, .*, a.7 and 2 more$"):
        schemes.choose([f"a.{number}" for number in range(10)])


@pytest.mark.parametrize(
    ("scheme", "prefix", "error", "message"),
    [
        ("gpt2", None, ValueError, "no attention layer is there with scheme='gpt2', prefix=None; choose scheme='bert'"),
        ("auto", "b", ValueError, "no attention layer is there with scheme='auto', prefix='b'; choose scheme='bert'"),
        ("BERT", None, ValueError, "scheme is 'BERT', expected one of auto, mha, d2l, torch"),
        (None, None, TypeError, "scheme is None"),
        ("auto", 3, TypeError, "prefix is a int, expected a str or None"),
    ],
)
def test_what_is_not_there(scheme, prefix, error, message):
    with pytest.raises(error, match=message):
        schemes.choose(stored("bert", "a.")[1], scheme, prefix)


def test_no_arrays_at_all():
    text = "no attention layer of a known scheme is there; rename .* pass them to mha.from_native; the arrays are none$"
    with pytest.raises(ValueError, match=text):
        schemes.choose([])


@pytest.mark.parametrize(
    ("scheme", "names"),
    [
        (
            "bert",
            ["output.LayerNorm.weight", "output.LayerNorm.bias", "output.LayerNorm.gamma", "output.LayerNorm.beta"],
        ),
        ("bert", ["self.rotary_embeddings.inv_freq", "ln.weight", "LayerNorm.bias", "self_attn_layer_norm.weight"]),
        ("opt", ["bias", "masked_bias"]),
        ("gpt2", ["bias", "masked_bias"]),
        ("llama", ["rotary_emb.inv_freq"]),
        ("meta", ["inner_attention.rope.freqs"]),
        ("t5", ["relative_attention_bias.weight"]),
        ("flax", ["rngs.dropout.key"]),
        ("megatron", ["linear_qkv.layer_norm_weight", "linear_qkv._extra_state", "core_attention._extra_state"]),
        ("esmc", ["layernorm_qkv.0.weight", "layernorm_qkv.0.bias"]),
        ("vit_pytorch", ["norm.weight", "norm.bias"]),
    ],
)
def test_what_may_lie_beside_is_passed_over(scheme, names):
    config, arrays = stored(scheme, "a.")
    beside = dict.fromkeys((f"a.{name}" for name in names), np.array([np.nan]))
    assert schemes.to_canonical(arrays | beside, scheme, "a.", heads(scheme))[0] == config


def test_biases_show_that_names_are_those_of_mpnet():
    arrays = stored("mpnet", "a.")[1] | stored("t5", "b.")[1]
    assert schemes.recognise(arrays) == [("mpnet", "a."), ("t5", "b.")]
    assert schemes.choose(arrays, "t5") == ("t5", "b.")
    assert schemes.choose(arrays, prefix="a") == ("mpnet", "a.")


@pytest.mark.parametrize("scheme", ["gpt2", "gpt2-mlx"])
@pytest.mark.parametrize("asked", ["gpt2", "gpt2-mlx"])
def test_packed_kernels_show_which_way_round_they_lie(scheme, asked):
    """As those of nanoGPT, which have GPT-2's names and are (out, in)."""
    config, arrays = stored(scheme, "h.0.attn.")
    found, weights = schemes.to_canonical(arrays, asked, "h.0.attn.", heads(scheme))
    assert found == config
    assert_same_weights(weights, layer(scheme)[1])
