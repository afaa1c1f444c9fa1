"""A cache whose slots are split over devices: each writes and attends to its own, and the results are merged.

Letters as in the chapters; S slots, of which each device has n, Q new tokens, T = S + Q. Queries, new tokens and the
bookkeeping of the slots are on all devices. Of the new tokens, each device attends to an equal share, c of them. The
merge is that of the ring: a maximum, a sum and pooled values of each query, as if the softmax were over these keys
alone.

Source: Dao et al., FlashAttention (2022), section 3.1, for the merge.
"""

import functools
import math

import jax
from jax import numpy as jnp

from mha.backends.jax import layer as lesson
from mha.backends.jax import pooling as poolings
from mha.backends.jax.cache import recall
from mha.backends.jax.engine.decoding import plan_slots, pool_apart, write_heads
from mha.backends.jax.engine.operations import OPERATIONS
from mha.backends.jax.heads import repeat_heads
from mha.backends.jax.hiding import four_axes, signed, widen
from mha.core.engine import blocks
from mha.core.engine.visible_range import pairs_by_group

from .ring.blocks import OF_ROWS, pad_rows, part_of
from .twins import twin_of


def over(part, axis):
    """A layer for one call with a cache whose slots are split over an axis of the mesh, inside `jax.shard_map`."""
    return twin_of(part, OfSlots, axis=axis)


