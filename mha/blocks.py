"""How a call that keeps no attention weights is cut, by samples, queries and keys, into pieces that fit a cache.

What hides keys from queries is a `Hiding` of `mha.arguments`, whose arrays may be those of any framework.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha import checks

SCORES = 2**20  # in one piece: 4 MiB in float32
LEAST = 128  # queries of a block that a window alone makes small: products of fewer rows are slow
ALL = slice(None)


def fits(scores: int) -> bool:
    """Whether this number of scores is small enough for one piece."""
    return scores <= SCORES


def queries(num_queries: int, scores: int) -> int:
    """How many queries make a block, where each query has this many scores: blocks as equal in size as possible."""
    if fits(num_queries * scores):
        return max(1, num_queries)
    return _equal(num_queries, SCORES // max(1, scores))


def heads(total: int, num_heads: int, scores: int) -> int:
    """How many heads make a piece, of all samples' heads together, where each head has this many scores.

    A piece is some heads of one sample, or all heads of one or more samples.
    """
    most = max(1, SCORES // max(1, scores))
    if most < num_heads:
        return max(part for part in range(1, most + 1) if num_heads % part == 0)
    samples = total // num_heads
    return num_heads * math.ceil(samples / math.ceil(samples / (most // num_heads)))


def reach(hiding: Any) -> tuple[int | None, int | None]:
    """How many keys before and after its own position a query sees, by order and window; None = all."""
    left, right = hiding.window or (None, None)
    return left, 0 if hiding.causal else right


def span(hiding: Any, num_queries: int, num_keys: int, offset: Any = None) -> slice:
    """The keys that order and window let any query see, at least one.

    offset: NumPy integers, where that of `hiding` is an array whose values are known; None of others lets all be seen.
    """
    left, right = reach(hiding)
    if left is None and right is None:
        return slice(0, num_keys)
    offset = hiding.offset if offset is None else offset
    if not isinstance(offset, (int, np.ndarray)):
        return slice(0, num_keys)
    lowest, highest = checks.extremes(offset) if isinstance(offset, np.ndarray) else (offset, offset)
    first = 0 if left is None else max(0, min(lowest - left, num_keys - 1))
    last = num_keys if right is None else min(highest + num_queries + right, num_keys)
    return slice(first, max(first + 1, last))


def groups(
    hiding: Any, sizes: tuple[int, int, int, int], valid_lens: Any = None, offset: Any = None
) -> list[tuple[slice, slice, bool]]:
    """Groups of samples to compute together, each with the keys that it needs.

    sizes: B, H, Q and K; valid_lens: None, or those of `hiding` as NumPy integers, (B,) or (B, Q), at most K; offset:
    as for `span`. Each has the slice of its samples; that of the keys that any of its queries sees by lengths, order
    and window, at least one; and whether lengths hide some of these.
    """
    batch_size, num_heads, num_queries, num_keys = sizes
    widest, found = span(hiding, num_queries, num_keys, offset), []
    size = max(1, SCORES // max(1, num_heads * num_queries * (widest.stop - widest.start)))
    for first in range(0, batch_size, size):
        samples = slice(first, min(first + size, batch_size))
        keys = widest if offset is None or len(offset) == 1 else span(hiding, num_queries, num_keys, offset[samples])
        shortest, longest = (keys.stop, keys.stop) if valid_lens is None else checks.extremes(valid_lens[samples])
        longest = max(keys.start + 1, min(longest, keys.stop))
        found.append((samples, slice(keys.start, longest), shortest < longest))
    return found


def all_used(hiding: Any, num_queries: int, groups: list[tuple[slice, slice, bool]]) -> bool:
    """Whether every query sees a key, and every key of its group is seen: as far as is known without looking at pairs.

    groups: as the function of this name gives them.
    """
    if hiding.mask is not None or hiding.score_bias is not None or not isinstance(hiding.offset, int):
        return False
    left, right = reach(hiding)
    first_sees = right is None or hiding.offset + right >= 0
    last = 0 if left is None else hiding.offset + num_queries - 1 - left  # the first key of the last query
    return first_sees and all(not hides and last < keys.stop for _, keys, hides in groups)


def pieces(
    hiding: Any, num_queries: int, num_keys: int, scores: int, offset: Any = None, share: int = 2
) -> Iterator[tuple[slice, slice]]:
    """Blocks of queries to attend one after another, and the keys that each needs by order and window.

    scores: how many numbers the scores of one query and one key take, over all heads; offset: as for `span`; share:
    as for `block`.
    """
    size = block(hiding, num_queries, num_keys, scores, share)
    for first in range(0, num_queries, size):
        queries = slice(first, min(first + size, num_queries))
        place = hiding.offset if offset is None else offset
        moved = hiding._replace(offset=place + first)
        yield queries, span(moved, queries.stop - first, num_keys)


def block(hiding: Any, num_queries: int, num_keys: int, scores: int, share: int = 2) -> int:
    """How many queries make a block of `pieces`; a window makes it small, as a block needs the keys of all its queries.

    A block of n queries needs n - 1 keys more than the window has: n is at most 1 / share of it, or LEAST.
    """
    left, right = reach(hiding)
    if left is None or right is None:
        return queries(num_queries, scores * num_keys)
    most, window = SCORES // max(1, scores), left + 1 + right  # pairs of a block, keys of a query
    size = int(math.sqrt((window - 1) ** 2 + 4 * most) - window + 1) // 2  # so that size * (size + window - 1) <= most
    size = max(size, most // max(1, num_keys))  # a block needs no more than all keys
    return _equal(num_queries, min(size, max(window // share, LEAST)))


def part(hiding: Any, samples: slice = ALL, queries: slice = ALL, keys: slice = ALL) -> Any:
    """What hides of some samples, queries and keys, which are slices: the first of these queries and keys count as 0.

    The mask and the bias get four axes. Only slices are taken, which arrays of every framework know.
    """
    valid_lens, offset = hiding.valid_lens, hiding.offset
    first_query, first_key = (0 if cut.start is None else cut.start for cut in (queries, keys))
    if valid_lens is not None:
        valid_lens = valid_lens[samples] if len(valid_lens.shape) == 1 else valid_lens[samples, queries]
        valid_lens = valid_lens if isinstance(first_key, int) and first_key == 0 else valid_lens - first_key
    if not isinstance(offset, int) and offset.shape[0] != 1:
        offset = offset[samples]
    offset = offset + first_query - first_key
    mask, score_bias = (of_pairs(X, samples, queries, keys) for X in (hiding.mask, hiding.score_bias))
    return hiding._replace(valid_lens=valid_lens, mask=mask, score_bias=score_bias, offset=offset)


def of_pairs(pairs: Any, samples: slice = ALL, queries: slice = ALL, keys: slice = ALL) -> Any:
    """Of a mask or bias of pairs, with four axes, some samples, queries and keys; None stays None."""
    if pairs is None:
        return None
    pairs = pairs[(None,) * (3 - len(pairs.shape))]  # (B, Q, K) or (B, H, Q, K)
    pairs = pairs[:, None] if len(pairs.shape) == 3 else pairs  # (B, 1 or H, Q, K)
    each = zip((samples, ALL, queries, keys), pairs.shape, strict=True)
    return pairs[tuple(ALL if size == 1 else cut for cut, size in each)]


def cuts(num_keys: int) -> list[int]:
    """A quarter, a half, three quarters and all of the keys: for a compiler that must know sizes beforehand."""
    return sorted({math.ceil(num_keys * part / 4) for part in (1, 2, 3, 4)})


def _equal(total: int, most: int) -> int:
    """The size of equal parts of a total, of at most so much each."""
    return math.ceil(total / math.ceil(total / max(1, most))) if total else 1
