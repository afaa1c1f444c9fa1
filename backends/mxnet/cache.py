"""Chapter 7: the cache, in MXNet: keys and values of earlier tokens, in slots, each projected once.

Letters: B batch, G heads of keys and values, S slots, Q new tokens, T = S + Q: the slots, and behind them the tokens.

Sources: Shazeer, Fast Transformer Decoding (2019), section 2.4; Beltagy et al., Longformer (2020), for windows, whose
slots are a ring; what a token at a position below 0 is says `hiding.visible_keys`.
"""

from mxnet import np, npx

from mha.cache import LOST

from .hiding import four_axes, places


def place(queries, keys, values, call):
    """Say where the tokens of a call with a cache are, and put zeros for padding.

    queries, keys and values are those of the call; beside a frozen cache, keys and values become one token of padding.
    Returns the three, and the call with positions (B, Q) and key_positions (B, Q or 1).
    """
    cache, (B, Q, _) = call.cache, queries.shape
    positions = call.positions
    if positions is None and not cache.frozen:
        positions = cache.positions.astype("int64").max(1, keepdims=True) + 1 + np.arange(Q, dtype="int64")  # (B, Q)
        if call.valid_lens is not None:
            positions = np.where(
                np.arange(Q, dtype="int64") < call.valid_lens.astype("int64")[:, None], positions, -1
            )  # (B, Q)
    positions = np.broadcast_to(places(queries, positions, call.offset), (B, Q)).astype("int64")  # (B, Q)
    key_positions = np.full((B, 1), -1, dtype="int64") if cache.frozen else positions  # (B, Q or 1)
    if cache.frozen:
        keys, values = (np.zeros((B, 1, width), dtype=queries.dtype) for width in cache.widths)  # (B, 1, any)
    else:
        call = call._replace(valid_lens=None)
    queries = np.where(positions[:, :, None] >= 0, queries, np.zeros_like(queries))  # (B, Q, any)
    keys, values = (
        np.where(key_positions[:, :, None] >= 0, X, np.zeros_like(X)) for X in (keys, values)
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
    kept = [X.detach().reshape(-1, *X.shape[2:]) for X in kept]  # (B*G, S, d)
    k, v = (np.concatenate([X, new], 1) for X, new in zip(kept, (k, v), strict=True))  # (B*G, T, d)
    if not cache.frozen:
        heads = [X.detach().reshape(-1, G, *X.shape[1:]) for X in (k, v)]  # (B, G, T, d)
        cache = cache.after(*(taken(X, columns[:, None, :, None], 2) for X in heads), *state)
    pairs = {name: taken(four_axes(X), slots[:, None, None], 3) for name, X in call.pairs().items() if X.shape[-1] > 1}
    key_positions = np.concatenate([call.cache.positions.astype("int64"), call.key_positions], 1)  # (B, T)
    return k, v, call._replace(key_positions=key_positions, offset=0, columns=columns, **pairs), cache


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
    columns = np.where(rank >= 0, S + taken(order, np.maximum(rank, 0), 1), slot)  # (B, S)
    number = np.cumsum(real.astype("int64"), 1) - 1  # (B, Q): of a real token among those of the call
    slots = np.concatenate([np.broadcast_to(slot, positions.shape), (lengths[:, None] + number) % S], 1)  # (B, T)
    pushed_out = np.concatenate([columns != slot, real * (number < count[:, None] - S)], 1)  # (B, T)
    before = np.concatenate([positions, np.where(real, new, -1)], 1)  # (B, T)
    pushed = np.where(pushed_out, before, -1).max(1)  # (B,)
    first, newest = np.where(real, new, LOST).min(1), before.max(1)  # (B,)
    left = LOST if call.window is None or call.window[0] is None else call.window[0]
    found = np.maximum(lost, pushed)  # (B,)
    wrong = (found >= 0) * (found >= newest - left) + (lost >= 0) * (lost >= first - left)
    wrong = wrong + (first <= positions.max(1))  # (B,)
    if call.pairs() or call.return_weights:
        wrong = wrong + (pushed >= 0) * (pushed >= first - left)  # (B,)
    state = taken(before, columns, 1), lengths + count, np.where(wrong > 0, np.full_like(found, LOST), found)
    return columns, slots, [X.astype("int32") for X in state]


def recall(output, weights, call, cache):
    """The results of a call: output (B, Q, D), weights (B, H, Q, S) by slots if asked for, and the cache that is left.

    What a sample computes from slots that it has lost is not a number.
    """
    kept = (cache.lost < LOST)[:, None, None]  # (B, 1, 1)
    output = np.where(kept, output, np.full_like(output, np.nan))  # (B, Q, D)
    call.cache.use_up()
    if not call.return_weights:
        return output, cache
    weights = taken(weights, call.columns[:, None, None], 3)  # (B, H, Q, S)
    return output, np.where(kept[:, None], weights, np.full_like(weights, np.nan)), cache


def taken(X, columns, axis):
    """The columns of X along an axis, other ones for each sample; columns have as many axes, of any size elsewhere."""
    (B, *_), n = columns.shape, columns.size // columns.shape[0]
    if X.dtype == bool:  # MXNet 1.9 swaps no axes of booleans
        return taken(X.astype("int8"), columns, axis) > 0
    X = np.broadcast_to(X, (B, *X.shape[1:])).swapaxes(1, axis)  # (B, T, any)
    rows = np.broadcast_to(np.arange(B, dtype="int64")[:, None], (B, n))  # (B, any number)
    found = npx.gather_nd(X, np.stack([rows, columns.astype("int64").reshape(B, n)]))  # (B, any number, any)
    return found.swapaxes(1, axis)


def samples(X, rows):
    """The samples of X (B, ...) that rows, integers (any number,), name, each as often as it is named."""
    return np.take(X, rows, axis=0)
