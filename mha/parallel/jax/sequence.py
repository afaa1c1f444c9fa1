"""The rows of a sequence on one of several devices: projected here, pooled over the keys of all.

Letters as in the chapters; Q and K are the rows here, of which each device has as many. The steps and their order are
the lesson's.
"""

import jax
from jax import numpy as jnp

from mha.backends.jax import layer as lesson
from mha.backends.jax.engine.operations import OPERATIONS
from mha.backends.jax.engine.pooling import AttentionPooling
from mha.backends.jax.heads import repeat_groups, repeat_heads
from mha.backends.jax.hiding import four_axes, places, visible_keys
from mha.core.engine.visible_range import usage, zero_out

from .ring import pool as ring
from .ring import use_flags
from .twins import twin_of


def over(part, axis, how, sizes, each, placed, in_zigzag):
    """A layer for one call of the rows on each device, inside `jax.shard_map` over an axis.

    Lengths, mask and bias of its call are of all keys and of the queries here, or with "ulysses" of all queries and of
    the heads that are pooled here.

    Args:
        sizes: numbers of all queries and keys.
        each: whether each query has a length of its own.
        placed: positions of the queries here and of all keys, for the rotation, or None.
        in_zigzag: whether a ring's rows are pooled in zigzag.
    """
    known = {"sizes": sizes, "each": each, "placed": placed, "in_zigzag": in_zigzag}
    return twin_of(part, HOWS[how], axis=axis, **known)


class OfRows:
    """A layer for one call of the rows on this device; it comes before the layer's own class in the bases."""

    together = False  # whether all rows of some heads meet

    def attend(self, queries, keys, values, call):
        """Take the steps of the lesson, so that all devices exchange equally often."""
        return lesson.MultiHeadAttention.attend(self, queries, keys, values, call.with_plan(lesson=True))

    def zero_unused(self, queries, keys, values, call):
        """The inputs with zeros for queries that see no key, and for keys and values that no query anywhere sees."""
        if not call.hides():
            return queries, keys, values, call
        whole_queries, whole_keys = (jnp.zeros((len(queries), size, 1), queries.dtype) for size in self.sizes)
        if call.by_tokens():
            sees, seen = use_flags(queries, whole_keys, _move_offset(call, self.first(queries)))
            seen = _anywhere(seen, self.axis)  # (B, all keys)
        elif self.together or not (call.pairs() or self.each):
            sees, seen = _use_flags(whole_queries, whole_keys, call)
            if call.pairs():  # of the heads that meet here alone
                sees, seen = _anywhere(sees, self.axis), _anywhere(seen, self.axis)
            sees = self.here(sees, queries)  # (B, Q)
        else:
            sees, seen = _use_flags(queries, whole_keys, _move_offset(call, self.first(queries)))
            seen = _anywhere(seen, self.axis)  # (B, all keys)
        return *zero_out(OPERATIONS, queries, keys, values, sees, self.here(seen, keys)), call

    def transform_heads(self, q, k, call):
        """Norm the heads, and rotate and temper them by their places in the whole sequence."""
        of_queries, of_keys = self.placed
        here = places(k, None, self.first(k)) if of_keys is None else self.here(places(k, of_keys), k)  # (B or 1, K)
        own = call._replace(positions=of_queries, offset=call.offset + self.first(q), key_positions=here)
        return lesson.MultiHeadAttention.transform_heads(self, q, k, own)

    def first(self, X):
        """The place in the whole sequence of the first row of X (any, T, any) here."""
        return jax.lax.axis_index(self.axis) * X.shape[1]

    def here(self, flags, X):
        """The flags (B, all T) of the rows of X (B, T, any) here."""
        return jax.lax.dynamic_slice_in_dim(flags, self.first(X), X.shape[1], 1)  # (B, T)


class Ring(OfRows):
    """Keys and values of one device after another come to the queries."""

    def pool(self, q, k, v, call):
        """The pooled heads, (B*H, Q, dv)."""
        given = self.config.num_heads, self.beside_sinks(call), self.axis, self.in_zigzag
        return ring(self.attention, q, k, v, *given), None


