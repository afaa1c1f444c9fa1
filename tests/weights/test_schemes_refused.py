"""Naming schemes: arrays that are missing, too many, or do not go together are refused by name."""

import numpy as np
import pytest
from layers import assert_same_weights
from stored import SCHEMES, heads, stored

import mha
from mha.core.options.config import Config, shapes
from mha.weights import schemes


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ("torch", "bias_k"),  # add_bias_kv
        ("torch", "parametrizations.in_proj_weight.original"),
        ("torch", "gate.kernel"),
        ("flax", "query_ln.bias"),
        ("meta", "q_norm.weight"),
        ("t5", "q.bias"),  # MPNet, which scales
        ("bert", "self.distance_embedding.weight"),  # positions in the scores
        ("timm", "q_norm.bias"),  # a shift
        ("timm", "relative_position_bias_table"),
        ("llama", "k_norm.bias"),
        ("gpt2", "q_attn.weight"),
    ],
)
def test_an_array_without_a_counterpart_is_named(scheme, name):
    _, arrays = stored(scheme, "a.")
    arrays[f"a.{name}"] = np.zeros(3)
    with pytest.raises(ValueError, match=f"has a.{name}, for which scheme '{scheme}' has no place"):
        schemes.to_canonical(arrays, scheme, "a.", heads(scheme))


