"""Chapter 7: slots, in PyTorch: which of them the tokens of a call go to, and what is then in each.

Letters: B batch, S slots, Q new tokens, T = S + Q: the slots, and behind them the tokens.
"""

import torch

from mha.core.cache import LOST, left_of


def slots_after(positions, lengths, lost, call):
    """Which column each slot holds after a call, (B, S); the slot of each column, (B, T); positions, lengths and lost.

    positions (B, S), lengths and lost (B,) are those before it; columns are the T slots and tokens. The n-th real token
    of a sample goes into slot n % S. A sample that has lost what a query may still see has lost all from then on: LOST.
    """
    new, S = call.key_positions, positions.shape[1]
    real = new >= 0  # (B, Q)
    count, slot = real.sum(1), torch.arange(S, device=new.device)  # (B,), (S,)
    order = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)  # (B, Q): the real tokens first
    rank = count[:, None] - 1 - ((lengths + count)[:, None] - 1 - slot) % S  # (B, S): of the token that is written last
    columns = torch.where(rank >= 0, S + take(order, rank.clamp(min=0), 1), slot)  # (B, S)
    number = torch.cumsum(real, 1) - 1  # (B, Q): of a real token among those of the call
    slots = torch.cat([torch.broadcast_to(slot, positions.shape), (lengths[:, None] + number) % S], 1)  # (B, T)
    pushed_out = torch.cat([(columns != slot), real & (number < count[:, None] - S)], 1)  # (B, T)
    before = torch.cat([positions, torch.where(real, new, -1)], 1)  # (B, T)
    pushed = torch.where(pushed_out, before, -1).amax(1)  # (B,)
    first, newest = torch.where(real, new, LOST).amin(1), before.amax(1)  # (B,)
    left = left_of(call.plan, LOST)
    found = torch.maximum(lost, pushed)  # (B,)
    wrong = (found >= 0) & (found >= newest - left) | (lost >= 0) & (lost >= first - left)
    wrong = wrong | (first <= positions.amax(1))  # (B,)
    if call.pairs() or call.return_weights:
        wrong = wrong | (pushed >= 0) & (pushed >= first - left)  # (B,)
    state = take(before, columns, 1), lengths + count, torch.where(wrong, LOST, found)
    return columns, slots, [X.to(torch.int32) for X in state]


def take(X, columns, axis):
    """The columns of X along an axis, other ones for each sample; columns have as many axes, of any size elsewhere."""
    sizes = [n if m == 1 else m for m, n in zip(X.shape, columns.shape, strict=True)]
    sizes[axis] = X.shape[axis]
    shape = [*sizes[:axis], columns.shape[axis], *sizes[axis + 1 :]]
    return torch.gather(torch.broadcast_to(X, sizes), axis, torch.broadcast_to(columns.to(torch.int64), shape))


def samples(X, rows):
    """The samples of X (B, ...) that rows, integers (any number,), name, each as often as it is named."""
    return X[rows]
