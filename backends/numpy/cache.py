"""Chapter 8: the cache, in NumPy: keys and values of earlier tokens, in slots, each projected once.

Letters: B batch, G heads of keys and values, S slots, Q new tokens, T = S + Q: the slots, and behind them the tokens.

Sources: Shazeer, Fast Transformer Decoding (2019), section 2.4; Beltagy et al., Longformer (2020), for windows, whose
slots are a ring; what a token at a position below 0 is says `hiding.visible_keys`.
"""

import numpy as np

from mha.core.cache import LOST
from mha.core.call import record_step

from .hiding import four_axes, places
from .slots import slots_after, take


def place(queries, keys, values, call):
    """Say where the tokens of a call with a cache are, and put zeros for padding.

    queries, keys and values are those of the call; where no tokens are new, as beside a frozen cache, keys and values
    become one token of padding.
    Returns the three, and the call with positions (B, Q) and key_positions (B, Q or 1).
    """
    cache, (B, Q, _) = call.cache, queries.shape
    positions, none = call.positions, cache.frozen or queries.shape[1] == 0
    if positions is None and not cache.frozen:
        positions = cache.positions.max(1, keepdims=True) + 1 + np.arange(Q)  # (B, Q)
        if call.valid_lens is not None:
            positions = np.where(np.arange(Q) < call.valid_lens[:, None], positions, -1)  # (B, Q)
    positions = np.broadcast_to(places(queries, positions, call.offset), (B, Q))  # (B, Q)
    key_positions = np.full((B, 1), -1) if none else positions  # (B, Q or 1)
    if none:
        keys, values = (np.zeros((B, 1, width), queries.dtype) for width in cache.widths)  # (B, 1, any)
    if not cache.frozen:
        call = call._replace(valid_lens=None)
    queries = np.where(positions[:, :, None] >= 0, queries, np.zeros_like(queries))  # (B, Q, any)
    seen = key_positions[:, :, None] >= 0  # (B, Q or 1, 1)
    keys, values = (np.where(seen, X, np.zeros_like(X)) for X in (keys, values))  # (B, Q or 1, any)
    return queries, keys, values, call._replace(positions=positions, key_positions=key_positions)


def remember(k, v, call):
    """Put the slots before the heads of new tokens, k (B*G, Q, d) and v (B*G, Q, dv), and write these into slots.

    Slots of earlier calls are constants, and what is written is one for later calls.
    Returns keys (B*G, T, d) and values (B*G, T, dv), what is left of the call, and the cache after it.
    """
    cache = call.cache
    columns, slots, state = slots_after(cache.positions, cache.lengths, cache.lost, call)
    record_step("columns", columns)
    key_positions = np.concatenate([cache.positions, call.key_positions], 1)  # (B, T)
    G, kept = cache.keys.shape[1], (cache.keys, cache.values)
    kept = [X.reshape(-1, *X.shape[2:]) for X in kept]  # (B*G, S, d)
    k, v = (np.concatenate([X, new], 1) for X, new in zip(kept, (k, v), strict=True))  # (B*G, T, d)
    if not cache.frozen:
        heads = [X.reshape(-1, G, *X.shape[1:]) for X in (k, v)]  # (B, G, T, d)
        cache = cache.after(*(take(X, columns[:, None, :, None], 2) for X in heads), *state)
    pairs = {name: take(four_axes(X), slots[:, None, None], 3) for name, X in call.pairs().items() if X.shape[-1] > 1}
    return k, v, call._replace(key_positions=key_positions, offset=0, **pairs).with_plan(columns=columns), cache


def recall(output, weights, call, cache):
    """The results of a call: output (B, Q, D), weights (B, H, Q, S) by slots if asked for, and the cache that is left.

    What a sample computes from slots that it has lost is not a number.
    """
    kept = (cache.lost < LOST)[:, None, None]  # (B, 1, 1)
    output = np.where(kept, output, np.nan).astype(output.dtype)  # (B, Q, D)
    if not call.plan.traced:
        call.cache.use_up()
    if not call.return_weights:
        return output, cache
    weights = take(weights, call.plan.columns[:, None, None], 3)  # (B, H, Q, S)
    return output, np.where(kept[:, None], weights, np.nan).astype(weights.dtype), cache
