"""Chapter 7: slots, in JAX: which of them the tokens of a call go to, and what is then in each.

Letters: B batch, S slots, Q new tokens, T = S + Q: the slots, and behind them the tokens.
"""

from jax import numpy as jnp

from mha.core.cache import LOST, left_of


def slots_after(positions, lengths, lost, call):
    """Which column each slot holds after a call, (B, S); the slot of each column, (B, T); positions, lengths and lost.

    positions (B, S), lengths and lost (B,) are those before it; columns are the T slots and tokens. The n-th real token
    of a sample goes into slot n % S. A sample that has lost what a query may still see has lost all from then on: LOST.
    """
    new, S = call.key_positions, positions.shape[1]
    real = new >= 0  # (B, Q)
    count, slot = real.sum(1), jnp.arange(S)  # (B,), (S,)
    order = jnp.argsort(~real, 1, stable=True)  # (B, Q): the real tokens first
    rank = count[:, None] - 1 - ((lengths + count)[:, None] - 1 - slot) % S  # (B, S): of the token that is written last
    columns = jnp.where(rank >= 0, S + take(order, jnp.maximum(rank, 0), 1), slot)  # (B, S)
    number = jnp.cumsum(real, 1) - 1  # (B, Q): of a real token among those of the call
    slots = jnp.concatenate([jnp.broadcast_to(slot, positions.shape), (lengths[:, None] + number) % S], 1)  # (B, T)
    pushed_out = jnp.concatenate([(columns != slot), real & (number < count[:, None] - S)], 1)  # (B, T)
    before = jnp.concatenate([positions, jnp.where(real, new, -1)], 1)  # (B, T)
    pushed = jnp.where(pushed_out, before, -1).max(1)  # (B,)
    first, newest = jnp.where(real, new, LOST).min(1), before.max(1)  # (B,)
    left = left_of(call.plan, LOST)
    found = jnp.maximum(lost, pushed)  # (B,)
    wrong = (found >= 0) & (found >= newest - left) | (lost >= 0) & (lost >= first - left)
    wrong = wrong | (first <= positions.max(1))  # (B,)
    if call.pairs() or call.return_weights:
        wrong = wrong | (pushed >= 0) & (pushed >= first - left)  # (B,)
    state = take(before, columns, 1), lengths + count, jnp.where(wrong, LOST, found)
    return columns, slots, [X.astype(jnp.int32) for X in state]


def take(X, columns, axis):
    """The columns of X along an axis, other ones for each sample; columns have as many axes, of any size elsewhere."""
    sizes = [n if m == 1 else m for m, n in zip(X.shape, columns.shape, strict=True)]
    sizes[axis] = X.shape[axis]
    shape = [*sizes[:axis], columns.shape[axis], *sizes[axis + 1 :]]
    return jnp.take_along_axis(jnp.broadcast_to(X, sizes), jnp.broadcast_to(columns, shape), axis)


def samples(X, rows):
    """The samples of X (B, ...) that rows, integers (any number,), name, each as often as it is named."""
    return jnp.asarray(X)[rows]
