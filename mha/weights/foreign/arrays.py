"""Read named arrays of any framework, nested or not, and the layer in them."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.config import Config
from mha.core.options.names import SchemeName
from mha.weights import schemes

Layer = tuple[Config, dict[str, np.ndarray]]


def canonical(
    arrays: Mapping[str, Any],
    scheme: SchemeName,
    prefix: str,
    num_heads: int | None,
    layer: int | None = None,
    **options: Any,
) -> Layer:
    """Return the configuration and canonical weights of the layer with this prefix; arrays: of any framework.

    layer: its number, where the first axis of each array goes through the layers of a stack.
    """
    own = {name: to_numpy(name, arrays[name]) for name in schemes.layer_names(arrays, scheme, prefix)}
    own = _of_stack(own, scheme, prefix, layer)
    schemes.describe(own, scheme, prefix, num_heads, **options)
    schemes.ask(scheme, options)
    return schemes.to_canonical(own, scheme, prefix, num_heads, **options)


def _of_stack(
    arrays: dict[str, np.ndarray], scheme: SchemeName, prefix: str, layer: int | None
) -> dict[str, np.ndarray]:
    """Return the arrays of one layer of a stack, as `nn.scan` of Flax makes it; layer: None = it is no stack."""
    axes = {prefix + place.name: len(place.axes) for _, place in schemes.SCHEMES[scheme].every}
    counts = {len(X) if X.ndim == axes[name] + 1 else 0 for name, X in arrays.items()}
    (count,) = counts if len(counts) == 1 else {0}
    if layer is None:
        if count:
            name, X = next(iter(arrays.items()))
            raise ValueError(
                f"{name} has shape {X.shape}, expected {axes[name]} axes; if its first axis goes through the layers "
                f"of a stack, as nn.scan makes it, pass layer=0, or another below {count}"
            )
        return arrays
    if not count:
        shown = ", ".join(f"{name} {X.shape}" for name, X in arrays.items())
        raise ValueError(f"layer is {layer!r}, but the arrays are no stack of layers along their first axis: {shown}")
    if not 0 <= checks.whole("layer", layer) < count:
        raise ValueError(f"layer is {layer}, expected one from 0 to {count - 1}, as the arrays have")
    return {name: X[layer] for name, X in arrays.items()}


def flatten_names(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the leaves of nested mappings and lists by path, joined by dots; without a lone outer "params"."""
    if set(tree) == {"params"} and isinstance(tree["params"], Mapping):
        tree = tree["params"]
    arrays: dict[str, Any] = {}
    for path, array in _leaves(tree):
        name = ".".join(path).replace("/", ".")
        if name in arrays:
            raise ValueError(f"two arrays are called {name}, expected different names")
        arrays[name] = array
    return arrays


def arrays_by_part(layer: Any, kernel: str, parameters: Any) -> dict[str, Any]:
    """Return the arrays of a layer: projections by our names, others by its own; kernel: its name of a kernel."""
    parts = {name: getattr(layer, name) for name in schemes.PROJECTIONS}
    own = {f"{name}.{kind}": getattr(part, kind) for name, part in parts.items() for kind in (kernel, "bias")}
    own = {name: X for name, X in own.items() if X is not None}
    return own | {X.name: X for X in parameters if not any(X is other for other in own.values())}


def _leaves(tree: Mapping[Any, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in tree.items():
        here = (*path, *(map(str, name) if isinstance(name, tuple) else [str(name)]))
        if isinstance(value, list | tuple) and value and all(isinstance(one, Mapping) for one in value):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            yield from _leaves(value, here)
        else:
            yield here, value


def to_numpy(name: str, value: Any, expected: str = "a dense array") -> np.ndarray:
    """Convert an array of any framework, or one of Flax's boxes around it, to a NumPy array."""
    for unbox in ("unbox", "get_value"):
        if type(value).__module__.startswith("flax.") and hasattr(value, unbox):
            value = getattr(value, unbox)()
    backend, array = dispatch.backend_of(value), value
    if backend is not None:
        module = dispatch.load(backend)
        array = module.value_of(value) if module.is_own(value) else None
    if not checks.is_numpy(array):
        raise TypeError(f"{name} is a {type(value).__name__}, expected {expected} whose numbers are known by now")
    return array
