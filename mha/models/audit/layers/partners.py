"""Find the arrays in like= for each layer of layers=: at the path that it names, at the same path, or by order."""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mha.core.tables import few
from mha.models.audit.layers.reference import Layer, Reference, fits, natural_key, pair_paths
from mha.models.audit.layers.user_layers import parts_of_like
from mha.weights.projections import LayerArrays, Parts, layer_paths, missing_kernels, possible_paths, read_arrays

Partner = tuple[Reference, Layer]
Where = tuple[str, Parts | None]  # the path of a layer among the arrays, and its names, None = those of a scheme
HOW = (
    "say where they are, such as like='encoder.layers.{}.attention' beside W_q and the others in layers=, where {} is "
    "the number of a layer, or like=dict(path='encoder.layers.{}.attention', W_q='query', ...) for other names"
)


class NamedReference(Reference):
    """The reference for a layer with names of its own; take: as `projections.read_arrays`."""

    def __init__(self, whole: Reference, take: Callable[[], LayerArrays], own: bool, first: LayerArrays) -> None:
        super().__init__(whole.arrays, None, whole.origin, own)
        self.kept, self.take = whole.kept, take
        self.biased, self.guessed = first.biased, first.guessed

    def arrays_of(self, chosen: Layer) -> tuple[dict[str, np.ndarray], str]:
        """Return the arrays of the layer by the names of its scheme, and their prefix."""
        return dict(self.take().arrays), ""


def partners_of(
    user_layers: Mapping[str, Any], reference: Reference, by_scheme: Mapping[str, Layer]
) -> dict[str, Where]:
    """Find the arrays of each layer that a dict of layers= describes; ValueError if like= has none for one.

    user_layers: by path, the value in layers=; by_scheme: by path, the reference's layers that a scheme describes.
    """
    found: dict[str, Where] = {}
    every = {path: parts_of_like(one) for path, one in user_layers.items() if isinstance(one, Mapping)}
    while rest := {path: one for path, one in every.items() if path not in found}:
        parts = next(iter(rest.values()))
        paths = [path for path, one in rest.items() if one == parts]
        if parts is not None and parts.path is not None:
            found |= {path: place_by_name(path, parts.at(path), reference) for path in paths}
            continue
        by_config = {path for path in paths if has_config(path, by_scheme.get(path), reference)}
        named = {} if parts is None or by_config == {*paths} else by_names(paths, parts, reference)
        for path in paths:
            if path in named and path not in by_config:
                found[path] = named[path]
            elif path in by_scheme:
                found[path] = by_scheme[path][1].rstrip("."), None
            else:
                raise ValueError(missing_arrays(path, parts and parts.at(path), reference))
        by_order = {path: found[path][0] for path in paths if not fits(found[path][0], path)}
        if not (is_sequence(by_order) and is_sequence(by_order.values())):
            pairs = ", ".join(few([f"{path} might be {other}" for path, other in by_order.items()]))
            raise ValueError(
                f"like= and layers= do not fit each other: no number says which layer of {reference.origin} is which "
                f"of the model, such as {pairs}; {HOW}"
            )
    return found


def is_sequence(paths: Iterable[str]) -> bool:
    """Whether paths differ in numbers alone: attention, attention_1, attention_2."""
    return len({re.sub(r"[._]?\d+", "", path) for path in paths}) < 2


def has_config(path: str, layer: Layer | None, reference: Reference) -> bool:
    """Whether a layer is at its own path, and the configuration describes it."""
    try:
        return layer is not None and fits(layer[1].rstrip("."), path) and reference.attends(layer) is not None
    except (TypeError, ValueError):
        return False


def place_by_name(path: str, parts: Parts, reference: Reference) -> Where:
    """Return the place that layers= names for a layer; ValueError if no layer is there."""
    at = parts.path or ""
    if parts.names and not missing_kernels(at, parts, reference.arrays):
        return at, parts
    if any(prefix.rstrip(".") == at for _, prefix in reference.layers()):
        return at, None
    raise ValueError(missing_arrays(path, parts, reference))


