"""Check that a cache fits a layer and a call, before anything is computed or written."""

from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.cache.cache import Cache
from mha.core.cache.slots import count_ranks, left_of, local_config
from mha.core.cache.steps import CacheStep, SlotState, plan_slots
from mha.core.options import checks


def check_cache(arrays: Any, layer: Any, inputs: tuple[Any, Any, Any], call: Any) -> None:
    """Check that the cache of a call fits a layer, and the arguments that mean something else beside a cache.

    arrays: the module of that name of the layer's backend; inputs: queries, keys and values, of which the queries are
    checked. Raises TypeError or ValueError.
    """
    cache, (queries, keys, values) = call.cache, inputs
    if not isinstance(cache, Cache):
        raise TypeError(f"cache is {checks.brief(cache)}, expected an mha.Cache, as attention.cache makes it")
    if not arrays.is_own(cache.keys):
        raise TypeError(f"cache is of {cache.backend}, expected one of the layer's backend: call cache.to")
    if cache.config != local_config(layer):
        raise ValueError("cache is of a layer with another configuration, expected one that this layer's .cache made")
    (S, here), parts = (cache.sizes[1], cache.keys.shape[2]), count_ranks(layer)
    if None not in (S, here) and here * parts != S:
        raise ValueError(
            f"cache has keys of {here} of its {S} slots, expected {S // parts} as the layer, which has the slots on "
            f"{parts} ranks; make it with attention.cache after the layer is split"
        )
    # A compiler knows no layer, and one whose parts are fixed is copied for a call.
    if arrays.is_known(cache.lost) and "layers that change" not in dispatch.FRAMEWORKS[cache.backend].lacks:
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


def plan_step(cache: Cache, queries: Any, call: Any) -> CacheStep | None:
    """Plan the step of a call with a cache; None if only a compiler knows its positions.

    queries: of which only the size counts; call: with its positions and lengths as NumPy arrays, where they are known.
    Raises ValueError if positions or slots do not fit.
    """
    slot_state, known = cache.slot_state(), (call.positions, call.valid_lens)
    if slot_state is None or not all(isinstance(X, np.ndarray | None) for X in known):
        return None
    step = plan_slots(cache, slot_state, queries, call)
    if len(step.wrong):
        raise ValueError(_describe_problem(cache, slot_state, step, int(step.wrong[0])))
    return step


def _describe_problem(cache: Cache, slot_state: SlotState, step: CacheStep, sample: int) -> str:
    """Say in words what is wrong with a sample of a call; slot_state: of the cache before the call."""
    (_, S), newest = slot_state.sizes, int(slot_state.arrays[0][sample].max())
    new = np.arange(0) if step.positions is None else step.positions[sample][step.positions[sample] >= 0]
    if new.size and new.min() <= newest:
        return (
            f"positions goes back to {new.min()} in sample {sample}, whose cache has a token at {newest}; expected "
            f"{newest + 1} or more, or take tokens back with cache.crop"
        )
    left, before, tokens = left_of(cache.config), slot_state.arrays[1][sample], step.slot_state.arrays[1][sample]
    if left is not None and left < S:
        return (
            f"the call overwrites slots of sample {sample} that its queries see, which takes no mask, score_bias and "
            f"return_weights, and has no trace; give its {tokens - before} tokens in smaller portions"
        )
    return (
        f"the cache is full: sample {sample} would have {tokens} tokens, and the cache has {S} slots; make it "
        "with a larger size"
    )
