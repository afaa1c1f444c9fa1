"""A token of a cache inside PyTorch's compiler, which writes it at a place that is known later.

Letters as in the chapters; S slots.
"""

import torch

from mha.core.cache import LOST, left_of
from mha.core.engine.visible_range import by_mask

from ..hiding import visible_keys
from .operations import OPERATIONS


def remember_token(k, v, call):
    """Write the heads of one token, k (B*G, 1, d) and v (B*G, 1, dv), to a place that a compiler will know.

    Returns keys (B*G, S, d) and values (B*G, S, dv) of the slots, the call of these, and the cache that is left.
    """
    cache, (B, G, _, _) = call.cache, call.cache.keys.shape
    if not cache.frozen:
        there, state = slot_of_one(cache, call)
        rows = torch.arange(B, device=k.device)  # (B,)
        for X, new in ((cache.keys, k), (cache.values, v)):
            new = new.reshape(B, G, -1)  # (B, G, any)
            X[rows, :, there] = torch.where(call.key_positions[:, :, None] >= 0, new, X[rows, :, there])
        cache = cache.after(cache.keys, cache.values, *state)
    k, v, token = cache.keys, cache.values, call.positions[:, :, None]  # (B, G, S, any), (B, 1, 1)
    call = call._replace(key_positions=cache.positions, offset=0)
    if call.pairs() or call.plan.window or call.plan.chunk:  # what nobody sees may be no number
        seen = visible_keys(token, k[:, 0], call).any((1, 2))[:, None, :, None]  # (B, 1, S, 1)
        k, v = torch.where(seen, k, 0), torch.where(seen, v, 0)  # (B, G, S, any)
    return k.flatten(0, 1), v.flatten(0, 1), by_mask(OPERATIONS, token, k[:, 0], call), cache


def slot_of_one(cache, call):
    """The slot (B,) of the one token of a call, and positions, lengths and lost after it, as `slots_after` gives them.

    A compiler makes one loop of this, where it calls functions that sort and gather for any number of tokens.
    """
    positions, lost, new, S = cache.positions, cache.lost, call.key_positions[:, 0], cache.positions.shape[1]
    real, there = new >= 0, cache.lengths % S  # (B,)
    here = torch.arange(S, device=new.device) == there[:, None]  # (B, S)
    pushed = torch.where(here & real[:, None], positions, -1).amax(1)  # (B,)
    newest, first = positions.amax(1), torch.where(real, new, LOST)  # (B,)
    left = left_of(call.plan, LOST)
    found = torch.maximum(lost, pushed)  # (B,)
    wrong = (found >= 0) & (found >= torch.maximum(newest, new) - left) | (lost >= 0) & (lost >= first - left)
    wrong = wrong | (first <= newest)  # (B,)
    if call.pairs():
        wrong = wrong | (pushed >= 0) & (pushed >= first - left)  # (B,)
    state = (
        torch.where(here & real[:, None], new[:, None], positions),
        cache.lengths + real,
        torch.where(wrong, LOST, found),
    )
    return there, [X.to(torch.int32) for X in state]