def by_names(paths: Sequence[str], parts: Parts, reference: Reference) -> dict[str, Where]:
    """Find the layers with projections of these names."""
    own = {path: parts.at(path) for path in paths}
    if len({tuple(one.names.items()) for one in own.values()}) > 1:  # a number is in a name
        every = {path: layer_paths(one, reference.arrays) for path, one in own.items()}
        return {path: (some[0], own[path]) for path, some in every.items() if len(some) == 1}
    layers: list[Layer] = [
        ("llama", prefix) for prefix in sorted(layer_paths(own[paths[0]], reference.arrays), key=natural_key)
    ]
    return {path: (layer[1], own[path]) for path, layer in pair_paths(paths, layers).items()}


def missing_arrays(path: str, parts: Parts | None, reference: Reference) -> str:
    """Say which arrays of a layer are nowhere in like=, or in several places."""
    begin = f"like= and layers= do not fit each other: for {path}, in {reference.origin}"
    some = f"its arrays are {', '.join(few(list(reference.arrays))) or 'none'}"
    if parts is None or not parts.names:
        at = f" at {parts.path!r}" if parts is not None and parts.path is not None else ""
        return f"{begin} there is no layer of a known scheme{at}; {some}; {HOW}"
    every, near = layer_paths(parts, reference.arrays), [parts.path or ""]
    if parts.path is None:
        near = [one for one in possible_paths(parts, reference.arrays) if fits(one, path)]
        if len(every) > 1 and not near:
            layers = f"{len(every)} layers, at {', '.join(few(every))}"
            return f"{begin} there are {layers}, and nothing says which it is; {HOW}"
    at = near[0] if near else path
    missing = ", ".join(missing_kernels(at, parts, reference.arrays))
    return f"{begin} there is no kernel of {missing} at {at!r}; {some}; {HOW}"


def partner_of(
    path: str,
    where: Mapping[str, Where],
    by_scheme: Mapping[str, Layer],
    reference: Reference,
    mine: LayerArrays | None = None,
) -> Partner | None:
    """Return the reference for a layer, and its layer there; None if there is none.

    where: as of `partners_of`; mine: the layer's arrays in the model.
    """
    prefix, parts = where.get(path, ("", None))
    if parts is not None:
        return reference_by_name(reference, prefix, parts, mine)
    layers = reference.layers() if path in where else []
    layer = next((layer for layer in layers if layer[1].rstrip(".") == prefix), by_scheme.get(path))
    return None if layer is None else (reference, layer)


def reference_by_name(
    reference: Reference, prefix: str, parts: Parts, mine: LayerArrays | None = None
) -> tuple[NamedReference, Layer]:
    """Return the reference for a layer whose arrays have names of their own, and its layer there.

    mine: the arrays of the model. Raises ValueError if their sizes differ, or if nothing shows how the kernels lie.
    """
    taking = functools.partial(
        read_arrays, reference.arrays, prefix, parts, reference.modules, mine,
        whose=reference.origin, formats=reference.formats,
    )  # fmt: skip
    try:
        first = taking()
    except ValueError as error:
        raise ValueError(f"like= and layers= do not fit each other: {error}") from error
    return NamedReference(reference, taking, False, first), (first.scheme, f"{prefix}.")


def notes_on_guesses(
    user_layers: Mapping[str, Any], where: Mapping[str, Where], kernels: Sequence[str], reference: Reference
) -> list[str]:
    """Say which layers of like= were paired by order, and which kernels lie as their name says."""
    pairs = []
    for path, (other, _) in where.items():
        parts = parts_of_like(user_layers[path])
        if not fits(other, path) and (parts is None or parts.path is None):
            pairs.append(f"{path} with {other or 'the only layer'}")
    notes = []
    if pairs:
        notes.append(
            f"compared by the order of their paths: {', '.join(few(pairs))} of {reference.origin}; if that is wrong, "
            "say like='...' in layers="
        )
    if kernels:
        notes.append(
            f"taken as (out, in), as PyTorch's of this name are: {', '.join(few([*kernels]))} of {reference.origin}; "
            "if they are (in, out), say like=dict(axes='io') in layers="
        )
    return notes
