"""Find the queries and keys of a call that count: those in reach of order and window, and those that are seen.

A call is a checked `Call`; `of` is a backend's table of `Operations`.
"""

import dataclasses
from typing import Any

import numpy as np

from mha.core.call import PACKED, PLACES, Call
from mha.core.call.declaration import extremes_of
from mha.core.engine import segments
from mha.core.engine.operations import Operations
from mha.core.options import checks


def reach(call: Call) -> tuple[int | None, int | None]:
    """Return how many keys before and after its own position a query sees, by order and window; None = all.

    Where positions are given, keys that are next to each other may be anywhere.
    """
    if call.by_positions():
        return None, None
    left, right = call.plan.window or (None, None)
    return left, 0 if call.causal else right


def span(call: Call, num_queries: Any, num_keys: Any, of: Operations | None = None) -> slice:
    """Return the keys that order and window let any query see, at least one; all, if the offset is not known yet.

    of: the operations of a backend whose sizes and offsets may be known only in the call; None = they are ints.
    """
    left, right = reach(call)
    if left is None and right is None:
        return slice(0, num_keys)
    smaller, larger = (min, max) if of is None else (of.smaller, of.larger)
    offsets = _offset_range(call)
    if offsets is not None:
        lowest, highest = offsets
    elif of is not None and of.lowest_of is not None and of.highest_of is not None:
        lowest, highest = of.lowest_of(call.offset), of.highest_of(call.offset)
    else:
        return slice(0, num_keys)
    first = 0 if left is None else larger(0, smaller(lowest - left, num_keys - 1))
    last = num_keys if right is None else smaller(highest + num_queries, num_keys - right) + right
    return slice(first, larger(first + 1, last))


def meets(call: Call, num_queries: int, num_keys: int) -> bool:
    """Whether order and window may let any query see any key, as far as the offset is known."""
    (left, right), offsets = reach(call), _offset_range(call)
    if offsets is None or 0 in (num_queries, num_keys):
        return offsets is None
    lowest, highest = offsets
    return (right is None or highest + num_queries - 1 + right >= 0) and (left is None or lowest - left < num_keys)


def _offset_range(call: Call) -> tuple[int, int] | None:
    """Return the lowest and the highest offset of a call; None if they are not known yet."""
    offset = call.value_of("offset")
    if offset is None:
        return None
    return (offset, offset) if isinstance(offset, int) else checks.extremes(offset)


def longest(call: Call, num_keys: int) -> int:
    """Return how many of the keys lengths let any query see, at least one; all, if lengths are not known."""
    bounds = None if call.valid_lens is None else call.plan.extremes or extremes_of(call.value_of("valid_lens"))
    return num_keys if bounds is None else max(1, min(num_keys, bounds[1]))


def lengths_hide(call: Call, num_keys: int) -> bool:
    """Whether lengths may hide one of the keys."""
    if call.valid_lens is None:
        return False
    bounds = call.plan.extremes or extremes_of(call.value_of("valid_lens"))
    return bounds is None or bounds[0] < num_keys


def narrow(call: Call, num_queries: int, num_keys: int, moves: bool = True) -> tuple[slice, Call]:
    """Return the keys that order, window and lengths let any query see, at least one, as a slice; and their call.

    moves: whether the first of them may count as 0: not if something goes by positions themselves, not by distances.
    """
    seen = span(call, num_queries, num_keys)
    seen = seen if moves else slice(0, seen.stop)
    seen = slice(seen.start, max(seen.start + 1, min(seen.stop, longest(call, num_keys))))
    if (seen.start, seen.stop) != (0, num_keys):  # PyTorch's compiler does not compare slices
        call = call.part(keys=seen)
    if call.valid_lens is not None and not lengths_hide(call, seen.stop - seen.start):
        call = call._replace(valid_lens=None)
    return seen, call


def uses_all(call: Call, num_queries: Any, num_keys: Any) -> bool:
    """Whether every query sees a key, and every key is seen, as far as is known without looking at pairs."""
    if call.valid_lens is not None or call.pairs() or call.by_tokens():
        return False
    left, right = reach(call)
    if left is None and right is None:
        return True
    if type(call.offset) is not int or (right is not None and call.offset + right < 0):
        return False
    known = all(isinstance(size, int) for size in (num_queries, num_keys))
    if left is None:
        return True
    return known and call.offset <= left and call.offset + num_queries - 1 - left < num_keys  # each query's first key


