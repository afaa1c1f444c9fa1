"""Calls with a cache: compiled, with slots that are written in place, or as a part of somebody's own `tf.function`.

Letters as in the chapters; S slots, Q new tokens, T = S + Q.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record

from mha.core.cache import Cache
from mha.core.engine.decoding import in_place
from mha.core.engine.visible_range import by_mask, usage, uses_all

from .. import cache as chapter
from ..arrays import shape_of
from ..hiding import four_axes
from ..slots import slots_after, take
from .compiled import Programs, draw_seed, fits, run
from .operations import OPERATIONS
from .pieces import whole


class Slots(NamedTuple):
    """The effect of a call on the slots of its cache, where it is known before the call.

    positions: (B or 1, S), of the slots after the call.
    there: (B or 1, Q), the slot of each token, S = none.
    real: whether every token has a slot.
    hidden: whether there may be a token that no query sees.
    in_order: whether the used slots follow each other, so that order and window of the call hide, from the first on.
    used: (2,), the first slot that queries may see and the end of these, None = all.
    """

    positions: Any
    there: Any
    real: bool
    hidden: bool
    in_order: bool
    used: Any = None


def runs_compiled(queries, call):
    """Whether a call with a cache runs as a compiled function, through which no gradients flow."""
    return in_place(queries, call) and not record.could_possibly_record()


def decode(layer, own, queries, keys, values, call):
    """The results of a layer for a checked call whose step is known, compiled; own: its variables."""
    cache, step, (B, Q), S = call.cache, call.plan.step, queries.shape[:2], call.cache.sizes[1]
    arrays, state = {"slot_keys": cache.keys, "slot_values": cache.values}, ()
    if not cache.frozen and cache.owner() is not layer:  # others may have its arrays, as a function its constants
        arrays = {name: tf.raw_ops.DeepCopy(x=X) for name, X in arrays.items()}
    if step.first is not None:  # which says what is in each slot
        positions = np.arange(step.first, step.first + Q)[None]  # (1, Q)
    elif cache.frozen:
        arrays["slot_positions"], positions, keys, values = cache.positions, step.positions, queries, queries
    else:
        positions, there = step.positions, np.full((B, Q), S)  # (B, Q)
        there[step.rows, step.columns] = step.slots
        state = list(map(_integers, step.slot_state.arrays))
        arrays |= {"slot_positions": state[0], "there": _integers(there)}
    if Q > 1 and not cache.frozen:
        arrays["used"] = tf.constant([step.used.start, step.used.stop], tf.int32)
    in_order = step.in_order and Q > 1
    facts = (
        ("real", step.first is not None or bool((positions >= 0).all())),
        ("hidden", step.first is None or bool(call.plan.window or call.plan.chunk or call.pairs())),
        ("in_order", in_order),
    )
    call = call._replace(
        positions=_integers(positions),
        key_positions=None,
        valid_lens=call.valid_lens if cache.frozen else None,
        offset=step.first - step.used.start if in_order else 0,
        training=bool(call.training and layer.config.dropout),
    ).with_plan(engine=Programs() if call.plan.engine is None else call.plan.engine)
    call.plan.engine.fits = fits(layer.config, queries, np.empty((1, step.used.stop - step.used.start)), call)
    seed = draw_seed(layer) if call.training else None
    output, *found = run(_decode, layer, own, queries, keys, values, call, seed, facts, exact=Q == 1, **arrays)
    if cache.frozen:
        return output, cache
    after = cache.after(*found, *state).with_state(step.slot_state)
    cache.use_up()
    return output, after


def _decode(layer, queries, keys, values, call, slot_keys, slot_values, slot_positions=None, there=None, **known):
    """The output of a call and arrays of the cache that is left, to be compiled; slot_positions ... known: of `Slots`.

    Without slot_positions, the tokens of all samples are at the positions from 0 on. With them alone, it is frozen.
    """
    (B, _, S, _), state, frozen = shape_of(slot_keys), [], slot_positions is not None and there is None
    if slot_positions is None:
        there, end, slot = call.positions % S, call.positions[0, -1] + 1, tf.range(S)  # (1, Q), (), (S,)
        slot_positions = tf.where(slot < end, end - 1 - (end - 1 - slot) % S, -1)[None]  # (1, S)
        state = [tf.tile(slot_positions, (B, 1)), tf.fill((B,), end), tf.fill((B,), tf.maximum(end - S, 0) - 1)]
    slots = Slots(slot_positions, there, **known)
    call = call._replace(cache=Cache(layer.config, (slot_keys, slot_values), frozen)).with_plan(step=slots)
    output, after = layer.attend(queries, keys, values, call)
    return output, *after.arrays(), *state


def _integers(X):
    """NumPy's integers as a tensor of 32 bits."""
    return tf.constant(X.astype(np.int32))


