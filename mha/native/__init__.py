"""Layers of others: theirs into ours and ours into theirs, option by option and weight by weight.

What has no counterpart on the other side is refused by name, never dropped. Each module here knows the layers of one
framework, and is imported when it is used:
    take(layer) -> the configuration and the canonical weights of a layer
    make(kind, config, weights) -> a layer of that kind with these canonical weights
"""

import importlib
import reprlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mha import arguments, checks, dispatch
from mha.config import Config
from mha.weights import schemes

# What a layer can be made of, as it is imported: the module here that knows it, and the backend that brings it.
KINDS = {
    "torch.nn.MultiheadAttention": ("torch", "torch"),
    "keras.layers.MultiHeadAttention": ("keras", "tensorflow"),
    "flax.linen.MultiHeadDotProductAttention": ("linen", "jax"),
    "flax.linen.MultiHeadAttention": ("linen", "jax"),
    "flax.nnx.MultiHeadAttention": ("nnx", "jax"),
    "mha.d2l.torch.MultiHeadAttention": ("d2l", "torch"),
    "mha.d2l.tensorflow.MultiHeadAttention": ("d2l", "tensorflow"),
    "mha.d2l.jax.MultiHeadAttention": ("d2l", "jax"),
    "mha.d2l.mxnet.MultiHeadAttention": ("d2l", "mxnet"),
}
OWN = {f"mha.backends.{name}.MultiHeadAttention": ("d2l", name) for name in dispatch.NEEDS}

Layer = tuple[Config, dict[str, np.ndarray]]


def read(source: Any, scheme: str, prefix: str | None, num_heads: int | None) -> Layer:
    """The configuration and canonical weights of a layer of any kind, or of named arrays; see `mha.from_native`."""
    if isinstance(source, Mapping):
        arrays = named(source)
        return canonical(arrays, *schemes.choose(arrays, scheme, prefix), num_heads)
    module = importlib.import_module(f"mha.native.{_module(source)}")
    for name, value, none in (("scheme", scheme, "auto"), ("prefix", prefix, None)):
        if value != none:
            raise ValueError(f"{name} is {value!r}, expected {none!r} for a layer: it chooses among named arrays")
    config, weights = module.take(source)
    if num_heads is not None and checks.size("num_heads", num_heads) != config.num_heads:
        raise ValueError(f"num_heads is {num_heads}, expected {config.num_heads} as the layer has, or None")
    return config, weights


def make(kind: str, config: Config, weights: dict[str, np.ndarray]) -> Any:
    """A layer of another kind with these canonical weights; see `MultiHeadAttention.to_native`."""
    module, backend = KINDS[checks.choice("kind", kind, tuple(KINDS))]
    dispatch.load(backend)  # if the framework is missing, this says how to install it
    return importlib.import_module(f"mha.native.{module}").make(kind, config, weights)


# For the modules here


def refuse(kind: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError, naming them, if options of a layer are on that have no counterpart; None and False are off."""
    on = [
        f"{name}={reprlib.repr(value)}" for name, value in options.items() if value is not None and value is not False
    ]
    if on:
        raise ValueError(
            f"the {kind} has {', '.join(on)}, which no layer of mha has; only one without can be converted"
        )


def require(kind: str, config: Config, needed: Mapping[str, Any]) -> None:
    """Raise ValueError, naming them, unless options are what they must be for a kind of layer to exist."""
    others = [
        f"{name}={getattr(config, name)!r}, expected {value!r}"
        for name, value in needed.items()
        if getattr(config, name) != value
    ]
    if others:
        raise ValueError(f"a {kind} cannot be made of a layer with {'; '.join(others)}")


def canonical(
    arrays: Mapping[str, Any], scheme: str, prefix: str, num_heads: int | None, dropout: float = 0.0
) -> Layer:
    """The configuration and canonical weights of the layer with this prefix, whose arrays are of any framework."""
    own = {name: _numpy(name, arrays[name]) for name in schemes.wanted(arrays, scheme, prefix)}
    return schemes.to_canonical(own, scheme, prefix, num_heads, dropout)


def named(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """The leaves of nested mappings by their path, with dots between; of {"params": ...} alone, what is in it."""
    if set(tree) == {"params"} and isinstance(tree["params"], Mapping):
        tree = tree["params"]
    arrays: dict[str, Any] = {}
    for path, array in _leaves(tree):
        name = ".".join(path).replace("/", ".")
        if name in arrays:
            raise ValueError(f"two arrays are called {name}, expected different names")
        arrays[name] = array
    return arrays


def _leaves(tree: Mapping[Any, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in tree.items():
        here = (*path, *(map(str, name) if isinstance(name, tuple) else [str(name)]))
        if isinstance(value, Mapping):
            yield from _leaves(value, here)
        else:
            yield here, value


def _numpy(name: str, value: Any) -> np.ndarray:
    """An array of any framework, or one of Flax's boxes around it, as a NumPy array."""
    if type(value).__module__.startswith("flax."):
        value = value.unbox() if hasattr(value, "unbox") else value.get_value()
    array = value if dispatch.backend_of(value) is None else arguments.known(name, value)
    if not checks.is_numpy(array):
        raise TypeError(f"{name} is a {type(value).__name__}, expected a dense array whose numbers are known by now")
    return array


def _module(source: Any) -> str:
    """The module here that knows a layer, by its very class: what a subclass computes is not known."""
    for kind, (module, _) in (KINDS | OWN).items():
        place, _, name = kind.rpartition(".")
        if type(source) is getattr(sys.modules.get(place), name, None):
            return module
    # A class that the book prints is wherever its reader defined it. Flax's shows its parts only when it is bound.
    unbound = getattr(source, "scope", "") is None
    parts = ("num_heads",) if unbound else ("num_heads", "attention", *schemes.PROJECTIONS)
    if type(source).__name__ == "MultiHeadAttention" and all(hasattr(source, part) for part in parts):
        return "d2l"
    raise TypeError(
        f"source is a {type(source).__module__}.{type(source).__qualname__}, expected named arrays, the layer of an "
        f"mha.MultiHeadAttention, or exactly one of {', '.join(KINDS)}; of a model or a subclass, convert the named "
        "arrays of its attention, with scheme and prefix"
    )
