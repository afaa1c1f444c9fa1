"""Chapter 7: the cache, in TensorFlow: keys and values of earlier tokens, in slots, each projected once.

Letters: B batch, G heads of keys and values, S slots, Q new tokens, T = S + Q: the slots, and behind them the tokens.

Sources: Shazeer, Fast Transformer Decoding (2019), section 2.4; Beltagy et al., Longformer (2020), for windows, whose
slots are a ring; what a token at a position below 0 is says `hiding.visible_keys`.
"""

import math

import tensorflow as tf

from mha.cache import LOST

from .arrays import shape_of
from .hiding import four_axes, places


def place(queries, keys, values, call):
    """Say where the tokens of a call with a cache are, and put zeros for padding.

    queries, keys and values are those of the call; beside a frozen cache, keys and values become one token of padding.
    Returns the three, and the call with positions (B, Q) and key_positions (B, Q or 1).
    """
    cache, (B, Q, _) = call.cache, shape_of(queries)
    positions = call.positions
    if positions is None and not cache.frozen:
        positions = tf.reduce_max(cache.positions, 1, True) + 1 + tf.range(Q)  # (B, Q)
        if call.valid_lens is not None:
            positions = tf.where(tf.range(Q) < tf.cast(call.valid_lens[:, None], tf.int32), positions, -1)  # (B, Q)
    positions = tf.broadcast_to(tf.cast(places(queries, positions, call.offset), tf.int32), (B, Q))  # (B, Q)
    key_positions = tf.fill((B, 1), -1) if cache.frozen else positions  # (B, Q or 1)
    if cache.frozen:
        keys, values = (tf.zeros((B, 1, width), queries.dtype) for width in cache.widths)  # (B, 1, any)
    else:
        call = call._replace(valid_lens=None)
    queries = tf.where(positions[:, :, None] >= 0, queries, tf.zeros((), queries.dtype))  # (B, Q, any)
    keys, values = (
        tf.where(key_positions[:, :, None] >= 0, X, tf.zeros((), X.dtype)) for X in (keys, values)
    )  # (B, Q or 1, any)
    return queries, keys, values, call._replace(positions=positions, key_positions=key_positions)


def remember(k, v, call):
    """Put the slots before the heads of new tokens, k (B*G, Q, d) and v (B*G, Q, dv), and write these into slots.

    Slots of earlier calls are constants, and what is written is one for later calls.
    Returns keys (B*G, T, d), values (B*G, T, dv), the call of these, and the cache that is left.
    """
    cache = call.cache
    columns, slots, state = slots_after(cache.positions, cache.lengths, cache.lost, call)
    G, kept = cache.keys.shape[1], (cache.keys, cache.values)
    kept = [tf.stop_gradient(tf.reshape(X, (-1, *shape_of(X)[2:]))) for X in kept]  # (B*G, S, d)
    k, v = (tf.concat([X, new], 1) for X, new in zip(kept, (k, v), strict=True))  # (B*G, T, d)
    if not cache.frozen:
        heads = [tf.stop_gradient(tf.reshape(X, (-1, G, *shape_of(X)[1:]))) for X in (k, v)]  # (B, G, T, d)
        cache = cache.after(*(taken(X, columns[:, None, :, None], 2) for X in heads), *state)
    pairs = {name: taken(four_axes(X), slots[:, None, None], 3) for name, X in call.pairs().items() if X.shape[-1] > 1}
    key_positions = tf.concat([call.cache.positions, call.key_positions], 1)  # (B, T)
    return k, v, call._replace(key_positions=key_positions, offset=0, columns=columns, **pairs), cache


def slots_after(positions, lengths, lost, call):
    """Which column each slot holds after a call, (B, S); the slot of each column, (B, T); positions, lengths and lost.

    positions (B, S), lengths and lost (B,) are those before it; columns are the T slots and tokens. The n-th real token
    of a sample goes into slot n % S. A sample that has lost what a query may still see has lost all from then on: LOST.
    """
    new, S = call.key_positions, shape_of(positions)[1]
    real = new >= 0  # (B, Q)
    count, slot = tf.reduce_sum(tf.cast(real, tf.int32), 1), tf.range(S)  # (B,), (S,)
    order = tf.argsort(tf.cast(~real, tf.int32), 1, stable=True)  # (B, Q): the real tokens first
    rank = count[:, None] - 1 - ((lengths + count)[:, None] - 1 - slot) % S  # (B, S): of the token that is written last
    columns = tf.where(rank >= 0, S + taken(order, tf.maximum(rank, 0), 1), slot)  # (B, S)
    number = tf.cumsum(tf.cast(real, tf.int32), 1) - 1  # (B, Q): of a real token among those of the call
    slots = tf.concat([tf.broadcast_to(slot, shape_of(positions)), (lengths[:, None] + number) % S], 1)  # (B, T)
    pushed_out = tf.concat([(columns != slot), real & (number < count[:, None] - S)], 1)  # (B, T)
    before = tf.concat([positions, tf.where(real, new, -1)], 1)  # (B, T)
    pushed = tf.reduce_max(tf.where(pushed_out, before, -1), 1)  # (B,)
    first, newest = tf.reduce_min(tf.where(real, new, LOST), 1), tf.reduce_max(before, 1)  # (B,)
    left = LOST if call.window is None or call.window[0] is None else call.window[0]
    found = tf.maximum(lost, pushed)  # (B,)
    wrong = (found >= 0) & (found >= newest - left) | (lost >= 0) & (lost >= first - left)
    wrong = wrong | (first <= tf.reduce_max(positions, 1))  # (B,)
    if call.pairs() or call.return_weights:
        wrong = wrong | (pushed >= 0) & (pushed >= first - left)  # (B,)
    state = taken(before, columns, 1), lengths + count, tf.where(wrong, LOST, found)
    return columns, slots, state


def recall(output, weights, call, cache):
    """The results of a call: output (B, Q, D), weights (B, H, Q, S) by slots if asked for, and the cache that is left.

    What a sample computes from slots that it has lost is not a number.
    """
    kept = (cache.lost < LOST)[:, None, None]  # (B, 1, 1)
    output = tf.where(kept, output, tf.cast(math.nan, output.dtype))  # (B, Q, D)
    call.cache.use_up()
    if not call.return_weights:
        return output, cache
    weights = taken(weights, call.columns[:, None, None], 3)  # (B, H, Q, S)
    return output, tf.where(kept[:, None], weights, tf.cast(math.nan, weights.dtype)), cache


def taken(X, columns, axis):
    """The columns of X along an axis, other ones for each sample; columns have as many axes, of any size elsewhere."""
    X = tf.broadcast_to(X, (shape_of(columns)[0], *shape_of(X)[1:]))
    columns = tf.reshape(columns, (shape_of(columns)[0], -1))  # (B, any)
    return tf.gather(X, columns, axis=axis, batch_dims=1)


def samples(X, rows):
    """The samples of X (B, ...) that rows, integers (any number,), name, each as often as it is named."""
    return tf.gather(X, rows)