def test_a_norm_that_adds_a_shift_is_called_so():
    _, arrays = stored("timm", "a.")
    arrays |= {"a.q_norm.bias": np.zeros(3), "a.k_norm.bias": np.zeros(3)}
    with pytest.raises(ValueError, match=r"no place: the norms add a shift, .*leave these arrays out if they are 0"):
        schemes.to_canonical(arrays, "timm", "a.", heads("timm"))
    arrays["a.other"] = np.zeros(3)
    with pytest.raises(ValueError, match="no place: it computes something else"):
        schemes.to_canonical(arrays, "timm", "a.", heads("timm"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_missing_array_is_named(scheme):
    _, arrays = stored(scheme, "a.")
    for name in arrays:
        if name.removesuffix(".bias") + ".bias" == name and schemes.SCHEMES[scheme].biases:
            continue  # next test
        rest = {other: X for other, X in arrays.items() if other != name}
        with pytest.raises(ValueError, match=f"the layer.* lacks {name}"):
            schemes.to_canonical(rest, scheme, "a.", heads(scheme))


@pytest.mark.parametrize(
    ("scheme", "name", "lacking"),
    [
        ("vit", "attention.query", "a.attention.query.bias"),
        ("timm", "proj", "a.proj.bias"),
        ("llama", "q_proj", "a.q_proj.bias"),
        ("vit", "output.dense", "a.output.dense.bias"),
    ],
)
def test_some_biases_alone_are_refused(scheme, name, lacking):
    _, arrays = stored(scheme, "a.")
    del arrays[f"a.{name}.bias"]
    with pytest.raises(ValueError, match=f"the layer lacks {lacking}, though other projections of it have biases"):
        schemes.to_canonical(arrays, scheme, "a.", 3)


def kernel(shape):
    return np.ones(shape, np.float32)


REFUSED = {
    "transposed, with biases": ("bert", {"self.query.weight": kernel((11, 15))}, 3, ValueError,
        "self.query.bias has 15 numbers for W_q, expected 11, the outputs of self.query.weight; is that transposed?"),
    "transposed in heads": ("keras", {"query.kernel": kernel((3, 5, 11))}, 3, ValueError,
        "query.kernel has 5 heads, expected 3 as num_heads"),
    "width before heads": ("flax", {"value.bias": kernel((7, 3))}, None, ValueError,
        "value.bias has 7 heads, expected 3 as key.kernel"),
    "packed, not of three": ("torch", {"in_proj_weight": kernel((44, 11))}, 3, ValueError,
        r"in_proj_weight has shape \(44, 11\), expected 3 projections of equal width packed along axis 0"),
    "packed the other way round": ("gpt2", {"c_attn.weight": kernel((45, 11))}, 3, ValueError,
        r"c_attn.weight has shape \(45, 11\), expected 3 projections of equal width packed along axis 1"),
    "packed bias": ("timm", {"qkv.bias": kernel((44,))}, 3, ValueError,
        r"qkv.bias has shape \(44,\), expected 3 projections"),
    "short packed bias": ("timm", {"qkv.bias": kernel((42,))}, 3, ValueError, "qkv.bias has 14 numbers for W_q, "),
    "heads that do not divide": ("bert", {}, 4, ValueError,
        "self.query.weight has 15 outputs, expected a multiple of num_heads = 4"),
    "heads that do not divide values": ("bert", {}, 5, ValueError,
        "self.value.weight has 21 outputs, expected a multiple of num_heads = 5"),
    "no heads": ("bert", {}, None, TypeError, r"num_heads is not given, expected an int: .*; pass num_heads=\.\.\."),
    "heads that are no number": ("bert", {}, 3.0, TypeError, "num_heads is 3.0"),
    "heads that are none": ("bert", {}, 0, ValueError, "num_heads is 0, expected at least 1"),
    "other heads than told": ("flax", {}, 5, ValueError, "query.kernel has 3 heads, expected 5 as num_heads"),
    "grouped queries": ("distilbert", {"k_lin.weight": kernel((5, 13)), "k_lin.bias": kernel((5,))}, 3, ValueError,
        "k_lin.weight has 5 outputs, expected 15 as q_lin.weight: 1 heads of keys for 3 heads of queries are not"),
    "grouped keys alone": ("llama", {"k_proj.weight": kernel((5, 13)), "k_proj.bias": kernel((5,))}, 3, ValueError,
        "o_proj.weight has 21 inputs, expected 63, 3 / 1 times the outputs of v_proj.weight"),
    "grouped keys alone, in heads": ("flax", {"key.kernel": kernel((13, 1, 5))}, None, ValueError,
        "key.bias has 3 heads, expected 1 as key.kernel"),
    "one head of keys as wide as three": ("keras", {"key.kernel": kernel((13, 1, 15)), "key.bias": kernel((1, 15)),
        "value.kernel": kernel((17, 1, 21)), "value.bias": kernel((1, 21))}, None, ValueError,
        "query.kernel and key.kernel have 15 and 15 outputs, which make num_key_value_heads = 3 .*, expected 1"),
    "narrow keys": ("llama", {"k_proj.weight": kernel((12, 13)), "k_proj.bias": kernel((12,))}, 3, ValueError,
        "k_proj.weight has 12 outputs, expected 15 as q_proj.weight$"),
    "output of other heads": ("d2l", {"W_o.weight": kernel((19, 15))}, 3, ValueError,
        "W_o.weight has 15 inputs, expected 21, the outputs of W_v.weight"),
    "too few axes": ("keras", {"key.kernel": kernel((13, 15))}, 3, ValueError,
        r"key.kernel has shape \(13, 15\), expected 3 axes, iHd"),
    "too many axes": ("opt", {"v_proj.bias": kernel((21, 1))}, 3, ValueError,
        r"v_proj.bias has shape \(21, 1\), expected 1 axes, o"),
    "a number": ("opt", {"v_proj.bias": kernel(())}, 3, ValueError, r"v_proj.bias has shape \(\), expected 1 axes"),
    "empty": ("opt", {"q_proj.weight": kernel((15, 0))}, 3, ValueError,
        r"q_proj.weight has shape \(15, 0\), expected no size of 0"),
    "empty, heads told": ("flax", {"query.kernel": kernel((11, 0, 5))}, None, ValueError, "expected no size of 0"),
    "NaN": ("distilbert", {"k_lin.bias": np.full(15, np.nan, np.float32)}, 3, ValueError,
        "k_lin.bias holds NaN or infinity, expected finite weights"),
    "infinity": ("gpt2", {"c_proj.weight": np.full((15, 19), -np.inf, np.float32)}, 3, ValueError, "c_proj.weight h"),
    "mixed dtypes": ("mha", {"W_o.bias": np.ones(19)}, 3, TypeError, "W_o.bias has dtype float64, expected one"),
    "integers": ("mha", {"W_q.kernel": np.ones((11, 15), int)}, 3, TypeError, "W_q.kernel has dtype int64"),
    "complex": ("vit", {"output.dense.bias": np.ones(19, complex)}, 3, TypeError, "output.dense.bias has dtype"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_arrays_that_do_not_go_together(case):
    scheme, changed, num_heads, error, message = REFUSED[case]
    _, arrays = stored(scheme)
    assert changed.keys() <= arrays.keys()
    kept = {name: X.copy() for name, X in arrays.items()}
    with pytest.raises(error, match=message):
        schemes.to_canonical(arrays | changed, scheme, num_heads=num_heads)
    with pytest.raises(error, match=message):
        mha.from_native(arrays | changed, num_heads=num_heads)
    assert_same_weights(arrays, kept)


@pytest.mark.parametrize(
    ("scheme", "options", "text"),
    [
        ("bert", {"num_key_value_heads": 1}, "scheme 'bert' has no place for num_key_value_heads"),
        ("llama", {"rotary": mha.Rotary(), "window": (3, 0)}, "scheme 'llama' has no place for window, rotary"),
        ("llama", {"qk_norm": "rms"}, "scheme 'llama' has no place for qk_norm"),
        ("opt", {"sinks": True}, "scheme 'opt' has no place for sinks"),
        ("flax", {"qk_norm": "rms"}, "scheme 'flax' has no place for qk_norm"),
        ("flax", {"qk_norm": mha.Norm("layer", 0.5)}, "scheme 'flax' has no place for qk_norm"),
        ("t5", {}, "scheme 't5' has scale=1.0, not None"),
        ("t5", {"scale": 0.5}, "scheme 't5' has no place for scale"),
        ("t5", {"scale": 1.0, "bias": True}, r"scheme 't5' has no place for W_q\.bias, W_k\.bias"),
        ("neox", {"value_dim": 5}, "scheme 'neox' packs arrays of one shape as query_key_value.weight, not "),
        ("phi3", {"value_dim": 5}, "scheme 'phi3' packs arrays of one shape as qkv_proj.weight, not "),
    ],
)
def test_a_scheme_has_no_place_for_an_option(scheme, options, text):
    config = Config(12, 2, **options)
    weights = {name: kernel(shape) for name, shape in shapes(config).items()}
    with pytest.raises(ValueError, match=text):
        schemes.from_canonical(config, weights, scheme)


def test_a_scheme_has_no_place_for_additive_pooling():
    config = Config(6, 2, pooling="additive")
    weights = {name: kernel(shape) for name, shape in shapes(config).items()}
    with pytest.raises(ValueError, match=r"has no place for attention.W_q.kernel, .* of pooling='additive'"):
        schemes.from_canonical(config, weights, "keras")
