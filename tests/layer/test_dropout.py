"""Dropout of attention weights: off unless training, of the right rate, unbiased, reproducible.

With one-hot values and identity kernels the output is the very weights that dropout has left, so that each one of
every sample and head is seen. Queries and keys of zeros make all weights equal.
"""

import math

import adapters
import numpy as np
import pytest

import mha

ROUNDING = 2.0**-22  # TensorFlow's softmax of equal scores is a unit off on processors without AVX-512
RATE = 0.75  # 1 / (1 - RATE) needs no rounding, which MXNet does in float32
# Batch, heads, and N queries, keys and values: B * H * N * N weights, each 1 / N before dropout, which is exact.
B, H, N = 2, 2, 128


def see_through(backend, *, dropout=RATE, seed=0, dtype="float32", **options):
    """A layer that returns the weights that dropout has left, times N, (B, N, H*N), and the inputs for it."""
    sizes = {"query_size": 1, "key_size": 1, "value_size": N, "key_dim": 1, "value_dim": N}
    options |= {"dtype": dtype, "seed": seed, "backend": backend}
    attention = mha.MultiHeadAttention(H * N, H, dropout, **sizes, **options)
    identities = {"W_v.kernel": np.tile(np.eye(N, dtype=dtype), H), "W_o.kernel": N * np.eye(H * N, dtype=dtype)}
    attention.weights = attention.weights | identities
    zeros, one_hot = np.zeros((B, N, 1), dtype), np.broadcast_to(np.eye(N, dtype=dtype), (B, N, N))
    return attention, (zeros, zeros, one_hot)


def by_head(output):
    """(B, N, H*N) -> (B, H, N, N)."""
    return output.reshape(B, N, H, N).transpose(0, 2, 1, 3)  # (B, H, N, N)


def test_off_when_not_training(backend, rng):
    attention, (queries, keys, values) = see_through(backend)
    without, _ = see_through(backend, dropout=0.0)
    queries, keys = (rng.normal(size=X.shape).astype("float32") for X in (queries, keys))
    plain = without(queries, keys, values)
    assert (attention(queries, keys, values) == plain).all()
    assert (attention(queries, keys, values, training=False) == plain).all()
    assert (without(queries, keys, values, training=True) == plain).all()
    assert (attention(queries, keys, values, training=True) != plain).any()
    assert (attention(queries, keys, values) == plain).all()


def test_gradients_and_trace_have_none(backend, rng):
    attention, inputs = see_through(backend)
    without, _ = see_through(backend, dropout=0.0)
    cotangent = rng.normal(size=(B, N, H * N)).astype("float32")
    for name, gradient in attention.gradients(*inputs, cotangent=cotangent).items():
        assert (gradient == without.gradients(*inputs, cotangent=cotangent)[name]).all()
    assert np.allclose(attention.trace(*inputs)["output"], 1, rtol=ROUNDING)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("pooling", ["dot", "additive"])
def test_rate_scale_and_independence_when_training(backend, pooling, dtype):
    attention, inputs = see_through(backend, pooling=pooling, dtype=dtype)
    adapters.of(backend).seed(5)
    first, second = (by_head(attention(*inputs, training=True)) for _ in range(2))
    assert first.dtype == second.dtype == dtype
    kept, again = first != 0, second != 0
    assert np.allclose(first[kept], 1 / (1 - RATE), rtol=ROUNDING)  # what is kept grows, so that the mean stays

    # Hoeffding: the share kept of n independent weights misses its mean by more than sqrt(log(2 / p) / 2 n) with a
    # probability of at most p. Below are fewer than 1100 shares, so that with p = 1e-9 a correct backend fails this
    # test for about one seed in a million.
    def is_mean(kept, mean, *axes):
        shares = kept.mean(axes)
        number = kept.size / shares.size
        assert np.abs(shares - mean).max() <= math.sqrt(math.log(2 / 1e-9) / (2 * number))

    everything = (0, 1, 2, 3)
    is_mean(kept, 1 - RATE, *everything)
    is_mean(again, 1 - RATE, *everything)
    # No row or column is dropped as one; samples, heads, queries, keys and calls know nothing of their neighbours.
    is_mean(kept, 1 - RATE, 3)
    is_mean(kept, 1 - RATE, 2)
    pairs = [
        kept[:1] & kept[1:],
        kept[:, :1] & kept[:, 1:],
        kept[:, :, ::2] & kept[:, :, 1::2],
        kept[..., ::2] & kept[..., 1::2],
        kept & again,
    ]
    for pair in pairs:
        is_mean(pair, (1 - RATE) ** 2, *everything)


def test_hidden_keys_stay_hidden_when_training(backend):
    attention, inputs = see_through(backend)
    left = by_head(attention(*inputs, [0, N // 2], training=True))
    assert (left[0] == 0).all()
    assert (left[1, :, :, N // 2 :] == 0).all()
    assert 0 < (left[1, :, :, : N // 2] == 0).mean() < 1


def test_weights_are_returned_before_dropout(backend):
    attention, inputs = see_through(backend)
    output, weights = attention(*inputs, training=True, return_weights=True)
    assert np.allclose(weights, 1 / N, rtol=ROUNDING)
    assert (output == 0).any()


def test_the_same_seed_drops_the_same_weights(backend):
    # On NumPy and JAX dropout is drawn from the seed that a layer is made with.
    def calls(seed):
        adapters.of(backend).seed(seed)
        attention, inputs = see_through(backend, seed=seed)
        return [attention(*inputs, training=True) for _ in range(2)]

    first, second = calls(5)
    assert (first != second).any()
    assert all((X == Y).all() for X, Y in zip(calls(5), (first, second), strict=True))
    assert (calls(6)[0] != first).any()
