"""Give arrays of Keras or Flax the names and the axes of a PyTorch scheme, whose kernels are mostly (out, in)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mha.core.options.names import SchemeName
from mha.weights import schemes
from mha.weights.foreign.arrays import to_numpy

KERNEL = "weight"  # what PyTorch calls the kernel of a module, and the scale of a norm
OTHERS = ("kernel", "scale", "gamma")  # what others do


def add_torch_names(names: Mapping[str, Any]) -> dict[str, None]:
    """Return the names of arrays, and those that PyTorch would give them."""
    return dict.fromkeys(names) | dict.fromkeys(name for own in names for name in _torch_names(own))


def with_torch_names(arrays: Mapping[str, Any], scheme: SchemeName, prefix: str) -> Mapping[str, Any]:
    """Return the arrays by the names of a scheme if those of the layer at prefix have others; else as they are."""
    places = {prefix + place.name: (weight, place) for weight, place in schemes.SCHEMES[scheme].every}
    found, of_layer = {}, [name for name in arrays if name.startswith(prefix)]
    if not any(other in places and other not in arrays for own in of_layer for other in _torch_names(own)):
        return arrays
    for own in of_layer:
        name = next((name for name in _torch_names(own) if name in places and name not in arrays), own)
        if name == own and not own.endswith(".bias"):
            continue
        if name in places:
            weight, place = places[name]
            X = to_numpy(own, arrays[own])
            found[own] = name, _in_axes(X, weight, place.axes)
    return {name: arrays[name] for name in of_layer if name not in found} | dict(found.values())


def _torch_names(own: str) -> list[str]:
    """Return the name that PyTorch would give an array, if it is another one."""
    begin, _, kind = own.rpartition(".")
    return [f"{begin}.{KERNEL}"] if kind in OTHERS else []


def _in_axes(X: np.ndarray, weight: str, axes: str) -> np.ndarray:
    """Return a kernel (in, out), (in, H, d) or (H, d, out), or a bias, in the axes of a scheme."""
    if weight.endswith(".bias") and axes == "o":
        return X.reshape(-1)  # (out,)
    if weight.endswith(".kernel") and axes in ("oi", "io"):
        rows = -1 if weight == "W_o.kernel" else len(X)
        X = X.reshape(rows, X.shape[-1] if rows < 0 else -1)  # (in, out)
        return X.T if axes == "oi" else X
    return X
