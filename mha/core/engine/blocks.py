"""Cut a call that keeps no attention weights, by samples, queries and keys, into pieces that fit a cache.

A call is a checked `Call`, whose arrays may be those of any framework. `room`, in its plan or given, is how many scores
make a piece where it runs; None = as many as a processor's cache has room for.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from mha.core.call import ALL, OF_PAIRS, Call
from mha.core.engine import segments
from mha.core.engine.operations import Operations
from mha.core.engine.visible_range import NUMPY, reach, span

SCORES = 2**20  # in one piece on a processor: 4 MiB in float32
BYTES = 24  # of a score and its gradient, on a GPU: floats and booleans of some steps at once
LEAST = 128  # queries of a block that a window or packed texts alone make small: products of fewer rows are slow


def room_in(memory: int) -> int:
    """How many scores make a piece on a GPU with so much memory, in bytes: loops over small ones are slow there."""
    return max(SCORES, memory // BYTES)


def fits(scores: int, room: int | None = None) -> bool:
    """Whether this number of scores is small enough for one piece."""
    return scores <= (room or SCORES)


def queries(num_queries: Any, scores: Any, of: Operations = NUMPY, room: int | None = None) -> Any:
    """Return how many queries make a block, where each has this many scores: blocks are as equal as possible.

    of: the operations of a backend whose sizes may be known only in the call, here and below.
    """
    if of is NUMPY and fits(num_queries * scores, room):
        return max(1, num_queries)
    return _equal_size(of, num_queries, (room or SCORES) // of.larger(1, scores))


def heads(total: Any, num_heads: int, scores: Any, of: Operations = NUMPY, room: int | None = None) -> Any:
    """Return how many heads make a piece, of all samples' heads together, where each has this many scores.

    A piece is some heads of one sample, or all heads of one or more samples.
    """
    most, some = of.larger(1, (room or SCORES) // of.larger(1, scores)), 1
    for part in range(2, num_heads + 1):
        if num_heads % part == 0:
            some = of.larger(some, part * of.smaller(1, most // part))  # 0 if so many do not fit
    samples = of.smaller(1, most // num_heads) * _equal_size(of, total // num_heads, most // num_heads)
    return of.larger(some, num_heads * samples)


def samples(call: Call, sizes: tuple[int, int, int, int]) -> list[slice]:
    """Slices of the samples that are computed together; sizes: B, H, Q and K."""
    B, H, Q, K = sizes
    widest = span(call, Q, K)
    size = max(1, (call.plan.room or SCORES) // max(1, H * Q * (widest.stop - widest.start)))
    return [slice(first, min(first + size, B)) for first in range(0, B, size)]


def pieces(call: Call, num_queries: int, num_keys: int, scores: int, share: int = 2) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of queries to attend one after another, and the keys that each needs by order and window.

    scores: how many numbers the scores of one query and one key take, over all heads; share: as for `block`.
    """
    if segments.has_segments(call):
        yield from _pieces_of_segments(call, num_queries, num_keys, scores)
        return
    size = block(call, num_queries, num_keys, scores, share)
    # Lengths and pairs need not be cut for their positions.
    call = call._replace(valid_lens=None, **dict.fromkeys(OF_PAIRS))
    for first in range(0, num_queries, size):
        queries = slice(first, min(first + size, num_queries))
        yield queries, span(call.part(queries=queries), queries.stop - first, num_keys)


def _pieces_of_segments(call: Call, num_queries: int, num_keys: int, scores: int) -> Iterator[tuple[slice, slice]]:
    """Yield the `pieces` of a call whose segments are known: each needs the keys of its own segments."""
    if fits(scores * num_queries * num_keys, call.plan.room):
        yield slice(0, num_queries), slice(0, num_keys)
        return
    order = Call(causal=call.causal, offset=call.offset, **call.position_ids())
    order = order.with_plan(window=call.plan.window, known=call.plan.known)
    for rows, keys in segments.blocks(call, LEAST):
        size = queries(rows.stop - rows.start, scores * (keys.stop - keys.start), room=call.plan.room)
        for first in range(rows.start, rows.stop, size):
            own = slice(first, min(first + size, rows.stop))
            near = span(order.part(queries=own), own.stop - own.start, num_keys)
            start = max(keys.start, min(near.start, keys.stop - 1))
            yield own, slice(start, max(start + 1, min(keys.stop, near.stop)))


def call_of_block(call: Call, rows: slice, keys: slice) -> Call:
    """Return the call of one block of queries and its keys."""
    return segments.simplify(call.part(queries=rows, keys=keys))


def places(rows: slice, keys: slice, pairs: Iterable[Any]) -> list[tuple[slice, ...]]:
    """Return where the arrays of one block are: in queries, keys and values of three axes, and in pairs of four."""
    found: list[tuple[slice, ...]] = [(ALL, cut) for cut in (rows, keys, keys)]
    for X in pairs:
        sizes = zip((rows, keys), X.shape[2:], strict=True)
        found.append((ALL, ALL, *(ALL if size == 1 else cut for cut, size in sizes)))
    return found


def in_blocks(call: Call, num_queries: int, num_keys: int, scores: int) -> bool:
    """Whether a call is computed in several blocks."""
    if segments.has_segments(call):
        return not fits(scores * num_queries * num_keys, call.plan.room)
    return bool(block(call, num_queries, num_keys, scores) < num_queries)


def block(call: Call, num_queries: Any, num_keys: Any, scores: Any, share: int = 2, of: Operations = NUMPY) -> Any:
    """Return how many queries make a block; a window makes it small, as a block needs the keys of all its queries.

    A block of n queries needs n - 1 keys more than the window has: n is at most 1 / share of it, or LEAST.
    """
    left, right = reach(call)
    if left is None or right is None:
        return queries(num_queries, scores * num_keys, of, call.plan.room)
    most = (call.plan.room or SCORES) // of.larger(1, scores)  # pairs of a block
    others = left + right  # keys of a query beside its own
    size = (of.root(others**2, 4 * most) - others) // 2  # so that size * (size + others) <= most
    size = of.larger(size, most // of.larger(1, num_keys))  # a block needs no more than all keys
    return _equal_size(of, num_queries, of.smaller(size, max((others + 1) // share, LEAST)))


def cuts(num_keys: int) -> list[int]:
    """Return a quarter, a half, three quarters and all of the keys, for a compiler that must know sizes beforehand."""
    return sorted({math.ceil(num_keys * part / 4) for part in (1, 2, 3, 4)})


def doublings(least: int, num_keys: int) -> list[int]:
    """Return so many keys, twice as many and so on, up to all: as `cuts`, for blocks that need few of many."""
    return [*itertools.takewhile(lambda size: size < num_keys, (least << n for n in itertools.count())), num_keys]


def _equal_size(of: Operations, total: Any, most: Any) -> Any:
    """Return the size of equal parts of a total: at most so much each, and at least 1."""
    count = of.larger(1, -(-total // of.larger(1, most)))
    return of.larger(1, -(-total // count))
