"""How a call that keeps no attention weights is cut, by samples and queries, into pieces whose scores fit a cache."""

import math
from collections.abc import Iterator
from typing import Any

from mha import checks

SCORES = 2**20  # in one piece: 4 MiB in float32


def is_plain(config: Any, hiding: Any, head_gates: Any) -> bool:
    """Whether a call has none of the options that the lesson alone knows; hiding: `mha.arguments.Hiding`."""
    options = config.scale, config.softcap, config.window, config.rotary, config.qk_norm, hiding.score_bias, head_gates
    first_at_0 = isinstance(hiding.offset, int) and hiding.offset == 0
    return first_at_0 and config.num_key_value_heads == config.num_heads and all(X is None for X in options)


def fits(scores: int) -> bool:
    """Whether this number of scores is small enough for one piece."""
    return scores <= SCORES


def queries(num_queries: int, scores: int) -> int:
    """How many queries make a block, where each query has this many scores: blocks as equal in size as possible."""
    if fits(num_queries * scores):
        return max(1, num_queries)
    most = max(1, SCORES // max(1, scores))
    return math.ceil(num_queries / math.ceil(num_queries / most))


def heads(total: int, num_heads: int, scores: int) -> int:
    """How many heads make a piece, of all samples' heads together, where each head has this many scores.

    A piece is some heads of one sample, or all heads of one or more samples.
    """
    most = max(1, SCORES // max(1, scores))
    if most < num_heads:
        return max(part for part in range(1, most + 1) if num_heads % part == 0)
    samples = total // num_heads
    return num_heads * math.ceil(samples / math.ceil(samples / (most // num_heads)))


def groups(
    batch_size: int, num_heads: int, num_queries: int, num_keys: int, valid_lens: Any = None, causal: bool = False
) -> Iterator[tuple[slice, int, bool]]:
    """Groups of samples to compute together, each with the keys that it needs.

    valid_lens: None, or NumPy integers (B,) or (B, Q), at most K.
    Yields for each group: the slice of its samples; how many keys it needs, up to the last one that any of its queries
    sees, at least 1; and whether lengths hide some of these keys.
    """
    size = max(1, SCORES // max(1, num_heads * num_queries * num_keys))
    for first in range(0, batch_size, size):
        samples = slice(first, min(first + size, batch_size))
        seen = min(num_keys, num_queries) if causal else num_keys
        if valid_lens is None:
            yield samples, seen, False
            continue
        shortest, longest = checks.extremes(valid_lens[samples])
        longest = max(1, min(longest, seen))
        yield samples, longest, shortest < longest


def part(
    valid_lens: Any,
    mask: Any,
    samples: slice = slice(None),
    queries: slice = slice(None),
    keys: slice = slice(None),
) -> tuple[Any, Any]:
    """Lengths, and a mask of four axes, of some samples, queries and keys, which are slices; either may be None.

    Only slices are taken, which arrays of every framework know.
    """
    if valid_lens is not None:
        valid_lens = valid_lens[samples] if len(valid_lens.shape) == 1 else valid_lens[samples, queries]
    if mask is not None:
        mask = mask[(None,) * (3 - len(mask.shape))]  # (B, Q, K) or (B, H, Q, K)
        mask = mask[:, None] if len(mask.shape) == 3 else mask  # (B, 1 or H, Q, K)
        cuts = zip((samples, slice(None), queries, keys), mask.shape, strict=True)
        mask = mask[tuple(slice(None) if size == 1 else cut for cut, size in cuts)]
    return valid_lens, mask


def cuts(num_keys: int) -> list[int]:
    """A quarter, a half, three quarters and all of the keys: for a compiler that must know sizes beforehand."""
    return sorted({math.ceil(num_keys * part / 4) for part in (1, 2, 3, 4)})
