"""`mha.from_native` of named arrays, flat or nested, and sources that it refuses."""

import sys

import numpy as np
import pytest
from layers import assert_same_weights
from stored import SCHEMES, asked, heads, layer, stored

import mha
from mha.core import dispatch
from mha.weights import schemes


@pytest.mark.parametrize("scheme", SCHEMES)
def test_named_arrays_become_a_layer(scheme):
    config, arrays = stored(scheme, "model.attn.")
    others = {"model.norm.weight": np.array(["not", "looked", "at"])}
    said = {"scheme": scheme} if schemes.SCHEMES[scheme].format else {}  # arrays alone say no format
    attention = mha.from_native(arrays | others, num_heads=heads(scheme), **asked(scheme), **said)
    assert attention.config == config
    assert attention.backend == "numpy"
    assert_same_weights(attention.weights, layer(scheme)[1])


@pytest.mark.parametrize("separator", [".", "/", None], ids=["dots", "slashes", "tuples"])
def test_flat_and_nested_names(separator):
    config, arrays = stored("flax")
    nested = {}
    for name, X in arrays.items():
        part, kind = name.split(".")
        nested.setdefault(part, {})[kind] = X
    joined = {
        (part, kind) if separator is None else f"{part}{separator}{kind}": X
        for part, kinds in nested.items()
        for kind, X in kinds.items()
    }
    for source in (nested, joined, {"params": nested}, {"params": joined}, {"params": {"a": {0: nested}}, "other": {}}):
        attention = mha.from_native(source, scheme="flax")
        assert attention.config == config
        assert_same_weights(attention.weights, layer("flax")[1])


@pytest.mark.parametrize("kind", [list, tuple])
def test_layers_may_be_in_a_list(kind):
    """As `model.parameters()` of MLX has them; a list of anything else is no array."""
    config, arrays = stored("flax")
    nested = {}
    for name, X in arrays.items():
        part, last = name.split(".")
        nested.setdefault(part, {})[last] = X
    model = {"model": {"layers": kind([{"norm": {"weight": np.ones(3)}}, {"attn": nested}]), "others": kind([])}}
    attention = mha.from_native(model, prefix="model.layers.1.attn")
    assert attention.config == config
    assert_same_weights(attention.weights, layer("flax")[1])
    model["model"]["layers"][1]["attn"]["query"]["kernel"] = kind([arrays["query.kernel"], {}])
    with pytest.raises(TypeError, match=r"model.layers.1.attn.query.kernel is a (list|tuple), expected a dense array"):
        mha.from_native(model, prefix="model.layers.1.attn")


def test_a_layer_does_not_share_the_arrays_of_its_source():
    _, arrays = stored("mha")
    attention = mha.from_native(arrays, num_heads=3)
    for X in arrays.values():
        X[...] = 0
    assert_same_weights(attention.weights, layer("mha")[1])


@pytest.mark.parametrize(
    ("value", "kind"), [([[1.0]], "list"), (None, "NoneType"), (np.ma.ones((15, 11)), "MaskedArray"), ("x", "str")]
)
def test_what_is_no_array_is_refused(value, kind):
    _, arrays = stored("d2l")
    with pytest.raises(TypeError, match=f"W_q.weight is a {kind}, expected a dense array"):
        mha.from_native(arrays | {"W_q.weight": value}, num_heads=3)


def test_two_arrays_of_one_name_are_refused():
    _, arrays = stored("keras")
    with pytest.raises(ValueError, match=r"two arrays are called query.kernel, expected different names"):
        mha.from_native(arrays | {"query/kernel": arrays["query.kernel"]})


def test_a_missing_framework_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "mha.backends.torch", raising=False)
    monkeypatch.setattr(dispatch, "_missing_modules", lambda name: ["torch"])
    with pytest.raises(ModuleNotFoundError, match=r'^backend .torch. needs torch: pip install "torch>=2.12"$'):
        mha.MultiHeadAttention(6, 2, backend="numpy").to_native("torch.nn.MultiheadAttention")
