"""The layers of Dive into Deep Learning: of `mha.d2l`, as its tabs print them, and `attention.layer` itself."""

import importlib
from typing import Any

import numpy as np

from mha import checks, dispatch, native
from mha.config import Config, shapes
from mha.weights import schemes

# What gives a layer its weights, where a framework makes it without.
FIRST = {
    "torch": "call it once, so that its parts learn their sizes",
    "tensorflow": "call it once, so that its parts are built",
    "jax": "take `module.bind(variables)`",
    "mxnet": "call `initialize()`, and then the layer once",
}


def take(layer: Any) -> tuple[Config, dict[str, np.ndarray]]:
    """The configuration and canonical weights of a layer."""
    backend = "jax" if hasattr(layer, "scope") else dispatch.backend_of(layer) or "numpy"
    tab = dispatch.load(backend)
    config = getattr(layer, "config", None)
    dtype = config.dtype if isinstance(config, Config) else "float32"
    with tab.context(dtype):
        if not _is_ready(backend, layer):
            raise ValueError(f"the layer has no weights yet, expected one that has: first {FIRST[backend]}")
        if not isinstance(config, Config):
            return _printed(backend, layer)
        weights = checks.weights(shapes(config), dtype, tab.get_weights(layer))
    for name, array in weights.items():
        checks.finite(name, array)
    return config, weights


def make(kind: str, config: Config, weights: dict[str, np.ndarray]) -> Any:
    """A layer of `mha.d2l` with these canonical weights; that of JAX is bound to its variables."""
    backend, D, H = kind.split(".")[2], config.num_hiddens, config.num_heads
    width = D / H if D % H else D // H
    native.require(kind, config, {"key_dim": width, "value_dim": width, "pooling": "dot", "dtype": "float32"})
    sizes = config.key_size, config.query_size, config.value_size, D, H
    tab = dispatch.load(backend)
    with tab.context(config.dtype):
        layer = importlib.import_module(f"mha.d2l.{backend}").MultiHeadAttention(*sizes, config.dropout, config.bias)
        if backend == "jax":
            layer = layer.bind({})
        if backend == "mxnet":
            layer.initialize()
        return tab.set_weights(layer, weights)


def _is_ready(backend: str, layer: Any) -> bool:
    """Whether a layer has its weights."""
    if backend == "torch":
        from torch.nn.parameter import is_lazy

        return not any(map(is_lazy, layer.parameters()))
    if backend == "tensorflow":
        return all(getattr(layer, name).built for name in schemes.PROJECTIONS)
    if backend == "mxnet":
        try:
            return all(X.data() is not None for X in layer.collect_params().values())
        except RuntimeError:
            return False
    return backend == "numpy" or layer.scope is not None


def _printed(backend: str, layer: Any) -> tuple[Config, dict[str, np.ndarray]]:
    """The configuration and canonical weights of a layer that a tab of the book prints."""
    parts = {name: getattr(layer, name) for name in schemes.PROJECTIONS}
    kinds = {"attention": "DotProductAttention"} | dict.fromkeys(parts, "Linear" if backend == "torch" else "Dense")
    for name, kind in kinds.items():
        if (came := type(getattr(layer, name)).__name__) != kind:
            raise TypeError(f"{name} of the layer is a {came}, expected a {kind} as in the book")
    if backend == "torch":
        scheme, arrays = "d2l", layer.state_dict()
    elif backend == "jax":
        scheme, arrays = "mha", native.named(layer.variables["params"])
    elif backend == "tensorflow":
        from mha.native.keras import mixed

        off = {f"activation of {name}": getattr(part.activation, "__name__", part) for name, part in parts.items()}
        native.refuse("layer", {name: value for name, value in off.items() if value != "linear"})
        native.refuse("layer", {"dtype": mixed(layer)})
        scheme, arrays = "mha", _named(parts, "kernel", layer.weights)
    else:
        native.refuse("layer", {f"activation of {name}": part.act for name, part in parts.items()})
        scheme, arrays = "d2l", _named(parts, "weight", layer.collect_params().values())
        arrays = {name: X.data() for name, X in arrays.items()}
    return native.canonical(arrays, scheme, "", layer.num_heads, _rate(layer.attention.dropout))


def _named(parts: dict[str, Any], kernel: str, parameters: Any) -> dict[str, Any]:
    """The kernels and biases of a layer's parts by name, and its other parameters by theirs."""
    named = {f"{name}.{kind}": getattr(part, kind) for name, part in parts.items() for kind in (kernel, "bias")}
    named = {name: X for name, X in named.items() if X is not None}
    return named | {X.name: X for X in parameters if not any(X is own for own in named.values())}


def _rate(dropout: Any) -> float:
    """The probability of dropout, by the name that each framework has for it."""
    return next((getattr(dropout, name) for name in ("p", "rate", "_rate") if hasattr(dropout, name)), dropout)
