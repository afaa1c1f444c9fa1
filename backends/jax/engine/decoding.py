"""Calls with a cache, whose slots XLA writes in place if it may: where the cache is donated, and inside its loops.

It does so only where nothing else needs the old slots any more: queries are attended to the slots as they were and to
the new tokens apart, and where these are written depends on the output.

Letters as in the chapters; S slots, Q new tokens, T = S + Q.
"""

import functools
import threading

import jax
from jax import numpy as jnp

from mha.core.engine import blocks
from mha.core.engine.visible_range import by_mask, pairs_by_group, without_positions

from ..hiding import four_axes, visible_keys, visible_softmax, widen
from ..slots import slots_after, take
from .operations import OPERATIONS
from .pieces import prepare


class Tracing(threading.local):
    """A fact that this thread knows while it traces a call: whether its tokens are the first ones of all samples."""

    first = False


tracing = Tracing()


def remember_heads(k, v, call):
    """Return the slots and the heads of new tokens, k (B*G, Q, d) and v (B*G, Q, dv), apart, and a function to write.

    Returns keys, a pair (B*G, S, d) and (B*G, Q, d), values, a pair as these, the call of both, and a function of the
    output that gives the cache that is left.
    """
    cache, (B, G, S, _) = call.cache, call.cache.keys.shape
    there, state, call = plan_slots(call, k.shape[1])
    of_slots = (jax.lax.stop_gradient(X).reshape(B * G, S, -1) for X in (cache.keys, cache.values))  # (B*G, S, any)
    keys, values = zip(of_slots, (k, v), strict=True)
    return keys, values, call, functools.partial(write_heads, cache, k, v, there, state)


def plan_slots(call, num_tokens):
    """Plan where new tokens go, integers (B, Q), S = no slot; the cache's integers after it; and the call of all T.

    Of the cache, only its integers are used, which are of all slots.
    """
    cache, S = call.cache, call.cache.positions.shape[1]
    columns, slots, state = slots_after(cache.positions, cache.lengths, cache.lost, call)
    last = take(columns, slots[:, S:], 1) == S + jnp.arange(num_tokens)  # (B, Q): whether it is the last one of a slot
    there = jnp.where(last, slots[:, S:], S)  # (B, Q)
    pairs = {name: take(four_axes(X), slots[:, None, None], 3) for name, X in call.pairs().items() if X.shape[-1] > 1}
    key_positions = jnp.concatenate([cache.positions, call.key_positions], 1)  # (B, T)
    return there, state, call._replace(key_positions=key_positions, offset=0, **pairs).with_plan(columns=columns)


def write_heads(cache, k, v, there, state, output):
    """Write the heads of new tokens k and v into these slots of the cache, (B, Q), as soon as there is an output."""
    if cache.frozen:
        return cache
    (B, G, *_), Q, places, heads = cache.keys.shape, k.shape[1], there + _zero_after(output), []
    for X, new in zip((cache.keys, cache.values), (k, v), strict=True):
        new = jax.lax.stop_gradient(new).reshape(B, G, Q, -1).swapaxes(1, 2)  # (B, Q, G, d)
        heads.append(X.at[jnp.arange(B)[:, None], :, places].set(new, mode="drop"))  # (B, G, S, d)
    return cache.after(*heads, *state)


def pool_slots(pooling, q, k, v, num_heads, call):
    """The pooled heads (B*H, Q, dv) of queries q (B*H, Q, d); k, v, call: as `remember_heads` gives them."""
    Q, T = q.shape[1], call.key_positions.shape[1]

    def of_new():
        own = without_positions(call)._replace(valid_lens=None).with_plan(columns=None)
        return pooling.pool(q, k[1], v[1], num_heads, prepare(by_mask(OPERATIONS, q, k[1], own), Q))

    if tracing.first and not (call.pairs() or call.training):
        return of_new()
    hidden = without_positions(by_mask(OPERATIONS, q, jnp.empty((1, T, 0)), call))
    if blocks.fits(pooling.scores_of_pair(q) * Q * T, call.plan.room):
        return _apart(pooling, q, k, v, num_heads, hidden)

    def of_all():
        keys, values = jnp.concatenate(k, 1), jnp.concatenate(v, 1)  # (B*G, T, any)
        seen = visible_keys(q, jnp.empty((1, T, 0)), hidden).any((1, 2))  # (B or 1, T)
        sizes = len(q) // num_heads, len(keys) * num_heads // len(q), T  # B, G, T
        seen = jnp.broadcast_to(seen[:, None], sizes)  # (B, G, T)
        seen = seen.reshape(-1, T, 1)  # (B*G, T, 1)
        keys, values = (jnp.where(seen, X, 0) for X in (keys, values))
        return pooling.pool(q, keys, values, num_heads, prepare(hidden, T))

    if call.pairs() or call.training or Q > T - Q or call.plan.room is not None:
        return of_all()
    fresh = (call.cache.lengths == 0).all() & (call.positions == jnp.arange(Q)).all()
    return jax.lax.cond(fresh, of_new, of_all)


def _apart(pooling, q, k, v, num_heads, call):
    """The pooled heads, by products with the slots and with the new tokens; call: whose mask says what hides."""
    BG, T = len(k[0]), k[0].shape[1] + k[1].shape[1]
    visible, score_bias, sinks = pairs_by_group(OPERATIONS, q, jnp.empty((BG, T, 0)), num_heads, call)
    folded = q.reshape(BG, -1, q.shape[2])  # (B*G, H/G*Q, d)
    scores = jnp.concatenate([pooling.scores(folded, X) for X in k], 2)  # (B*G, H/G*Q, T)
    scores = pooling.bend(scores, visible, score_bias)
    weights = pooling.drop(visible_softmax(scores, visible, sinks), call.training)  # (B*G, H/G*Q, T)
    return pool_apart(weights, v, visible, call).astype(v[1].dtype).reshape(*q.shape[:2], -1)  # (B*H, Q, dv)


def pool_apart(weights, v, visible, call):
    """Values of slots and of new tokens v, weighed by weights (B*G, H/G*Q, T) of which visible ones count."""
    S, seen = v[0].shape[1], visible.any(1)[:, :, None]  # (B*G or 1, T, 1)
    new = widen(jnp.where(seen[:, S:], v[1], 0))  # (B*G, Q, dv)

    def pool(slots):
        return jnp.matmul(weights[:, :, :S], widen(slots)) + jnp.matmul(weights[:, :, S:], new)  # (B*G, H/G*Q, dv)

    def pool_seen(slots):
        return pool(jnp.where(seen[:, :S], slots, 0))  # (B*G, H/G*Q, dv)

    if call.plan.room is not None:  # a GPU, which would wait for a branch
        return pool_seen(v[0])
    # A slot that nobody sees may hold no number, and seldom does: to put zeros there would copy all of them.
    found = pool(v[0])
    return jax.lax.cond(jnp.isnan(found).any(), pool_seen, lambda _: found, v[0])


def _zero_after(output):
    """Return a 0 that XLA knows only when it knows the output."""
    return jnp.minimum(0, jnp.nan_to_num(jnp.abs(output.ravel()[0])).astype(jnp.int32))
