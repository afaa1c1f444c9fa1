"""Sinks, one more score of each head in the softmax, which pools nothing: what the formula alone does not show."""

import adapters
import numpy as np
import pytest

import mha
from mha import parity
from mha.core import dispatch
from mha.core.options.config import numpy_dtype

B, T, D, H = 2, 7, 12, 3
LONG = pytest.mark.long(*adapters.COMPILED)
SMALL = {"num_hiddens": D, "num_heads": H, "sinks": True, "seed": 0}


def layer(backend, dtype="float64", sinks=(0.5, -1.0, 2.0), **options):
    attention = mha.MultiHeadAttention(**SMALL | options, dtype=dtype, backend=backend)
    attention.weights = attention.weights | {"sinks": np.array(sinks).astype(numpy_dtype(dtype))}
    return attention


def test_they_are_at_first_0_and_count_as_keys_of_score_0():
    attention = mha.MultiHeadAttention(**SMALL, backend="numpy")
    assert np.array_equal(attention.weights["sinks"], np.zeros(H, "float32"))
    X = np.zeros((B, T, D), "float32")
    _, weights = attention(X, X, X, [3, 0], return_weights=True)
    expected = np.zeros((B, H, T, T), "float32")
    expected[0, ..., :3] = 1 / 4
    assert parity.error(weights, expected) <= parity.bound("float32", expected, expected)


@pytest.mark.parametrize("size", [1e-6, 300.0], ids=["small", "large"])
@pytest.mark.parametrize("sinks", [(-6e4, 6e4, 0.0), (20.0, -20.0, 100.0)])
def test_softmax_and_gradients_stay_finite(backend, rng, size, sinks):
    dtype = "float16" if "float16" in dispatch.FRAMEWORKS[backend].dtypes else "float32"
    attention = layer(backend, dtype, sinks)
    X = (size * rng.normal(size=(B, T, D))).astype(dtype)
    output, weights = attention(X, X, X, [5, 0], return_weights=True)
    assert np.isfinite(output).all()
    assert (weights[0].astype("float64").sum(-1) <= 1.01).all()
    assert not weights[1].any()
    found = attention.gradients(X, X, X, [5, 0], cotangent=np.full((B, T, D), 1e-3, dtype))
    assert all(np.isfinite(by_X).all() for by_X in found.values())


@pytest.mark.parametrize("readable", [False, pytest.param(True, marks=LONG)], ids=["fast", "lesson"])
def test_dropout_drops_no_sink(backend, rng, readable):
    """With one key, each head pools 0, or its weight times 1 / (1 - p): as if the sink were always kept."""
    attention = layer(backend, dropout=0.5, readable=readable)
    eye = {f"{name}.kernel": np.eye(D) for name in ("W_v", "W_o")}
    attention.weights = attention.weights | eye
    X, key = rng.normal(size=(64, 1, D)), rng.normal(size=(64, 1, D))
    _, weights = attention(X, key, key, return_weights=True)  # (64, H, 1, 1)
    output = attention(X, key, key, training=True).reshape(64, H, -1)  # (64, H, dv)
    shares = (output / key.reshape(64, H, -1)).mean(-1) / weights[:, :, 0, 0]  # (64, H)
    kept = np.abs(shares - 2) < 1e-9
    assert (kept | (np.abs(shares) < 1e-9)).all()
    assert 0.3 < kept.mean() < 0.7


def test_one_query_is_as_one_of_many(backend, rng):
    attention = layer(backend, num_key_value_heads=1)
    X = rng.normal(size=(B, T, D))
    expected = layer("numpy", num_key_value_heads=1)(X, X, X)
    for found, at in ((attention(X[:, 4:5], X, X), slice(4, 5)), (attention(X[:, :3], X, X), slice(3))):
        assert parity.error(found, expected[:, at]) <= parity.bound("float64", expected, expected)


@pytest.mark.parametrize("pooling", ["dot", "additive"])
def test_a_token_in_place_has_the_sinks_of_its_heads(backend, rng, pooling):
    options = {"num_heads": 6, "num_key_value_heads": 2, "sinks": [0.5, -1.0, 2.0, 1.0, -2.0, 0.0], "pooling": pooling}
    attention, X = layer(backend, **options), rng.normal(size=(B, T, D))
    expected, cache = layer("numpy", **options)(X, X, X, causal=True), attention.cache(B, 11)
    for at in range(T):
        found, cache = attention(*[X[:, at : at + 1]] * 3, causal=True, cache=cache)
        assert parity.error(found, expected[:, at : at + 1]) <= parity.bound("float64", expected, expected)
