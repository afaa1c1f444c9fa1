"""Remove heads from a layer: fewer columns of W_q, W_k, W_v and W_g, fewer rows of W_o, the same widths."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from mha.core.options import checks
from mha.layer import MultiHeadAttention, restore


def prune(attention: MultiHeadAttention, heads: Iterable[int]) -> MultiHeadAttention:
    """Make a layer without these heads, on the same backend. The given layer is not changed.

    The new layer takes the same inputs. Up to rounding, it computes what the given layer computes with `head_gates` of
    0 for these heads and 1 for the others. If a mask, a score bias or gates have an axis of heads, it must now have the
    kept heads alone. The widths of a head, and so the scale, do not change. If heads of keys and values are shared, one
    of them is removed with the last of its query heads; those that are kept must have equally many query heads each.

    Args:
        attention: the layer, with any options.
        heads: numbers of the heads to remove, from 0, each once; an empty list gives an equal layer.

    Returns:
        The smaller layer, with its heads in their old order. It trains, saves and converts as any layer does.

    Raises:
        TypeError: if an argument is of another type.
        ValueError: if a number is no head of the layer or comes twice, if no head would be left, if a norm is over all
            heads, or if the groups would become unequal; the message says which heads to prune as well, or to keep.
    """
    if not isinstance(attention, MultiHeadAttention):
        raise TypeError(f"attention is a {type(attention).__name__}, expected an mha.MultiHeadAttention")
    config = attention.config
    H, G = config.num_heads, config.num_key_value_heads
    gone = _check_heads(heads, H)
    for name in ("qk_norm", "value_norm"):
        if gone and (norm := getattr(config, name)) and norm.over == "all":
            raise ValueError(
                f'{name} has over="all", expected "head": without some heads, the others would have another mean; '
                "give head_gates of 0 for these heads instead"
            )
    if len(gone) == H:
        raise ValueError(f"heads holds all {H} heads of the layer, expected at most {H - 1} of them; keep one")
    kept = [head for head in range(H) if head not in gone]
    groups = _groups(kept, H // G)
    cuts = {"W_q": (kept, config.key_dim), "W_k": (groups, config.key_dim), "W_v": (groups, config.value_dim)}
    cuts["W_g"] = kept, config.gate_dim

    arrays = attention.weights
    for name, (blocks, width) in cuts.items():
        for weight in (f"{name}.kernel", f"{name}.bias"):
            if weight in arrays:
                arrays[weight] = arrays[weight][..., _features(blocks, width)]
    if config.sinks:
        arrays["sinks"] = arrays["sinks"][kept]
    arrays["W_o.kernel"] = arrays["W_o.kernel"][_features(kept, config.value_dim)]
    smaller = dataclasses.replace(config, num_heads=len(kept), num_key_value_heads=len(groups))
    return restore(smaller, arrays, attention.backend, attention.seed, attention.readable)


def _check_heads(heads: Iterable[int], number: int) -> set[int]:
    """Check the heads to prune, and return them."""
    if isinstance(heads, (str, bytes)) or not isinstance(heads, Iterable):
        raise TypeError(f"heads is {checks.brief(heads)}, expected a list of ints, such as [0, 2]")
    gone: set[int] = set()
    for position, value in enumerate(heads):
        head = checks.whole(f"heads[{position}]", value)
        if not 0 <= head < number:
            raise ValueError(f"heads[{position}] is {head}, expected 0 to {number - 1}, a head of the layer")
        if head in gone:
            raise ValueError(f"heads holds {head} twice, expected each head once; leave one out")
        gone.add(head)
    return gone


def _groups(kept: Sequence[int], share: int) -> list[int]:
    """The heads of keys and values that the kept query heads use; share: the query heads of a group before pruning."""
    members: dict[int, list[int]] = {}
    for head in kept:
        members.setdefault(head // share, []).append(head)
    sizes = [len(group) for group in members.values()]
    if len(set(sizes)) > 1:
        too = [head for group in members.values() for head in group[min(sizes) :]]
        counts = ", ".join(f"group {group}: {len(inside)}" for group, inside in members.items())
        whole = [head for group in members for head in range(group * share, (group + 1) * share) if head not in kept]
        raise ValueError(
            f"heads leaves unequal groups ({counts} heads of {share}), expected equally many in each group; prune "
            f"{too} as well, or keep {whole}"
        )
    return list(members)


def _features(blocks: Sequence[int], width: int) -> np.ndarray:
    """The indices of the features of some heads of this width."""
    return np.concatenate([np.arange(block * width, (block + 1) * width) for block in blocks])
