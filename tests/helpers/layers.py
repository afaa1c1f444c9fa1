"""Layers and random numbers that several tests share.

Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens.
"""

import numpy as np
import peers

import mha
from mha import parity
from mha.core import dispatch

# A layer of widths that are all different, and what it is called with.
B, Q, K, H, D = 3, 2, 5, 2, 14
WIDTHS = {"query_size": 13, "key_size": 11, "value_size": 7}


def make(backend, dtype="float64", **options):
    """A layer of these widths with a bias that is not 0, the same in every call."""
    options = {"bias": True, "seed": 0, **WIDTHS, **options}
    attention = mha.MultiHeadAttention(D, H, dtype=dtype, backend=backend, **options)
    attention.weights = {name: X + X.dtype.type(0.125) for name, X in attention.weights.items()}
    return attention


def draw(rng, sizes=(B, Q, K), dtype="float64"):
    """Its queries (B, Q, 13), keys (B, K, 11) and values (B, K, 7)."""
    batch, queries, keys = sizes
    shapes = ((batch, queries, 13), (batch, keys, 11), (batch, keys, 7))
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def agrees(result, expected, *, gradient=False):
    """Whether an array of any backend is a float64 result up to rounding, with gradients beside others of size 1."""
    limit = parity.bound(expected.dtype.name, expected, expected, gradient=gradient, scale=1.0)
    return parity.error(mha.to_numpy(result), expected) <= limit


def random_layer(rng, options, dtype="float32", backend="numpy"):
    """A layer whose weights and biases are all random."""
    attention = mha.MultiHeadAttention(**options, dtype=dtype, backend=backend)
    attention.weights = {name: rng.normal(size=X.shape).astype(X.dtype) for name, X in attention.weights.items()}
    return attention


def assert_same_weights(weights, expected):
    """Two dicts of weights have the same names in the same order, and the same bits."""
    assert list(weights) == list(expected)
    for name, X in weights.items():
        assert X.dtype == expected[name].dtype, name
        assert np.array_equal(X, expected[name]), name


def assert_agreement(rng, layer, kind, attention):
    """A layer of a kind and ours give the same by the rule of `mha.parity`: output, weights per head, all gradients."""
    config, dtype = attention.config, attention.config.dtype
    B, Q, K = 2, 3, 5
    shapes = (B, Q, config.query_size), (B, K, config.key_size), (B, K, config.value_size), (B, Q, config.num_hiddens)
    *inputs, cotangent = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    lengths, mask = np.array([5, 3], np.int32), rng.random((B, config.num_heads, Q, K)) < 0.6
    mask[..., 0] = True  # what a query without keys yields is each framework's own affair
    call = peers.Call(*inputs, lengths, mask, cotangent=cotangent)
    with dispatch.load(attention.backend).context(dtype):
        theirs = peers.of_kind(kind).run(layer, call)
    oracle = ours(parity.in_dtype(attention.to("numpy"), "float64"), call.widened())
    base = ours(attention.to("numpy"), call)
    assert_within_bounds(ours(attention, call), oracle, base, dtype)
    if kind in peers.WITHOUT_WEIGHTS:
        del oracle["weights"]
    assert_within_bounds(theirs, oracle, base, dtype)


def ours(attention, call):
    """Output, weights and gradients of our layer, as `run` of a peer gives them."""
    hiding = {"mask": call.mask, "causal": call.causal}
    output, weights = attention(*call.inputs, call.valid_lens, **hiding, return_weights=True)
    gradients = attention.gradients(*call.inputs, call.valid_lens, **hiding, cotangent=call.cotangent)
    return {"output": output, "weights": weights} | gradients


def assert_within_bounds(found, oracle, base, dtype):
    """Results in this dtype differ from float64's by no more than rounding explains; base is NumPy's in this dtype."""
    assert found.keys() == oracle.keys()
    for name, expected in oracle.items():
        gradient, scale = name not in ("output", "weights"), parity.gradient_scale(name, oracle)
        limit = parity.bound(dtype, expected, base[name], gradient=gradient, scale=scale)
        assert found[name].dtype == dtype, name
        assert parity.error(found[name], expected) <= limit, name
