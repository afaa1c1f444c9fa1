"""What a cache of a model says of itself: how many tokens it has, and what it does to them.

Source: the caches of transformers 5.23, pairs of arrays as older models have them, and the caches of mlx-lm 0.32, of
which a model has a list, one for each layer.
"""

import dataclasses
from typing import Any

import numpy as np

from mha import arrays


@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """What a cache says of itself before a call.

    length: how many tokens it has, None if it does not say it; padding: how many of them are before each text, (B,),
    None = none; most: it keeps the last ones alone, so many, None = all; rounded: whether it keeps them quantised.
    """

    length: int | None = None
    padding: np.ndarray | None = None
    most: int | None = None
    rounded: bool = False

    def hidden(self, tokens: int) -> np.ndarray | None:
        """Where the first tokens are no padding, booleans (B, tokens); None = all are none."""
        return None if self.padding is None else np.arange(tokens) >= self.padding[:, None]


def kept_of(cache: Any) -> Kept:
    """What a cache says of itself."""
    if isinstance(own := getattr(cache, "kept", None), Kept):  # as a record has it
        return own
    if hasattr(cache, "get_seq_length"):
        return Kept(int(cache.get_seq_length()))
    if isinstance(cache, (tuple, list)) and (not cache or cache[0] is None):
        return Kept(0)
    if counted := counted_in(cache):
        length, padding = told_by(counted[0])
        most: list[Any] = [getattr(one, "max_size", None) for one in counted]
        rounded = any(hasattr(one, "bits") for one in counted)
        return Kept(length, padding, None if None in most else max(most), rounded)
    if isinstance(cache, (tuple, list)):
        first = cache[0][0] if isinstance(cache[0], (tuple, list)) else cache[0]
        return Kept(int(first.shape[-2]) if getattr(first, "ndim", 0) >= 3 else None)
    return Kept()


def told_by(one: Any) -> tuple[int | None, np.ndarray | None]:
    """How many tokens the cache of a layer of mlx-lm has, and how many of them are padding.

    Its offset leaves the padding out; where it forgets tokens, `left_padding` is only what is left of that.
    """
    if not hasattr(one, "left_padding"):
        return (one.offset if isinstance(one.offset, int) else None), None
    offset, padding = (np.asarray(arrays.to_numpy(X)) for X in (one.offset, one.left_padding))
    length = int(getattr(one, "_offset", (offset + padding).max()))
    return length, length - offset if (offset < length).any() else None


def counted_in(cache: Any) -> list[Any]:
    """The caches of layers in a cache that say how many tokens they have."""
    return [one for one in (cache if isinstance(cache, (tuple, list)) else (cache,)) if hasattr(one, "offset")]


def owner_of(cache: Any) -> Any:
    """What stays the same of a cache while it is used, and has its methods: of a list the first cache of a layer."""
    return next(iter(counted_in(cache)), cache)