def usage(of: Operations, queries: Any, keys: Any, call: Call) -> tuple[Any, Any]:
    """Flag the queries that see a key, (B or 1, Q or 1), and the keys that a query sees, (B or 1, K), in any head.

    It takes no array of all pairs where each query sees the keys from a first to a last one, and no key between those
    of all queries is left out.
    """
    lengths, (left, right) = call.valid_lens, reach(call)
    per_query = lengths is not None and len(lengths.shape) == 2 and lengths.shape[1] != 1
    if call.pairs() or call.by_tokens() or (per_query and left is not None):
        if of.same is not None and of.either is not None and segments.may_see_themselves(call):
            own, other = call.segment_ids().values()
            alike, counts = of.same(own, other), own >= 0  # (B or 1, T)
            if call.by_positions():
                alike, counts = alike & of.same(call.positions, call.key_positions), counts & (call.positions >= 0)
            return of.either(alike, lambda: (counts, counts), lambda: _usage_in_pairs(of, queries, keys, call))
        return _usage_in_pairs(of, queries, keys, call)
    Q, K = of.shape(queries)[1], of.shape(keys)[1]
    each_key = of.arange(K, keys)[None]  # (1, K)
    if lengths is not None:
        lengths = of.signed(lengths if len(lengths.shape) == 2 else lengths[:, None], K)  # (B, 1 or Q)
    if left is None and right is None:
        return lengths > 0, each_key < of.max(lengths, 1)[:, None]
    each_query = call.offset + of.arange(Q, queries)[None]  # (B or 1, Q)
    # Two far positions do not fit in 32 bits.
    first = 0 * each_query if left is None else of.maximum(each_query, left) - left  # (B or 1, Q)
    last = 0 * each_query + K if right is None else of.minimum(each_query, K - right - 1) + right + 1
    last = last if lengths is None else of.minimum(last, lengths)  # (B, Q)
    sees = first < last  # (B or 1, Q)
    first, last = of.where(sees, first, K), of.where(sees, last, 0)
    return sees, (of.min(first, 1)[:, None] <= each_key) & (each_key < of.max(last, 1)[:, None])


def _usage_in_pairs(of: Operations, queries: Any, keys: Any, call: Call) -> tuple[Any, Any]:
    """Return the flags of `usage`, by an array of all pairs."""
    visible = of.any(of.visible_keys(queries, keys, call), 1)  # (B or 1, Q or 1, K)
    return of.any(visible, 2), of.any(visible, 1)


def needs_all(call: Call, num_queries: int, num_keys: int) -> bool:
    """Whether `uses_all`, and no key is beyond the reach of all queries: nothing has to be left out or put to zero."""
    return uses_all(call, num_queries, num_keys) and span(call, num_queries, num_keys) == slice(0, num_keys)


