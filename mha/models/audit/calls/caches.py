"""Read the state of a model's cache: how many tokens it holds, and what it does to them.

Source: the caches of transformers 5.23, pairs of arrays as older models have them, and the caches of mlx-lm 0.32, where
a model has a list of one cache for each layer.
"""

import dataclasses
from typing import Any

import numpy as np

from mha import arrays


@dataclasses.dataclass(frozen=True, eq=False)
class CacheState:
    """The state of a cache before a call.

    Attributes:
        length: how many tokens it holds; None if it does not say.
        padding: how many of them are padding before each text, (B,); None = none.
        most: the number of last tokens that it keeps; None = all.
        rounded: whether it keeps them quantised.
    """

    length: int | None = None
    padding: np.ndarray | None = None
    most: int | None = None
    rounded: bool = False

    def real_tokens(self, tokens: int) -> np.ndarray | None:
        """Return which of the first tokens are not padding, booleans (B, tokens); None = all."""
        return None if self.padding is None else np.arange(tokens) >= self.padding[:, None]


def cache_state(cache: Any) -> CacheState:
    """Return the state of a cache."""
    if isinstance(own := getattr(cache, "kept", None), CacheState):  # as a record has it
        return own
    if hasattr(cache, "get_seq_length"):
        return CacheState(int(cache.get_seq_length()))
    if isinstance(cache, (tuple, list)) and (not cache or cache[0] is None):
        return CacheState(0)
    if counted := layer_caches(cache):
        length, padding = length_and_padding(counted[0])
        most: list[Any] = [getattr(one, "max_size", None) for one in counted]
        rounded = any(hasattr(one, "bits") for one in counted)
        return CacheState(length, padding, None if None in most else max(most), rounded)
    if isinstance(cache, (tuple, list)):
        first = cache[0][0] if isinstance(cache[0], (tuple, list)) else cache[0]
        return CacheState(int(first.shape[-2]) if getattr(first, "ndim", 0) >= 3 else None)
    return CacheState()


def length_and_padding(one: Any) -> tuple[int | None, np.ndarray | None]:
    """Return how many tokens the cache of an mlx-lm layer has, and how many of them are padding.

    Its offset leaves the padding out; a cache that forgets tokens lowers `left_padding` as padding goes.
    """
    if not hasattr(one, "left_padding"):
        return (one.offset if isinstance(one.offset, int) else None), None
    offset, padding = (np.asarray(arrays.to_numpy(X)) for X in (one.offset, one.left_padding))
    length = int(getattr(one, "_offset", (offset + padding).max()))
    return length, length - offset if (offset < length).any() else None


def layer_caches(cache: Any) -> list[Any]:
    """Return the caches of single layers that count their tokens."""
    return [one for one in (cache if isinstance(cache, (tuple, list)) else (cache,)) if hasattr(one, "offset")]


def owner_of(cache: Any) -> Any:
    """Return the object that stays the same while a cache is used; of a list, the cache of the first layer."""
    return next(iter(layer_caches(cache)), cache)
