"""Dropout of attention weights: off unless training, of the right rate, unbiased, reproducible, also in pieces.

The output is the very weights that dropout has left, so that each one of every sample and head is seen.
"""

import adapters
import numpy as np
import pytest
from dropping import assert_share, see_through

import mha
from mha import parity
from mha.core import dispatch
from mha.core.engine import blocks

ROUNDING = 2.0**-22  # TensorFlow's softmax of equal scores is a unit off on processors without AVX-512
RATE = 0.75  # 1 / (1 - RATE) needs no rounding, which MXNet does in float32
# Batch, heads, and N queries, keys and values: B * H * N * N weights, each 1 / N before dropout, which is exact.
B, H, N = 2, 2, 128


def made(backend, *, dropout=RATE, **options):
    return see_through(backend, dropout, (B, H, N, N), **{"seed": 0} | options)


def by_head(output):
    """(B, Q, H*K) -> (B, H, Q, K), where a layer has H heads."""
    return output.reshape(B, N, H, N).transpose(0, 2, 1, 3)  # (B, H, N, N)


def test_off_when_not_training(backend, rng):
    attention, (queries, keys, values) = made(backend)
    without, _ = made(backend, dropout=0.0)
    queries, keys = (rng.normal(size=X.shape).astype("float32") for X in (queries, keys))
    plain = without(queries, keys, values)
    assert (attention(queries, keys, values) == plain).all()
    assert (attention(queries, keys, values, training=False) == plain).all()
    assert (without(queries, keys, values, training=True) == plain).all()
    assert (attention(queries, keys, values, training=True) != plain).any()
    assert (attention(queries, keys, values) == plain).all()


def test_gradients_and_trace_have_none(backend, rng):
    attention, inputs = made(backend)
    without, _ = made(backend, dropout=0.0)
    cotangent = rng.normal(size=(B, N, H * N)).astype("float32")
    for name, gradient in attention.gradients(*inputs, cotangent=cotangent).items():
        assert (gradient == without.gradients(*inputs, cotangent=cotangent)[name]).all()
    assert np.allclose(attention.trace(*inputs)["output"], 1, rtol=ROUNDING)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("pooling", ["dot", "additive"])
def test_rate_scale_and_independence_when_training(backend, pooling, dtype):
    attention, inputs = made(backend, pooling=pooling, dtype=dtype)
    adapters.of(backend).seed(5)
    first, second = (by_head(attention(*inputs, training=True)) for _ in range(2))
    assert first.dtype == second.dtype == dtype
    kept, again = first != 0, second != 0
    assert np.allclose(first[kept], 1 / (1 - RATE), rtol=ROUNDING)  # what is kept grows, so that the mean stays
    assert_share(kept, 1 - RATE)
    assert_share(again, 1 - RATE)
    # No row or column is dropped as one; samples, heads, queries, keys and calls know nothing of their neighbours.
    assert_share(kept, 1 - RATE, 3)
    assert_share(kept, 1 - RATE, 2)
    pairs = [
        kept[:1] & kept[1:],
        kept[:, :1] & kept[:, 1:],
        kept[:, :, ::2] & kept[:, :, 1::2],
        kept[..., ::2] & kept[..., 1::2],
        kept & again,
    ]
    for pair in pairs:
        assert_share(pair, (1 - RATE) ** 2)


# Samples, heads, queries and keys of calls in pieces: some queries, at least BLOCK, of one head or of all, some heads
# of one sample, or some samples, as each backend cuts them.
CUT, BLOCK = (4, 3, 16, 32), 4
PIECES = {"queries": BLOCK * 3 * 32, "heads": 16 * 32, "a sample": 3 * 16 * 32, "samples": 2 * 3 * 16 * 32}  # scores


@pytest.mark.parametrize("cut", PIECES)
def test_pieces_are_dropped_apart(backend, monkeypatch, cut):
    # JAX's blocks of queries are of one head, with four times as many.
    scores = BLOCK * 32 // 4 if (backend, cut) == ("jax", "queries") else PIECES[cut]
    monkeypatch.setattr(blocks, "SCORES", scores)
    adapters.of(backend).forget_programs()
    attention, inputs = see_through(backend, RATE, CUT)
    outputs = (attention(*inputs, training=True) for _ in range(2))
    first, second = (X.reshape(4, 16, 3, 32).swapaxes(1, 2) for X in outputs)  # (B, H, Q, K)
    adapters.of(backend).forget_programs()
    kept, again = first != 0, second != 0
    assert np.allclose(first[kept], 1 / (1 - RATE), rtol=ROUNDING)
    assert_share(kept, 1 - RATE)
    assert_share(kept, 1 - RATE, 2, 3)  # of each head of each sample
    assert_share(kept, 1 - RATE, 0, 1, 3)  # of each query
    for other in (again, *(np.roll(kept, 1, axis) for axis in range(4)), np.roll(kept, BLOCK, 2)):
        assert_share(kept & other, (1 - RATE) ** 2)
    # No piece is dropped as another is: two blocks are the same by chance once in 10**26 times.
    masks = np.concatenate([kept, again]).reshape(-1, BLOCK * 32)
    assert len(np.unique(masks, axis=0)) == len(masks)


def test_hidden_keys_stay_hidden_when_training(backend):
    attention, inputs = made(backend)
    left = by_head(attention(*inputs, [0, N // 2], training=True))
    assert (left[0] == 0).all()
    assert (left[1, :, :, N // 2 :] == 0).all()
    assert 0 < (left[1, :, :, : N // 2] == 0).mean() < 1


def test_weights_are_returned_before_dropout(backend):
    attention, inputs = made(backend)
    output, weights = attention(*inputs, training=True, return_weights=True)
    assert np.allclose(weights, 1 / N, rtol=ROUNDING)
    assert (output == 0).any()


def test_the_same_seed_drops_the_same_weights(backend):
    # On NumPy and JAX dropout is drawn from the seed that a layer is made with.
    def calls(seed):
        adapters.of(backend).seed(seed)
        attention, inputs = made(backend, seed=seed)
        return [attention(*inputs, training=True) for _ in range(2)]

    first, second = calls(5)
    assert (first != second).any()
    assert all((X == Y).all() for X, Y in zip(calls(5), (first, second), strict=True))
    assert (calls(6)[0] != first).any()


@pytest.mark.backends("torch")
@pytest.mark.parametrize("dropout", [0.0, RATE])
@pytest.mark.parametrize("training", [False, True])
def test_views_of_the_heads_are_left_for_dropout_alone(backend, monkeypatch, dropout, training):
    """PyTorch's kernel takes views of the heads, which keeps no scores that could be dropped."""
    attention, X = mha.MultiHeadAttention(12, 3, dropout, backend=backend), np.ones((2, 5, 12), "float32")
    expected, _ = attention(X, X, X, return_weights=True)
    kind, calls = dispatch.load(backend).MultiHeadAttention, []
    takes_views = kind.takes_views
    monkeypatch.setattr(kind, "takes_views", lambda *given: calls.append(takes_views(*given)) or calls[-1])
    output = attention(X, X, X, training=training)
    dropping = dropout > 0 and training
    assert calls
    assert all(taken == (not dropping) for taken in calls)
    assert (parity.error(output, expected) > parity.bound("float32", expected, expected)) == dropping
