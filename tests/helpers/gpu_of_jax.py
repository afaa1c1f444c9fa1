"""A GPU that is only named: JAX computes on the processor what it would be told to compute there.

In place of cuDNN's kernel there is one that does what may be its worst: a query that sees no key makes NaN, in its row
and in gradients, and what is left in rows behind the last query is NaN, too.
"""

import types

import jax
from jax import numpy as jnp

MEMORY = 6 * 2**30


def gpu(capability="9.0", memory=MEMORY):
    """A GPU of this compute capability; memory: in bytes, None = it does not say."""
    stats = None if memory is None else {"bytes_limit": memory}
    return types.SimpleNamespace(platform="gpu", compute_capability=capability, memory_stats=lambda: stats)


def kernel(
    query, key, value, *, scale, is_causal, query_seq_lengths, key_value_seq_lengths, local_window_size, implementation
):
    """Pool values (B, K, G, d) for queries (B, Q, H, d) and keys (B, K, G, d), as `jax.nn.dot_product_attention`."""
    assert implementation == "cudnn"
    assert (query_seq_lengths is None) == (key_value_seq_lengths is None)
    assert local_window_size is None or (is_causal and local_window_size[1] == 0)
    (B, Q, H, _), (_, K, G, _) = query.shape, key.shape
    assert not is_causal or Q == K
    assert Q % 2 == K % 2 == 0
    i, j = jnp.arange(Q)[None, None, :, None], jnp.arange(K)[None, None, None]  # (1, 1, Q, 1), (1, 1, 1, K)
    visible, behind = jnp.ones((B, 1, Q, K), bool), jnp.zeros((B, 1, Q, 1), bool)
    if is_causal:
        visible &= j <= i
    if local_window_size is not None:
        visible &= j >= i - local_window_size[0]
    if key_value_seq_lengths is not None:
        lens = [X[:, None, None, None] for X in (query_seq_lengths, key_value_seq_lengths)]
        assert lens[0].dtype == lens[1].dtype == jnp.int32
        behind, visible = i >= lens[0], visible & (j < lens[1])
    key, value = (jnp.repeat(X, H // G, 2) for X in (key, value))  # (B, K, H, d)
    scores = scale * jnp.einsum("bqhd,bkhd->bhqk", *(X.astype(jnp.float32) for X in (query, key)))
    scores = jnp.where(behind, 0, jnp.where(visible, scores, -jnp.inf))  # (B, H, Q, K)
    weights = jax.nn.softmax(scores, -1)
    pooled = jnp.einsum("bhqk,bkhd->bqhd", weights, value.astype(jnp.float32))
    return jnp.where(behind.swapaxes(1, 2), jnp.nan, pooled).astype(query.dtype)  # (B, Q, H, d)
