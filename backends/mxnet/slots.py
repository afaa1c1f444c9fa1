"""Chapter 7: slots, in MXNet: which of them the tokens of a call go to, and what is then in each.

Letters: B batch, S slots, Q new tokens, T = S + Q: the slots, and behind them the tokens.
"""

from mxnet import np, npx

from mha.core.cache import LOST, left_of


def slots_after(positions, lengths, lost, call):
    """Which column each slot holds after a call, (B, S); the slot of each column, (B, T); positions, lengths and lost.

    positions (B, S), lengths and lost (B,) are those before it; columns are the T slots and tokens. The n-th real token
    of a sample goes into slot n % S. A sample that has lost what a query may still see has lost all from then on: LOST.
    """
    positions, lengths, lost = (X.astype("int64") for X in (positions, lengths, lost))
    new, S, Q = call.key_positions, positions.shape[1], call.key_positions.shape[1]
    real = new >= 0  # (B, Q)
    count, slot = real.astype("int64").sum(1), np.arange(S, dtype="int64")  # (B,), (S,)
    order = np.argsort(np.where(real, 0, Q) + np.arange(Q), 1).astype("int64")  # (B, Q): the real tokens first
    rank = count[:, None] - 1 - ((lengths + count)[:, None] - 1 - slot) % S  # (B, S): of the token that is written last
    columns = np.where(rank >= 0, S + take(order, np.maximum(rank, 0), 1), slot)  # (B, S)
    number = np.cumsum(real.astype("int64"), 1) - 1  # (B, Q): of a real token among those of the call
    slots = np.concatenate([np.broadcast_to(slot, positions.shape), (lengths[:, None] + number) % S], 1)  # (B, T)
    pushed_out = np.concatenate([columns != slot, real * (number < count[:, None] - S)], 1)  # (B, T)
    before = np.concatenate([positions, np.where(real, new, -1)], 1)  # (B, T)
    pushed = np.where(pushed_out, before, -1).max(1)  # (B,)
    first, newest = np.where(real, new, LOST).min(1), before.max(1)  # (B,)
    left = left_of(call.plan, LOST)
    found = np.maximum(lost, pushed)  # (B,)
    wrong = (found >= 0) * (found >= newest - left) + (lost >= 0) * (lost >= first - left)
    wrong = wrong + (first <= positions.max(1))  # (B,)
    if call.pairs() or call.return_weights:
        wrong = wrong + (pushed >= 0) * (pushed >= first - left)  # (B,)
    state = take(before, columns, 1), lengths + count, np.where(wrong > 0, np.full_like(found, LOST), found)
    return columns, slots, [X.astype("int32") for X in state]


def take(X, columns, axis):
    """The columns of X along an axis, other ones for each sample; columns have as many axes, of any size elsewhere."""
    (B, *_), n = columns.shape, columns.size // columns.shape[0]
    if X.dtype == bool:  # MXNet 1.9 swaps no axes of booleans
        return take(X.astype("int8"), columns, axis) > 0
    X = np.broadcast_to(X, (B, *X.shape[1:])).swapaxes(1, axis)  # (B, T, any)
    rows = np.broadcast_to(np.arange(B, dtype="int64")[:, None], (B, n))  # (B, any number)
    found = npx.gather_nd(X, np.stack([rows, columns.astype("int64").reshape(B, n)]))  # (B, any number, any)
    return found.swapaxes(1, axis)


def samples(X, rows):
    """The samples of X (B, ...) that rows, integers (any number,), name, each as often as it is named."""
    return np.take(X, rows, axis=0)
