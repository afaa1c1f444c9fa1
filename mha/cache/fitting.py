"""Whether a cache fits a layer and a call: what does not is refused before anything is computed or written."""

from typing import Any

import numpy as np

from mha import checks, dispatch
from mha.cache.cache import Cache
from mha.cache.slots import LOST, left_of


def fit(arrays: Any, layer: Any, inputs: tuple[Any, Any, Any], call: Any) -> None:
    """Check the cache of a call for a layer, and the arguments that a call with a cache takes otherwise than others.

    arrays: the module of that name of the layer's backend; inputs: queries, keys and values, of which the queries are
    checked. Raises TypeError or ValueError.
    """
    cache, (queries, keys, values) = call.cache, inputs
    if not isinstance(cache, Cache):
        raise TypeError(f"cache is {checks.brief(cache)}, expected an mha.Cache, as attention.cache makes it")
    if not arrays.is_own(cache.keys):
        raise TypeError(f"cache is of {cache.backend}, expected one of the layer's backend: call cache.to")
    if cache.config != layer.config:
        raise ValueError("cache is of a layer with another configuration, expected one that this layer's .cache made")
    if arrays.known(cache.lost) is not None:  # no compiler looks on, which knows no layer
        check_owner(cache, layer)
    place = arrays.place(layer, queries)
    if place is not None and cache.keys.device != place:
        raise ValueError(f"cache is on device {cache.keys.device}, expected {place} as the layer; make it there")
    B, given = cache.sizes[0], queries.shape[0]
    if None not in (B, given) and given != B:
        raise ValueError(f"queries has batch size {given}, expected {B} as the cache; take samples with cache.reorder")
    if cache.frozen:
        if keys is not None or values is not None:
            raise ValueError("keys and values are given beside a frozen cache, expected None: it has them already")
        return
    if keys is None or values is None:
        raise ValueError("keys and values are None, expected those of the new tokens: only a frozen cache has its own")
    if keys.shape[1] != queries.shape[1]:
        raise ValueError(
            f"keys has {keys.shape[1]} rows a sample, expected {queries.shape[1]} as queries: beside a cache that "
            "grows, both are the new tokens"
        )
    if call.key_positions is not None:
        raise ValueError("key_positions is given beside a cache that grows, expected None: write positions")
    if not (checks.is_whole(call.offset) and call.offset == 0):
        raise ValueError("offset is given beside a cache that grows, expected none: write positions, or neither")
    if call.valid_lens is not None:
        if len(getattr(call.valid_lens, "shape", (0,))) != 1:
            raise ValueError(f"valid_lens has shape {call.valid_lens.shape}, expected ({B},): how many tokens are new")
        if call.positions is not None:
            raise ValueError("valid_lens is given beside positions and a cache, expected one of them: -1 is padding")


def check_owner(cache: Cache, layer: Any) -> None:
    """Refuse the cache of another layer, as far as that is known."""
    if cache.owner() is not None and cache.owner() is not layer:
        raise ValueError("cache is of another layer, expected this one's: each layer of a model has a cache of its own")


def fit_values(cache: Cache, queries: Any, call: Any) -> None:
    """Check positions and slots of a call with a cache, where they are known; raise ValueError if one does not fit.

    queries: of which only the size counts; call: with its positions and lengths as NumPy arrays, where they are known.
    """
    kept = known(cache)
    if kept is None or not all(isinstance(X, np.ndarray | None) for X in (call.positions, call.valid_lens)):
        return
    book, (B, Q) = dispatch.lesson("numpy"), queries.shape[:2]
    rows = np.empty((B, Q, 0))
    *_, placed = book.place(rows, rows, rows, call._replace(cache=kept))
    _, _, (_, lengths, lost) = book.slots_after(kept.positions, kept.lengths, kept.lost, placed)
    for b in np.nonzero(lost == LOST)[0]:
        raise ValueError(_why(kept, int(b), placed, lengths))


def known(cache: Cache) -> Cache | None:
    """Positions, lengths and what is lost of a cache as NumPy arrays; None if only a compiler knows them."""
    found = [dispatch.load(cache.backend).known(X) for X in (cache.positions, cache.lengths, cache.lost)]
    if any(X is None for X in found):
        return None
    B, S = cache.sizes
    return cache.after(np.empty((B, 0, S, 0)), np.empty((B, 0, S, 0)), *(X.astype(np.int64) for X in found))


def _why(cache: Cache, sample: int, call: Any, lengths: Any) -> str:
    """What is wrong with a sample of a call, in words."""
    S, newest = cache.sizes[1], int(cache.positions[sample].max())
    new = call.key_positions[sample][call.key_positions[sample] >= 0]
    if new.size and new.min() <= newest:
        return (
            f"positions goes back to {new.min()} in sample {sample}, whose cache has a token at {newest}; expected "
            f"{newest + 1} or more, or take tokens back with cache.crop"
        )
    left = left_of(cache.config)
    if left is not None and left < S:
        return (
            f"the call overwrites slots of sample {sample} that its queries see, which takes no mask, score_bias and "
            f"return_weights; give its {new.size} tokens in smaller portions"
        )
    return (
        f"the cache is full: sample {sample} would have {lengths[sample]} tokens, and the cache has {S} slots; make it "
        "with a larger size"
    )
