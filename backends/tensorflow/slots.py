"""Chapter 7: slots, in TensorFlow: which of them the tokens of a call go to, and what is then in each.

Letters: B batch, S slots, Q new tokens, T = S + Q: the slots, and behind them the tokens.
"""

import tensorflow as tf

from mha.core.cache import LOST, left_of

from .arrays import shape_of


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
    columns = tf.where(rank >= 0, S + take(order, tf.maximum(rank, 0), 1), slot)  # (B, S)
    number = tf.cumsum(tf.cast(real, tf.int32), 1) - 1  # (B, Q): of a real token among those of the call
    slots = tf.concat([tf.broadcast_to(slot, shape_of(positions)), (lengths[:, None] + number) % S], 1)  # (B, T)
    pushed_out = tf.concat([(columns != slot), real & (number < count[:, None] - S)], 1)  # (B, T)
    before = tf.concat([positions, tf.where(real, new, -1)], 1)  # (B, T)
    pushed = tf.reduce_max(tf.where(pushed_out, before, -1), 1)  # (B,)
    first, newest = tf.reduce_min(tf.where(real, new, LOST), 1), tf.reduce_max(before, 1)  # (B,)
    left = left_of(call.plan, LOST)
    found = tf.maximum(lost, pushed)  # (B,)
    wrong = (found >= 0) & (found >= newest - left) | (lost >= 0) & (lost >= first - left)
    wrong = wrong | (first <= tf.reduce_max(positions, 1))  # (B,)
    if call.pairs() or call.return_weights:
        wrong = wrong | (pushed >= 0) & (pushed >= first - left)  # (B,)
    state = take(before, columns, 1), lengths + count, tf.where(wrong, LOST, found)
    return columns, slots, state


def take(X, columns, axis):
    """The columns of X along an axis, other ones for each sample; columns have as many axes, of any size elsewhere."""
    X = tf.broadcast_to(X, (shape_of(columns)[0], *shape_of(X)[1:]))
    columns = tf.reshape(columns, (shape_of(columns)[0], -1))  # (B, any)
    return tf.gather(X, columns, axis=axis, batch_dims=1)


def samples(X, rows):
    """The samples of X (B, ...) that rows, integers (any number,), name, each as often as it is named."""
    return tf.gather(X, rows)