def place_inputs(queries, keys, values, call):
    """The inputs with zeros for padding, and no keys beside a frozen cache; and the call with their positions."""
    if not isinstance(call.plan.step, Slots):
        return chapter.place(queries, keys, values, call)
    key_positions = call.positions
    if call.cache.frozen:
        keys, values = (tf.zeros((shape_of(queries)[0], 0, width), queries.dtype) for width in call.cache.widths)
        key_positions = key_positions[:, :0]  # (B, 0)
    if not call.plan.step.real:
        real = call.positions[:, :, None] >= 0, key_positions[:, :, None] >= 0  # (B, Q, 1), (B, Q or 0, 1)
        queries = tf.where(real[0], queries, tf.zeros((), queries.dtype))  # (B, Q, any)
        keys, values = (tf.where(real[1], X, tf.zeros((), X.dtype)) for X in (keys, values))  # (B, Q or 0, any)
    return queries, keys, values, call._replace(key_positions=key_positions)


def remember_heads(k, v, call):
    """Write the heads of new tokens into the slots, and find the heads that queries attend to.

    k is (B*G, Q, d) or (B, G, Q, d), v (B*G, Q, dv) or (B, G, Q, dv). Returns keys and values in the same layout, the
    call of these, whose positions stay, and the cache that is left.
    """
    known = isinstance(call.plan.step, Slots)
    heads, key_positions, call, cache = (_heads_by_step if known else _heads_by_compiler)(k, v, call)
    (B, _, K, _), Q, H = shape_of(heads[0]), shape_of(call.positions)[1], cache.config.num_heads
    rows, columns = call.positions[:, :, None], key_positions[:, :, None]  # (B or 1, Q, 1), (B, K, 1)
    hiding = call._replace(key_positions=key_positions, offset=0)
    if known and call.plan.step.in_order:
        hiding = call._replace(positions=None, key_positions=None)
    hiding = whole(by_mask(OPERATIONS, rows, columns, hiding), (B, H, Q, K))
    if call.positions.shape[1] != 1 and not uses_all(hiding, Q, K):
        seen = usage(OPERATIONS, rows, columns, hiding)[1][:, None, :, None]  # (B or 1, 1, K, 1)
        heads = [tf.where(seen, X, tf.zeros((), X.dtype)) for X in heads]  # (B, G, K, any)
    merged = shape_of(k)[:-2]
    k, v = (tf.reshape(X, (*merged, K, X.shape[3])) for X in heads)  # (B*G, K, any) or (B, G, K, any)
    return k, v, hiding._replace(positions=call.positions), cache


def _heads_by_step(k, v, call):
    """Heads (B, G, K, any) of slots with the new tokens, their positions (B or 1, K), the call of these, the cache."""
    cache, slots = call.cache, call.plan.step
    heads, key_positions, after = [cache.keys, cache.values], slots.positions, cache
    if not cache.frozen:
        heads = _write_heads(_update_in_place, heads, (k, v), slots.there, slots.real)
        after = cache.after(*heads)
    if slots.used is not None:
        seen = slice(slots.used[0], slots.used[1])
        heads = [X[:, :, seen] for X in heads]  # (B, G, K, any)
        key_positions, call = key_positions[:, seen], call.part(keys=seen)._replace(offset=call.offset)
    return heads, key_positions, call, after


