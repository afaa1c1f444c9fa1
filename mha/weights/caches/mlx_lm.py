"""Find the tokens in a cache of mlx-lm, which is recognised by the name of its class, so that nothing is imported.

Each has keys (B, G, S, d) and values (B, G, S, dv), but in other slots: `KVCache` from the first on, with empty ones at
the end; `RotatingKVCache` in a ring behind its first `keep` slots, unless a longer call has just laid it in order;
`ChunkedKVCache` without those of earlier chunks; `BatchKVCache` with padding on the left.

Source: `mlx_lm.models.cache` of mlx-lm 0.32. Letters: B batch, G heads of keys and values, S slots.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from mha.core.options import checks

# The slots to take, the oldest token first, empty ones at the end; how many tokens there were, the last of which are
# there; where that is None, the positions (B, S) of the slots, -1 = empty.
Slots = tuple[np.ndarray, int | None, np.ndarray | None]


def _plain_slots(native: Any, S: int) -> Slots:
    return np.arange(S), _between("offset", native.offset, 0, S), None


def _chunk_slots(native: Any, S: int) -> Slots:
    start = checks.whole("start_position", native.start_position)
    offset = _between("offset", native.offset, start, start + S)
    return np.arange(offset - start if start else S), offset, None


def _ring_slots(native: Any, S: int) -> Slots:
    """Read a ring whose slots below `keep` stay; the next token goes to `_idx`, where the oldest one is."""
    offset, keep = checks.whole("offset", native.offset), checks.whole("keep", native.keep)
    next_slot = _between("_idx", native._idx, 0, S)
    if offset <= S and next_slot == offset:
        return np.arange(S), offset, None
    if offset < S or not keep <= next_slot:
        raise ValueError(
            f"native has _idx={next_slot} and keep={keep}, which no ring of {S} slots has after {offset} tokens"
        )
    if keep:
        raise ValueError(
            f"native has had {offset} tokens, of which it keeps the first {keep} and the last {S - keep}: expected one "
            "that holds all, since no layer of mha sees first tokens beside a window"
        )
    return np.roll(np.arange(S), -next_slot), offset, None


def _batch_slots(native: Any, S: int) -> Slots:
    if getattr(native, "_right_padding", None) is not None:
        raise ValueError("native has padding on the right, expected it on the left, where its `finalize()` moves it")
    filled = _between("_idx", native._idx, 0, S)
    left = np.array(native.left_padding.tolist())  # (B,)
    each = np.arange(S)
    return each, None, np.where(each < filled, np.maximum(each - left[:, None], -1), -1)  # (B, S)


# What reads a cache of each class, or why none does.
READERS: dict[str, Callable[[Any, int], Slots] | str] = {
    "RotatingKVCache": _ring_slots,
    "ChunkedKVCache": _chunk_slots,
    "BatchKVCache": _batch_slots,
    "KVCache": _plain_slots,
    "ConcatenateKVCache": _plain_slots,
    "QuantizedKVCache": "it is quantised: its keys and values have lost bits that no layer of mha loses",
    "BatchRotatingKVCache": "each of its samples is in a ring of its own; take one out by its `extract`",
    "CacheList": "it holds several; pass one of its `caches`",
    "ArraysCache": "it holds the state of a layer that is no attention",
}
KNOWN = ", ".join(name for name, reader in READERS.items() if not isinstance(reader, str))


def name_of(native: Any) -> str | None:
    """Return the class of a cache of mlx-lm; None if it is none."""
    return next((one.__name__ for one in type(native).__mro__ if one.__name__ in READERS), None)


def slots_of(native: Any) -> Slots:
    """Return the slots of a cache of mlx-lm; ValueError if it is empty, or of a class that is not read."""
    name = name_of(native)
    reader = READERS.get(str(name), "it is another one")
    if isinstance(reader, str):
        raise ValueError(f"native has a {type(native).__name__}, expected one of {KNOWN}: {reader}")
    if native.keys is None:
        raise ValueError(
            f"native has a {name} without keys and values, expected one with tokens; an empty cache is "
            "attention.cache(batch_size, size)"
        )
    return reader(native, native.keys.shape[2])


def _between(name: str, value: Any, least: int, most: int) -> int:
    if not least <= checks.whole(name, value) <= most:
        raise ValueError(f"{name} of native is {value}, expected {least} to {most}, as it has slots")
    return int(value)