class Gather(OfRows):
    """All keys and values on each device."""

    def pool(self, q, k, v, call):
        """The pooled heads, (B*H, Q, dv)."""
        call = _move_offset(self.beside_sinks(call), self.first(q))
        k, v = (jax.lax.all_gather(X, self.axis, axis=1, tiled=True) for X in (k, v))  # (B*G, all keys, d)
        return _pool(self.attention, q, k, v, self.config.num_heads, call), None


class Ulysses(OfRows):
    """All rows of some heads on each device, pooled there and sent back."""

    together = True

    def pool(self, q, k, v, call):
        """The pooled heads, (B*H, Q, dv)."""
        H, G, N = self.config.num_heads, self.config.num_key_value_heads, jax.lax.axis_size(self.axis)
        if G % N:  # heads of keys do not go round
            k, v = repeat_groups(k, H // G), repeat_groups(v, H // G)  # (B*H, K, d)
        B = len(q) // H
        q, k, v = (self.exchange_heads(X, B, 1, 2) for X in (q, k, v))  # (B*H/N, all rows, d)
        pooled = _pool(self.attention, q, k, v, H // N, self.beside_sinks(call))  # (B*H/N, all queries, dv)
        return self.exchange_heads(pooled, B, 2, 1), None

    def beside_sinks(self, call):
        """The call with the sinks of the heads here."""
        call, size = super().beside_sinks(call), self.config.num_heads // jax.lax.axis_size(self.axis)
        if call.plan.sinks is None:
            return call
        first = jax.lax.axis_index(self.axis) * size
        return call.with_plan(sinks=jax.lax.dynamic_slice_in_dim(call.plan.sinks, first, size, 1))  # (1, H/N, 1, 1)

    def exchange_heads(self, X, B, split, joined):
        """Exchange all heads of some rows for some heads of all rows, or back: (B*heads, rows, d)."""
        X = X.reshape(B, -1, *X.shape[1:])  # (B, heads, rows, d)
        X = jax.lax.all_to_all(X, self.axis, split, joined, tiled=True)  # (B, heads, rows, d)
        return X.reshape(-1, *X.shape[2:])  # (B*heads, rows, d)


def _use_flags(queries, keys, call):
    """The flags of `used` with a value for each query (B, Q) and key (B, K)."""
    found = zip(usage(OPERATIONS, queries, keys, call), (queries, keys), strict=True)
    return (jnp.broadcast_to(flags, X.shape[:2]) for flags, X in found)


def _move_offset(call, first):
    """The call with its offset, (B or 1, 1), moved to another first query."""
    return call._replace(offset=jnp.asarray(call.offset + first).reshape(-1, 1))  # (B or 1, 1)


def _anywhere(flags, axis):
    return jax.lax.pmax(flags.astype(jnp.int32), axis) > 0


def _pool(attention, q, k, v, num_heads, call):
    """The pooled values (B*H, Q, dv) of an attention pooling, which keeps no weights if it can."""
    if isinstance(attention, AttentionPooling):
        return attention.pool(q, k, v, num_heads, call)
    times, B = len(q) // len(k), len(q) // num_heads
    k, v = repeat_groups(k, times), repeat_groups(v, times)  # (B*H, K, d)
    visible = repeat_heads(visible_keys(q, k, call), B, num_heads)  # (B*H, Q, K)
    bias = None if call.score_bias is None else repeat_heads(four_axes(call.score_bias), B, num_heads)
    sinks = {} if call.plan.sinks is None else {"sinks": repeat_heads(call.plan.sinks, B, num_heads)}  # (B*H, 1, 1)
    return attention(q, k, v, visible, bias, training=call.training, **sinks)[0]  # (B*H, Q, dv)


HOWS = {"ring": Ring, "ulysses": Ulysses, "gather": Gather}
