"""Dropout that can be seen: layers whose output is the very weights that dropout has left.

Letters: B batch, Q queries, K key-value pairs, H heads.
"""

import math

import numpy as np

import mha


def see_through(backend, rate, sizes, *, dtype="float32", **options):
    """A layer that returns the weights that dropout has left, times K, (B, Q, H*K), and the inputs for it.

    sizes: (B, H, Q, K). Queries and keys of zeros make all weights equal; values are one-hot, and kernels identities.
    """
    B, H, Q, K = sizes
    widths = {"query_size": 1, "key_size": 1, "value_size": K, "key_dim": 1, "value_dim": K}
    attention = mha.MultiHeadAttention(H * K, H, rate, **widths, dtype=dtype, backend=backend, **options)
    identities = {"W_v.kernel": np.tile(np.eye(K, dtype=dtype), H), "W_o.kernel": K * np.eye(H * K, dtype=dtype)}
    attention.weights = attention.weights | identities
    values = np.broadcast_to(np.eye(K, dtype=dtype), (B, K, K))
    return attention, [np.zeros((B, Q, 1), dtype), np.zeros((B, K, 1), dtype), values]


def assert_share(kept, share, *axes):
    """The share of weights that are kept is this one, of all of them, or along these axes.

    Hoeffding: the share kept of n independent weights misses its mean by more than sqrt(log(2 / p) / 2 n) with a
    probability of at most p. With p = 1e-9, right dropout fails 1,000 such checks for about one seed in a million.
    """
    shares = kept.mean(axes or None)
    number = kept.size / np.size(shares)
    assert np.abs(shares - share).max() <= math.sqrt(math.log(2 / 1e-9) / (2 * number))
