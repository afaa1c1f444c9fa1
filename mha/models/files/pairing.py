"""Pair the layers of two files: those with equal prefixes, else with the same weights, else by order."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from mha.core.tables import plural
from mha.models.files.one_file import File, Layer
from mha.models.files.shared_options import Options, lendable_options, load_both, try_to_load
from mha.parity.rule.relations import matrix
from mha.parity.rule.rules import UNIT
from mha.weights import argument_names

Pair = tuple[Layer, Layer]
# Of each kernel that is not zeros: the norms of its rows and of its columns, which belong to heads. An order of columns
# leaves those of the rows, a transpose exchanges the two.
Contents = dict[str, tuple[np.ndarray, np.ndarray]]
Progress = Callable[[list[Any]], Iterable[Any]]
MOST = 0.5  # two layers have the same contents if more than this share of their kernels are the same


@dataclasses.dataclass(frozen=True)
class Move:
    """A layer of B with the weights of one layer of A and the name of another one."""

    weights: Layer
    layer: Layer
    named: Layer


@dataclasses.dataclass(frozen=True)
class Pairing:
    """The pairs of layers to compare."""

    pairs: tuple[Pair, ...]  # in the order of A
    alone: tuple[tuple[Layer, ...], tuple[Layer, ...]] = ((), ())  # the layers of A, and of B, without a partner
    moves: tuple[Move, ...] = ()  # of pairs with the same weights, those whose numbers are of other layers
    notes: tuple[str, ...] = ()  # how they were paired, in words


def pair_layers(a: File, b: File, given: Options, track: Progress) -> Pairing:
    """Pair the layers of two files; given: options that a file does not say."""
    if a.prefix is not None and b.prefix is not None:
        return Pairing(((a.choose([a.prefix])[0], b.choose([b.prefix])[0]),))
    ours, theirs = (file.choose([prefix for _, prefix in file.layers()] or [file.prefix]) for file in (a, b))
    if a.prefix is None and b.prefix is None:
        return pair_all(a, b, ours, theirs, given, track)
    chosen, other, at = (a, b, 0) if b.prefix is None else (b, a, 1)
    (layer,) = chosen.choose([chosen.prefix])
    if len((theirs, ours)[at]) > 1:
        every = pair_all(a, b, ours, theirs, given, track)
        if pair := next((pair for pair in every.pairs if pair[at] == layer), None):
            return Pairing((pair,))
    (only,) = other.choose([None])
    return Pairing(((layer, only) if at == 0 else (only, layer),))


def pair_all(a: File, b: File, ours: list[Layer], theirs: list[Layer], given: Options, track: Progress) -> Pairing:
    """Pair all layers of two files."""
    named = {prefix: (scheme, prefix) for scheme, prefix in theirs}
    pairs = {layer: named[layer[1]] for layer in ours if layer[1] in named}
    rest = [layer for layer in ours if layer not in pairs], [layer for layer in theirs if layer not in pairs.values()]
    by_contents: dict[Layer, Layer] = {}
    if rest[0] and rest[1] and (len(rest[0]), len(rest[1])) != (1, 1):
        by_contents = pair_by_weights(a, b, *rest, given, track)
        pairs |= by_contents
    left = [layer for layer in rest[0] if layer not in pairs], [y for y in rest[1] if y not in by_contents.values()]
    by_order = dict(zip(*left, strict=False))
    pairs |= by_order
    notes = [
        f"paired by {how}, since their prefixes differ: {plural(len(some), 'layer')}"
        for how, some in (("their weights", by_contents), ("their order", by_order))
        if some and len(pairs) > 1
    ]
    alone = tuple(left[0][len(by_order) :]), tuple(left[1][len(by_order) :])
    moves = find_renumbering(ours, theirs, by_contents)
    return Pairing(tuple((layer, pairs[layer]) for layer in ours if layer in pairs), alone, moves, tuple(notes))


def pair_by_weights(
    a: File, b: File, ours: list[Layer], theirs: list[Layer], given: Options, track: Progress
) -> dict[Layer, Layer]:
    """Find for layers of A those of B with the same weights, in the same place first."""
    first, second = load_both((a, ours[0]), (b, theirs[0]), given)
    known = {file: lendable_options(layer.config) for file, (layer, _) in ((a, first), (b, second))}
    found: dict[tuple[File, Layer], Contents] = {}
    for file, layer in track([(a, layer) for layer in ours] + [(b, layer) for layer in theirs]):
        found[file, layer] = {}
        with contextlib.suppress(TypeError, ValueError):  # a layer that cannot be loaded has no partner by its weights
            if not isinstance(loaded := try_to_load(file, layer, known[file]), argument_names.LackingError):
                found[file, layer] = kernel_norms(loaded[0].weights)
    pairs: dict[Layer, Layer] = {}
    for at, layer in enumerate(ours):
        free = [other for other in theirs if other not in pairs.values()]
        scores = [(share_of_kernels(found[a, layer], found[b, other]), other in theirs[at : at + 1]) for other in free]
        best = max(range(len(free)), key=scores.__getitem__, default=None)
        if best is not None and scores[best][0] > MOST:
            pairs[layer] = free[best]
    return pairs


def find_swaps(differing: Mapping[Pair, tuple[Contents, Contents]]) -> tuple[Move, ...]:
    """Find among pairs that differ the layers of B with the weights of another layer of A."""
    return tuple(
        Move(first, other, named)
        for (first, _), (ours, theirs) in differing.items()
        for (named, other), (named_ours, other_theirs) in differing.items()
        if named[1] == other[1] and first != named
        and share_of_kernels(ours, other_theirs) > MOST
        and max(share_of_kernels(ours, theirs), share_of_kernels(named_ours, other_theirs)) <= MOST
    )  # fmt: skip


def find_renumbering(ours: list[Layer], theirs: list[Layer], pairs: Mapping[Layer, Layer]) -> tuple[Move, ...]:
    """Find the pairs with the same weights and other numbers of layers."""
    families = [{re.sub(r"\d+", "0", prefix) for _, prefix in layers} for layers in (ours, theirs)]
    numbered = {tuple(re.findall(r"\d+", layer[1])): layer for layer in ours}
    numbers = {layer: tuple(re.findall(r"\d+", layer[1])) for layer in theirs}
    if any(len(family) > 1 for family in families) or set(numbers.values()) != numbered.keys():
        return ()
    named = {layer: numbered[numbers[layer]] for layer in theirs}
    return tuple(Move(first, second, named[second]) for first, second in pairs.items() if named[second] != first)


def kernel_norms(weights: Mapping[str, np.ndarray]) -> Contents:
    """Return the norms of the rows and of the columns of each kernel."""
    found = {}
    for name, X in weights.items():
        if name.endswith(".kernel") and X.any():
            Y = matrix(name, X).astype(np.float64)
            found[name] = np.sqrt((Y * Y).sum(1)), np.sqrt((Y * Y).sum(0))
    return found


def share_of_kernels(ours: Contents, theirs: Contents) -> float:
    """Return the share of B's kernels that are A's, also transposed or reordered."""

    def near(X: np.ndarray, Y: np.ndarray) -> bool:  # in half precision each number errs by half of this share
        return X.shape == Y.shape and bool((np.abs(X - Y) <= UNIT["bfloat16"] * np.maximum(X, Y)).all())

    same = [name for name, (rows, _) in theirs.items() if name in ours and any(near(rows, X) for X in ours[name])]
    return len(same) / max(len(theirs), 1)