class OfSlots:
    """A layer for one call with the slots on this device; it comes before the layer's own class in the bases."""

    def attend(self, queries, keys, values, call):
        """Take the steps of the lesson, so that all devices exchange equally often."""
        return lesson.MultiHeadAttention.attend(self, queries, keys, values, call.with_plan(lesson=True))

    def remember(self, k, v, call):
        """The heads in the slots here and of the new tokens here, the call for them, and a function that writes."""
        cache, (B, G, n, _), Q = call.cache, call.cache.keys.shape, k.shape[1]
        there, state, call = plan_slots(call, Q)
        index, N = jax.lax.axis_index(self.axis), jax.lax.axis_size(self.axis)
        first, S, c = index * n, N * n, math.ceil(Q / N)
        here = there - first
        here = jnp.where((here >= 0) & (here < n), here, n)  # (B, Q): slot n is none
        write = functools.partial(write_heads, cache, k, v, here, state)

        def share(X, axis, value=0):
            """The part of X that belongs to this device, along an axis of new tokens."""
            more = [(0, 0)] * X.ndim
            more[axis] = 0, N * c - X.shape[axis]
            return jax.lax.dynamic_slice_in_dim(jnp.pad(X, more, constant_values=value), index * c, c, axis)

        def both(X, axis, value=0):
            """The part of X that belongs to this device, along an axis of slots and new tokens."""
            slots = jax.lax.dynamic_slice_in_dim(X, first, n, axis)
            return jnp.concatenate([slots, share(jax.lax.slice_in_dim(X, S, None, axis=axis), axis, value)], axis)

        pairs = {name: four_axes(X) for name, X in call.pairs().items()}
        pairs = {name: X if X.shape[3] == 1 else both(X, 3) for name, X in pairs.items()}  # (B, H, Q, n + c)
        lens = call.valid_lens  # beside a frozen cache, which count its slots
        lens = None if lens is None else signed(lens, S).reshape(len(lens), -1) - first  # (B, 1 or Q)
        places = both(call.key_positions, 1, -1)  # (B, n + c)
        call = call._replace(key_positions=places, valid_lens=lens, **pairs)
        of_slots = (jax.lax.stop_gradient(X).reshape(B * G, n, -1) for X in (cache.keys, cache.values))  # (B*G, n, any)
        keys, values = zip(of_slots, (share(X, 1) for X in (k, v)), strict=True)  # (B*G, n, any), (B*G, c, any)
        return keys, values, call, write

    def recall(self, output, weights, call, cache):
        """The results of a call with a cache, after its slots are written."""
        return recall(output, weights, call, cache(output) if output.size else call.cache)

    def pool(self, q, k, v, call):
        """The pooled heads, (B*H, Q, dv): pooled from the keys here, in blocks of queries, then merged over devices."""
        call, attention = self.beside_sinks(call), self.attention
        if type(attention).weigh is not poolings.AttentionPooling.weigh:
            name = type(attention).__name__
            raise ValueError(f"cache is split by slots for a pooling {name} of its own, expected one of the layer")
        (BH, Q, d), K, H = q.shape, k[0].shape[1] + k[1].shape[1], self.config.num_heads
        if not Q:
            return jnp.zeros((BH, 0, v[1].shape[2]), v[1].dtype), None
        rate = attention.dropout if call.training else 0.0
        key = attention.make_rng("dropout") if rate else None
        module, variables = attention.unbind()
        size = blocks.queries(Q, BH * (d if jax.tree.leaves(variables) else 1) * K)
        count = math.ceil(Q / size)
        rows = {name: getattr(call, name) for name in OF_ROWS if getattr(call, name) is not None}
        (q,), rows = pad_rows((q,), 1, count * size), pad_rows(rows, 1, count * size)

        def block(number):
            own = {name: part_of(X, number * size, size) for name, X in rows.items()}
            drop = functools.partial(_drop, rate, None if key is None else jax.random.fold_in(key, number))
            of_block = part_of(q, number * size, size), k, v, H, call._replace(**own)
            return _of_keys(module, variables, drop, *of_block)

        found = jax.lax.map(jax.checkpoint(block), jnp.arange(count)) if count > 1 else [X[None] for X in block(0)]
        found = (X.swapaxes(0, 1).reshape(BH, count * size, -1)[:, :Q] for X in found)  # (B*H, Q, any)
        sinks = repeat_heads(call.plan.sinks, BH // H, H)  # (B*H, 1, 1)
        return _merge(self.axis, *found, sinks).astype(v[1].dtype), None


def _of_keys(pooling, variables, drop, q, k, v, num_heads, call):
    """Pool queries q (B*H, Q, d) over the keys here: maxima and sums (B*H, Q, 1), and pooled values (B*H, Q, dv)."""
    BG, K = len(k[0]), k[0].shape[1] + k[1].shape[1]
    visible, bias, _ = pairs_by_group(OPERATIONS, q, jnp.empty((BG, K, 0)), num_heads, call)
    folded = q.reshape(BG, -1, q.shape[2])  # (B*G, H/G*Q, d)
    scores = jnp.concatenate([pooling.apply(variables, folded, X, method="scores") for X in k], 2)  # (B*G, H/G*Q, K)
    scores = jnp.where(visible, pooling.bend(scores, visible, bias), -math.inf)
    most = jax.lax.stop_gradient(scores.max(-1, keepdims=True))  # (B*G, H/G*Q, 1)
    weights = jnp.exp(scores - jnp.where(most == -math.inf, 0, most))  # (B*G, H/G*Q, K)
    total, pooled = weights.sum(-1, keepdims=True), pool_apart(drop(weights), v, visible, call)  # (B*G, H/G*Q, dv)
    return tuple(X.reshape(*q.shape[:2], -1) for X in (most, total, pooled))  # (B*H, Q, any)


def _merge(axis, most, total, pooled, sinks):
    """Merge the maxima, sums and pooled values of all devices of an axis: (B*H, Q, dv)."""
    largest = jax.lax.pmax(most, axis)
    if sinks is not None:
        largest = jnp.maximum(largest, jax.lax.stop_gradient(widen(sinks)))
    base = jnp.where(largest == -math.inf, 0, largest)  # of a query that sees nothing
    again = jnp.exp(most - base)
    total, pooled = (jax.lax.psum(X * again, axis) for X in (total, pooled))
    if sinks is not None:
        total = total + jnp.exp(widen(sinks) - base)
    sees = total != 0  # so that NaN stays
    return jnp.where(sees, pooled / jnp.where(sees, total, 1), 0)  # (B*H, Q, dv)


def _drop(rate, key, weights):
    """Weights after dropout: some are 0, the others grow to make up."""
    if not rate:
        return weights
    return weights * jax.random.bernoulli(key, 1 - rate, weights.shape) / (1 - rate)
