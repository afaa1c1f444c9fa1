"""Cut a call by segments whose values are known: blocks of queries, and the keys of each.

A call is a checked `Call`; its segments and positions are looked at as NumPy arrays, and no pairs are.
"""

from collections.abc import Iterator

import numpy as np

from mha.core.call import PACKED, PLACES, Call


def has_segments(call: Call) -> bool:
    """Whether a call has segments and no chunks, and the values of these, and of positions if any, are known."""
    if call.plan.chunk is not None:  # which are counted in the whole
        return False
    return call.is_packed() and all(call.value_of(name) is not None for name in call.of_tokens())


def with_values(call: Call) -> Call:
    """Return the call with the known values of its segments and positions, NumPy arrays (B or 1, T)."""
    return call._replace(**{name: np.atleast_2d(call.value_of(name)) for name in call.of_tokens()})


def extents(own: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first key of each query's segment and the place behind the last, (B or 1, Q); K and 0 without one.

    own (B or 1, Q), others (B or 1, K): the segments of queries and of keys.
    """
    first, last, K = [], [], others.shape[1]
    for b in range(max(len(own), len(others))):
        ids, of_keys = own[b % len(own)], others[b % len(others)]  # (Q,), (K,)
        order = np.argsort(of_keys, kind="stable")  # (K,)
        ranked = of_keys[order]
        left, right = (np.searchsorted(ranked, ids, side) for side in ("left", "right"))  # (Q,)
        sees = (left < right) & (ids >= 0)
        first.append(np.where(sees, order[np.minimum(left, K - 1)], K))
        last.append(np.where(sees, order[right - 1] + 1, 0))
    return np.array(first), np.array(last)


def blocks(call: Call, least: int) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of queries, of one segment or of several with fewer queries than the least, and the keys of each."""
    own, others = with_values(call).segment_ids().values()
    Q, (first, last) = own.shape[1], extents(own, others)
    ends = np.flatnonzero((own[:, 1:] != own[:, :-1]).any(0)) + 1
    start, stop, rows = 0, 0, []
    for end in (*ends.tolist(), Q):
        if stop > start and (end - stop >= least or stop - start >= least):
            rows.append(slice(start, stop))
            start = stop
        stop = end
    for queries in (*rows, slice(start, stop)):
        begin, end = int(first[:, queries].min()), int(last[:, queries].max())
        yield queries, slice(begin, end) if begin < end else slice(0, 1)  # at least one, also where it needs none


def simplify(call: Call) -> Call:
    """Leave out segments if they are all one, and positions if they are the same as an offset."""
    if not has_segments(call):
        return call
    own, others = with_values(call).segment_ids().values()
    if own.min() == own.max() == others.min() == others.max() >= 0:
        call = call._replace(**dict.fromkeys(PACKED))
    if not call.by_positions():
        return call
    places, of_keys = with_values(call).position_ids().values()
    if len(places) == len(of_keys) == 1 and _is_in_order(places) and _is_in_order(of_keys):
        return call._replace(**dict.fromkeys(PLACES), offset=int(places[0, 0] - of_keys[0, 0]))
    return call


def _is_in_order(places: np.ndarray) -> bool:
    """Whether each token is one place behind the one before, and none is padding."""
    return bool(places[0, 0] >= 0 and (np.diff(places) == 1).all())


def may_see_themselves(call: Call) -> bool:
    """Whether each token sees itself, but for padding, if queries and keys are the same tokens, as far as is known."""
    if not call.is_packed() or call.plan.chunk is not None or call.valid_lens is not None or call.pairs():
        return False
    ordered = call.causal or call.plan.window is not None
    return call.by_positions() or not ordered or (type(call.offset) is int and call.offset == 0)