def usage_if_known(call: Call, num_queries: int, num_keys: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the flags of `usage` as NumPy arrays, where lengths and offsets are known and no pairs hide; else None."""
    rows, columns = (np.empty((1, size, 0)) for size in (num_queries, num_keys))
    if call.by_tokens():
        alone = segments.has_segments(call) and segments.may_see_themselves(call)
        return usage(KNOWN, rows, columns, segments.with_values(call)) if alone else None
    lengths, offset = call.value_of("valid_lens"), call.value_of("offset")
    if call.pairs() or offset is None or (call.valid_lens is not None and lengths is None):
        return None
    if lengths is not None and lengths.ndim == 2 and reach(call)[0] is not None:
        return None
    return usage(NUMPY, rows, columns, call._replace(valid_lens=lengths, offset=offset))


def zero_out(of: Operations, queries: Any, keys: Any, values: Any, sees: Any, seen: Any) -> tuple[Any, Any, Any]:
    """Put zeros for queries, keys and values where `sees` (B or 1, Q or 1) or `seen` (B or 1, K) is False.

    The flags are as of `usage`, NumPy's where they are known.
    """

    def where_used(X: Any, flags: Any) -> Any:
        if not isinstance(flags, np.ndarray):
            return of.where(flags[:, :, None], X, of.zeros((), X))
        return X if flags.all() else of.where(of.tensor(flags[:, :, None], X), X, of.zeros((), X))

    used = where_used(keys, seen)
    return where_used(queries, sees), used, used if values is keys else where_used(values, seen)


def by_mask(of: Operations, queries: Any, keys: Any, call: Call) -> Call:
    """Put a mask in place of given positions, segments and chunks.

    Positions stay for the rotation alone. Where it is known which texts are packed, blocks go by them, and all stay.
    """
    if not call.by_tokens() or segments.has_segments(call):
        return call
    hiding = Call(mask=call.mask, **call.segment_ids())
    call = call._replace(**dict.fromkeys(PACKED))
    if call.by_positions() or call.plan.chunk:
        hiding = hiding._replace(causal=call.causal, offset=call.offset, **call.position_ids())
        hiding = hiding.with_plan(window=call.plan.window, chunk=call.plan.chunk)
        call = call._replace(causal=False).with_plan(window=None, chunk=None)
    return call._replace(mask=of.visible_keys(queries, keys, hiding))


def by_segments(of: Operations, queries: Any, keys: Any, call: Call) -> Call:
    """Put segments in place of chunks, as their blocks are short, where the call has no others; else `by_mask`."""
    if not call.plan.chunk or call.by_positions() or call.is_packed():
        return by_mask(of, queries, keys, call)

    def firsts(places: Any) -> Any:  # of the chunks of these (B or 1, T); those before position 0 see nothing
        return places - places % call.plan.chunk

    (Q, K), known = (of.shape(X)[1] for X in (queries, keys)), dict(call.plan.known or {})
    own, others = firsts(of.arange(Q, queries)[None] + call.offset), firsts(of.arange(K, keys)[None])
    if all(isinstance(number, int) for number in (call.offset, Q, K)):
        known |= zip(PACKED, (firsts(np.arange(Q)[None] + call.offset), firsts(np.arange(K)[None])), strict=True)
    return call.with_segments(own, others).with_plan(chunk=None, known=known)


def without_positions(call: Call) -> Call:
    """Drop the positions of a call of `by_mask` after the rotation, which alone needed them."""
    if not call.by_positions() or call.is_packed():
        return call
    return call._replace(**dict.fromkeys(PLACES))


def pairs_by_group(of: Operations, queries: Any, keys: Any, num_heads: int, call: Call) -> tuple[Any, Any, Any]:
    """Return visible keys, bias and sinks for heads of keys (B*G, K, d), with the queries of a group in a row.

    queries: (B*H, Q, d). All three broadcast against (B*G, H/G*Q, K), or are None.
    """
    (BH, Q, _), BG = of.shape(queries), of.shape(keys)[0]
    B = BH // num_heads
    G = BG // of.larger(B, 1)
    score_bias = None if call.score_bias is None else of.four_axes(call.score_bias)
    each = of.visible_keys(queries, keys, call), score_bias, call.plan.sinks
    rows = (pairs if num_heads == G else in_rows(of, pairs, (B, num_heads, G, Q)) for pairs in each)
    visible, score_bias, sinks = (of.repeat_heads(pairs, B, G) for pairs in rows)  # (B*G, H/G*Q or 1, K or 1)
    return visible, score_bias, sinks


def in_rows(of: Operations, pairs: Any, sizes: tuple[Any, Any, Any, Any]) -> Any:
    """Put the queries of a group in a row: pairs (B or 1, G or 1, H/G*Q or 1, K); sizes: B, H, G and Q.

    None stays None.
    """
    if pairs is None or pairs.shape[1] == pairs.shape[2] == 1:
        return pairs
    (B, H, G, Q), K = sizes, of.shape(pairs)[3]
    return of.reshape(of.broadcast_to(pairs, (B, H, Q, K)), (B, G, H // G * Q, K))  # (B, G, H/G*Q, K or 1)


NUMPY = Operations(
    any=np.any,
    min=np.min,
    max=np.max,
    minimum=np.minimum,
    maximum=np.maximum,
    where=np.where,
    broadcast_to=np.broadcast_to,
    reshape=np.reshape,
    arange=lambda size, like: np.arange(size),
    tensor=lambda array, like: array,
    zeros=lambda shape, like: np.zeros(shape, like.dtype),
    signed=lambda lengths, num_keys: lengths,
    visible_keys=None,
    repeat_heads=None,
    four_axes=None,
)
# What is known decides at once.
KNOWN = dataclasses.replace(NUMPY, same=np.array_equal, either=lambda same, these, those: these() if same else None)
