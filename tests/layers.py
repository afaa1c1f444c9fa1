"""Layers and random numbers that several tests share.

Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens.
"""

import numpy as np

import mha
from mha import parity

# A layer of widths that are all different, and what it is called with.
B, Q, K, H, D = 3, 2, 5, 2, 14
WIDTHS = {"query_size": 13, "key_size": 11, "value_size": 7}


def make(backend, dtype="float64", **options):
    """A layer of these widths with a bias that is not 0."""
    attention = mha.MultiHeadAttention(D, H, bias=True, dtype=dtype, backend=backend, **WIDTHS, **options)
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
