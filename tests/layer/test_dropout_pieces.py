"""Dropout where a call is cut into pieces: of the right rate, unbiased, and drawn anew for every piece.

As in test_dropout.py, the output is the very weights that dropout has left. Pieces are some queries of one head or of
all, some heads of one sample, or some samples: each backend has its own.
"""

import math

import adapters
import numpy as np
import pytest

import mha
from mha import parity
from mha.core import dispatch
from mha.core.engine import blocks

ROUNDING = 2.0**-22  # TensorFlow's softmax of equal scores is a unit off on processors without AVX-512
RATE = 0.75  # 1 / (1 - RATE) needs no rounding, which MXNet does in float32
B, H, Q, K = 4, 3, 16, 32  # samples, heads, queries, keys; 1 / K is exact
BLOCK = 4  # queries: the smallest pieces have as many
PIECES = {"queries": BLOCK * H * K, "heads": Q * K, "a sample": H * Q * K, "samples": 2 * H * Q * K}  # scores at a time


def see_through(backend):
    """A layer that returns the weights that dropout has left, times K, (B, Q, H*K), and the inputs for it."""
    sizes = {"query_size": 1, "key_size": 1, "value_size": K, "key_dim": 1, "value_dim": K}
    attention = mha.MultiHeadAttention(H * K, H, RATE, **sizes, backend=backend)
    identities = {"W_v.kernel": np.tile(np.eye(K), H), "W_o.kernel": K * np.eye(H * K)}
    attention.weights = attention.weights | {name: W.astype("float32") for name, W in identities.items()}
    queries, keys, values = np.zeros((B, Q, 1)), np.zeros((B, K, 1)), np.broadcast_to(np.eye(K), (B, K, K))
    return attention, [X.astype("float32") for X in (queries, keys, values)]


@pytest.fixture(params=PIECES)
def pieces(request, backend, monkeypatch):
    """Makes pieces small."""
    scores = PIECES[request.param]
    if backend == "jax" and request.param == "queries":
        scores = BLOCK * K // 4  # its blocks are of one head, with four times as many queries
    monkeypatch.setattr(blocks, "SCORES", scores)
    adapters.of(backend).forget_programs()
    yield
    adapters.of(backend).forget_programs()


def test_rate_scale_and_independence_in_pieces(backend, pieces):
    attention, inputs = see_through(backend)
    outputs = (attention(*inputs, training=True) for _ in range(2))
    first, second = (X.reshape(B, Q, H, K).swapaxes(1, 2) for X in outputs)  # (B, H, Q, K)
    kept, again = first != 0, second != 0
    assert np.allclose(first[kept], 1 / (1 - RATE), rtol=ROUNDING)  # what is kept grows, so that the mean stays

    # Hoeffding: the share kept of n independent weights misses its mean by more than sqrt(log(2 / p) / 2 n) with a
    # probability of at most p: with p = 1e-9, correct dropout fails this test for about one seed in ten million.
    def is_mean(kept, mean, *axes):
        shares = kept.mean(axes)
        number = kept.size / shares.size
        assert np.abs(shares - mean).max() <= math.sqrt(math.log(2 / 1e-9) / (2 * number))

    everything = (0, 1, 2, 3)
    is_mean(kept, 1 - RATE, *everything)
    is_mean(kept, 1 - RATE, 2, 3)  # of each head of each sample
    is_mean(kept, 1 - RATE, 0, 1, 3)  # of each query
    for other in (again, *(np.roll(kept, 1, axis) for axis in range(4)), np.roll(kept, BLOCK, 2)):
        is_mean(kept & other, (1 - RATE) ** 2, *everything)
    # No piece is dropped as another is: two blocks are the same by chance once in 10**26 times.
    masks = np.concatenate([kept, again]).reshape(-1, BLOCK * K)
    assert len(np.unique(masks, axis=0)) == len(masks)


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