def _heads_by_compiler(k, v, call):
    """Return as `_heads_by_step` does where only a compiler knows the step: slots, or old slots and new tokens."""
    cache = call.cache
    B, G, S, _ = shape_of(cache.keys)
    kept = [tf.stop_gradient(X) for X in (cache.keys, cache.values)]  # (B, G, S, any)
    if cache.frozen:
        return kept, cache.positions, call, cache
    columns, slots, state = slots_after(cache.positions, cache.lengths, cache.lost, call)
    Q = shape_of(call.positions)[1]
    last = take(columns, slots[:, S:], 1) == S + tf.range(Q)  # (B, Q): whether a token is the last one of its slot
    there = tf.where(last, slots[:, S:], S)  # (B, Q): slot S is none
    heads = _write_heads(tf.tensor_scatter_nd_update, kept, (k, v), there, False)
    after = cache.after(*map(tf.stop_gradient, heads), *state)
    if isinstance(Q, int) and Q == 1:  # which sees nothing that it overwrites
        return heads, state[0], call, after
    new = (tf.reshape(X, (B, G, Q, X.shape[-1])) for X in (k, v))  # (B, G, Q, any)
    heads = [tf.concat(both, 2) for both in zip(kept, new, strict=True)]  # (B, G, T, any)
    pairs = {name: take(four_axes(X), slots[:, None, None], 3) for name, X in call.pairs().items() if X.shape[-1] > 1}
    return heads, tf.concat([cache.positions, call.key_positions], 1), call._replace(**pairs), after


def _write_heads(write, slots, heads, there, everywhere):
    """The slots, two arrays (B, G, S, any), with heads of new tokens where `there` (B or 1, Q) says.

    everywhere: whether every token has a slot.
    """
    (B, G, S, _), Q = shape_of(slots[0]), shape_of(there)[1]
    rows = tf.reshape(tf.range(B * G) * S, (B, G, 1)) + there[:, None]  # (B, G, Q)
    rows = tf.reshape(rows, (-1, 1))  # (B*G*Q, 1)
    real = tf.reshape(tf.broadcast_to(there[:, None] < S, (B, G, Q)), (-1,))  # (B*G*Q,)
    rows, found = rows if everywhere else tf.boolean_mask(rows, real), []
    for X, new in zip(slots, heads, strict=True):
        new = tf.reshape(new, (-1, X.shape[3]))  # (B*G*Q, any)
        new = new if everywhere else tf.boolean_mask(new, real)
        flat = write(tf.reshape(X, (-1, X.shape[3])), rows, new)  # (B*G*S, any)
        found.append(tf.reshape(flat, (B, G, S, X.shape[3])))  # (B, G, S, any)
    return found


def _update_in_place(X, rows, new):
    """X (rows, any) with other rows, where it lies; `tf.tensor_scatter_nd_update` would copy what is an argument."""
    return tf.raw_ops.InplaceUpdate(x=X, i=rows[:, 0], v=new)


def pool_slots(pooling, q, k, v, num_heads, call):
    """The pooled heads (B, H, Q, dv) of a call of which `remember_heads` gave keys and values, (B, G, K, any)."""
    found = pooling.pool(q, k, v, num_heads, call)
    if q.shape[2] != 1 or (call.plan.step is not None and not call.plan.step.hidden):
        return found
    seen = usage(OPERATIONS, q[:, 0], k[:, 0], call)[1][:, None, :, None]  # (B or 1, 1, K, 1)

    def pool_with_zeros():
        return pooling.pool(q, k, tf.where(seen, v, tf.zeros((), v.dtype)), num_heads, call)

    # A token that nobody sees may be no number, and seldom is: to put zeros there would copy all of them.
    return tf.cond(tf.reduce_any(tf.math.is_nan(found)), pool_with_zeros, lambda: found)
