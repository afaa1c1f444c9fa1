"""The rows of a sequence on one of several devices: projected here, pooled over the keys of all.

Letters as in the chapters; Q and K are the rows here, of which each device has as many.
"""

import jax
from jax import numpy as jnp

from mha.engine.reach import used

from ..engine.operations import OPERATIONS
from ..engine.pooling import AttentionPooling
from ..heads import gate, repeat_groups, repeat_heads, rotate, transpose_qkv
from ..hiding import blank, four_axes, positions, visible_keys
from .ring import pool as ring


def attend_rows(layer, queries, keys, values, call, axis, how, sizes, each):
    """The output (B, Q, D) for the queries here, inside `jax.shard_map` over an axis.

    call: its lengths, mask and bias are of the queries here, or with "ulysses" of all and of the heads that meet
    here, and of all keys; sizes: numbers of all queries and keys; each: whether each query has a length of its own.
    """
    H, G = layer.config.num_heads, layer.config.num_key_value_heads
    first_query, first_key = (jax.lax.axis_index(axis) * X.shape[1] for X in (queries, keys))
    queries, keys, values = _blanked(queries, keys, values, call, axis, how, sizes, each)
    W_q, W_k, W_v = layer.W_q(queries), layer.W_k(keys), layer.W_v(values)  # (B, T, H*d)
    q, k, v = transpose_qkv(W_q, H), transpose_qkv(W_k, G), transpose_qkv(W_v, G)  # (B*H, T, d)
    q, k = _turned(layer, q, k, call.offset + first_query, first_key)
    pooled = HOWS[how](layer, q, k, v, call, axis)  # (B*H, Q, dv)
    if call.head_gates is not None:
        pooled = gate(pooled, call.head_gates, H)  # (B*H, Q, dv)
    return layer.W_o(layer.merge(pooled))  # (B, Q, D)


def _blanked(queries, keys, values, call, axis, how, sizes, each):
    """The inputs with zeros for queries that see no key, and for keys and values that no query of any device sees."""
    if not call.hides():
        return queries, keys, values
    pairs = bool(call.pairs())
    here, B = jax.lax.axis_index(axis), len(queries)
    whole_queries, whole_keys = (jnp.zeros((B, size, 1), queries.dtype) for size in sizes)
    if how == "ulysses" or not (pairs or each):
        sees, seen = _used(whole_queries, whole_keys, call)
        if pairs:  # of the heads that meet here alone
            sees, seen = _anywhere(sees, axis), _anywhere(seen, axis)
        sees = jax.lax.dynamic_slice_in_dim(sees, here * queries.shape[1], queries.shape[1], 1)  # (B, Q)
    else:
        sees, seen = _used(queries, whole_keys, _moved(call, here * queries.shape[1]))
        seen = _anywhere(seen, axis)  # (B, all keys)
    seen = jax.lax.dynamic_slice_in_dim(seen, here * keys.shape[1], keys.shape[1], 1)  # (B, K)
    return blank(queries, keys, values, sees, seen)


def _used(queries, keys, call):
    """A flag for each query (B, Q) and key (B, K), as `used` gives them, also where one stands for all."""
    found = zip(used(OPERATIONS, queries, keys, call), (queries, keys), strict=True)
    return (jnp.broadcast_to(flags, X.shape[:2]) for flags, X in found)


def _moved(call, first):
    """The call from another first query on, with an offset (B or 1, 1)."""
    return call._replace(offset=jnp.asarray(call.offset + first).reshape(-1, 1))  # (B or 1, 1)


def _anywhere(flags, axis):
    return jax.lax.pmax(flags.astype(jnp.int32), axis) > 0


def _turned(layer, q, k, offset, first_key):
    """Heads of queries and keys as they are compared, as `turn` of the layer, at their places in the whole."""
    config = layer.config
    if config.qk_norm:
        q, k = layer.q_norm(q), layer.k_norm(k)  # (B*H, T, d)
    if config.rotary:
        q = rotate(q, positions(q, offset), config.rotary, config.num_heads)  # (B*H, Q, d)
        k = rotate(k, positions(k, first_key), config.rotary, config.num_key_value_heads)  # (B*G, K, d)
    return q, k


def _ring(layer, q, k, v, call, axis):
    """The keys and values of one device after another."""
    call = _moved(call, jax.lax.axis_index(axis) * q.shape[1])
    return ring(layer.attention, q, k, v, layer.config.num_heads, call, axis)


def _ulysses(layer, q, k, v, call, axis):
    """All rows of some heads on each device: pooled there, and brought back."""
    H, G, N = layer.config.num_heads, layer.config.num_key_value_heads, jax.lax.axis_size(axis)
    B = len(q) // H
    if G % N:  # heads of keys do not go round
        k, v = repeat_groups(k, H // G), repeat_groups(v, H // G)  # (B*H, K, d)

    def exchanged(X, split, joined):
        X = X.reshape(B, -1, *X.shape[1:])  # (B, heads, rows, d)
        X = jax.lax.all_to_all(X, axis, split, joined, tiled=True)  # (B, heads, rows, d)
        return X.reshape(-1, *X.shape[2:])  # (B*heads, rows, d)

    q, k, v = (exchanged(X, 1, 2) for X in (q, k, v))  # (B*H/N, all rows, d)
    pooled = _pooled(layer.attention, q, k, v, H // N, call)  # (B*H/N, all queries, dv)
    return exchanged(pooled, 2, 1)  # (B*H, Q, dv)


def _gather(layer, q, k, v, call, axis):
    """All keys and values on each device."""
    k, v = (jax.lax.all_gather(X, axis, axis=1, tiled=True) for X in (k, v))  # (B*G, all keys, d)
    call = _moved(call, jax.lax.axis_index(axis) * q.shape[1])
    return _pooled(layer.attention, q, k, v, layer.config.num_heads, call)  # (B*H, Q, dv)


def _pooled(attention, q, k, v, num_heads, call):
    """The pooled values (B*H, Q, dv) of an attention pooling, which keeps no weights if it can."""
    if isinstance(attention, AttentionPooling):
        return attention.pool(q, k, v, num_heads, call)
    times, B = len(q) // len(k), len(q) // num_heads
    k, v = repeat_groups(k, times), repeat_groups(v, times)  # (B*H, K, d)
    visible = repeat_heads(visible_keys(q, k, call), B, num_heads)  # (B*H, Q, K)
    bias = None if call.score_bias is None else repeat_heads(four_axes(call.score_bias), B, num_heads)
    return attention(q, k, v, visible, bias, training=call.training)[0]  # (B*H, Q, dv)


HOWS = {"ring": _ring, "ulysses": _ulysses, "gather": _gather}
