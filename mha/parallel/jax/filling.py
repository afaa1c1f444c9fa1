"""Pad a sequence with rows of zeros, so that all devices have equally many, and hide these rows.

Letters as in the chapters.
"""

from jax import numpy as jnp

from mha.backends.jax.engine.pieces import prepare
from mha.core.call import PACKED, PLACES

OF_KEYS = ("key_segments", "key_positions")


def pad_inputs(queries, keys, values, call, parts):
    """Inputs with rows of zeros, so that `parts` divides their number, and the call that hides these rows."""
    Q, K, call = queries.shape[1], keys.shape[1], prepare(call, keys.shape[1])
    more_queries, more_keys = -Q % parts, -K % parts
    lens = call.valid_lens
    if (more_queries or more_keys) and lens is None:
        lens = jnp.full((len(queries), 1), K)  # (B, 1)
    if more_queries:
        lens = jnp.broadcast_to(jnp.minimum(lens, K), (len(queries), Q))  # (B, Q)
        lens = jnp.pad(lens, ((0, 0), (0, more_queries)))  # (B, Q, and more)
    queries = jnp.pad(queries, ((0, 0), (0, more_queries), (0, 0)))
    keys, values = (jnp.pad(X, ((0, 0), (0, more_keys), (0, 0))) for X in (keys, values))
    pairs = {name: _pad_pairs(X, more_queries, more_keys) for name, X in call.pairs().items()}
    tokens = {
        name: _pad_tokens(X, more_keys if name in OF_KEYS else more_queries)
        for name in (*PACKED, *PLACES)
        if (X := getattr(call, name)) is not None
    }
    return (queries, keys, values), call._replace(valid_lens=lens, **pairs, **tokens)


def _pad_tokens(X, more):
    """Return numbers of tokens, such as positions, (T,) or (B, T), and so many more, of padding."""
    return jnp.pad(X, [*(X.ndim - 1) * [(0, 0)], (0, more)], constant_values=-1)


def _pad_pairs(X, more_queries, more_keys):
    """An array of pairs (B, H, Q, K) with zeros for more queries and keys; a size of 1 stays 1."""
    Q, K = X.shape[2:]
    return jnp.pad(X, ((0, 0), (0, 0), (0, 0 if Q == 1 else more_queries), (0, 0 if K == 1 else more_keys)))
