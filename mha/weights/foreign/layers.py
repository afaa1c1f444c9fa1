"""Convert a layer of any kind to configuration and weights, call it, and make one of another kind."""

import importlib
import inspect
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.config import Config, plain, shapes
from mha.core.options.names import BackendName
from mha.weights import models, schemes
from mha.weights.checkpoints import check_options
from mha.weights.foreign import modules
from mha.weights.foreign.arrays import Layer, canonical, flatten_names, to_numpy
from mha.weights.foreign.kinds import BOOK, KINDS, exact_kind, full_name, layer_kind, module_of, require_kind


def read(
    source: Any, scheme: str, prefix: str | None, num_heads: int | None, options: Mapping[str, Any], layer: int | None
) -> Layer:
    """Return the configuration and canonical weights of any layer, or of named arrays; see `mha.from_native`."""
    check_options(options)
    if isinstance(source, Mapping) and not callable(source):  # a module of MLX is a dict, too
        arrays = flatten_names(source)
        chosen, prefix = schemes.choose(arrays, scheme, prefix)
        if models.LENGTH in options:
            raise ValueError("length came with arrays, whose rotation is the one that rotary says; leave it out")
        return canonical(arrays, chosen, prefix, num_heads, layer, **options)
    if layer is not None:
        raise ValueError(f"layer is {layer!r}, expected None for a layer: it chooses among the arrays of a stack")
    if exact_kind(source) is None and (config := modules.config_of(source)) is not None:
        return modules.take(source, config, scheme, prefix, num_heads, options)
    kind, backend = require_kind(source)
    for name, value, none in (("scheme", scheme, "auto"), ("prefix", prefix, None)):
        if value != none:
            raise ValueError(f"{name} is {value!r}, expected {none!r} for a layer: it chooses among named arrays")
    if options:
        raise ValueError(f"{', '.join(options)} came with a layer, which has its own configuration; leave it out")
    config, weights = _book(backend, source) if kind is None else module_of(backend).take(source)
    if num_heads is not None and checks.size("num_heads", num_heads) != config.num_heads:
        raise ValueError(f"num_heads is {num_heads}, expected {config.num_heads} as the layer has, or None")
    return config, weights


def read_layer(source: Any) -> Layer:
    """Return the configuration and canonical weights of a layer of a known kind, or of a subclass of one."""
    kind, backend = layer_kind(source) or require_kind(source)
    return _book(backend, source) if kind is None else module_of(backend).take(source)


def attend(
    layer: Any, backend: BackendName, config: Config, inputs: Any, hiding: Any, cotangent: Any
) -> dict[str, Any]:
    """Call a framework's own layer in its own manner; returns output, weights and gradients by our names.

    inputs: queries, keys, values; hiding: padding (B, K) and pairs (B, 1 or H, Q, K), both True = may attend or None,
    and causal, True or False; cotangent: (B, Q, D). All arrays are the framework's.
    """
    named = dict(zip(("queries", "keys", "values"), inputs, strict=True))
    output, weights, gradients, scheme = module_of(backend).attend(layer, named, *hiding, cotangent)
    results = {"output": output} | ({} if weights is None else {"weights": weights})
    results |= {name: gradients.pop(name) for name in named}
    own = {name: to_numpy(name, X) for name, X in gradients.items()}
    return results | {f"gradient.{name}": X for name, X in schemes.unpack_arrays(own, scheme, config).items()}


def make(kind: str | type, config: Config, weights: dict[str, np.ndarray]) -> Any:
    """Make a layer of another kind with these canonical weights; see `MultiHeadAttention.to_native`."""
    grouped = config.num_key_value_heads < config.num_heads
    kind = checks.choice("kind", full_name(kind, grouped), tuple(KINDS))
    backend = KINDS[kind]
    dispatch.load(backend)  # if the framework is missing, this says how to install it
    return (
        _make_book(backend, kind, config, weights) if kind in BOOK else module_of(backend).make(kind, config, weights)
    )


# Layers of Dive into Deep Learning: of `mha.d2l`, as the book prints them, and `attention.layer` itself


def _book(backend: BackendName, layer: Any) -> Layer:
    """Return the configuration and canonical weights of a layer of the book, or of ours."""
    module, native = dispatch.load(backend), module_of(backend)
    config = getattr(layer, "config", None)
    if not isinstance(config, Config) and backend not in BOOK.values():
        title = dispatch.facts("TITLE")[backend]
        raise TypeError(f"source is a layer of {title}, of which the book prints none; pass its arrays by name instead")
    dtype = config.dtype if isinstance(config, Config) else "float32"
    with module.context(dtype):
        if hasattr(native, "is_ready") and not native.is_ready(layer):
            raise ValueError(f"the layer has no weights yet, expected a layer with weights: first {native.FIRST}")
        if not isinstance(config, Config):
            return _plain_book(native, layer)
        weights = checks.weights(shapes(config), dtype, module.get_weights(layer))
    for name, array in weights.items():
        checks.finite(name, array)
    return config, weights


def _plain_book(native: Any, layer: Any) -> Layer:
    """Return the configuration and canonical weights of a layer that the book prints."""
    parts = {"attention": ("DotProductAttention",)} | dict.fromkeys(schemes.PROJECTIONS, native.DENSE)
    for name, kinds in parts.items():
        if (came := type(getattr(layer, name)).__name__) not in kinds:
            raise TypeError(f"{name} of the layer is a {came}, expected a {' or '.join(kinds)} as in the book")
    scheme, arrays = native.book_arrays(layer)
    return canonical(arrays, scheme, "", layer.num_heads, dropout=_rate(layer.attention.dropout))


def _make_book(backend: BackendName, kind: str, config: Config, weights: dict[str, np.ndarray]) -> Any:
    """Make a layer of `mha.d2l` with these canonical weights."""
    D, H = config.num_hiddens, config.num_heads
    width = D / H if D % H else D // H
    require(kind, config, {"key_dim": width, "value_dim": width, "pooling": "dot", "dtype": "float32"})
    sizes = config.key_size, config.query_size, config.value_size, D, H
    module, book = dispatch.load(backend), importlib.import_module(f"mha.d2l.{backend}")
    with module.context(config.dtype):
        layer = module_of(backend).allocate(book.MultiHeadAttention(*sizes, config.dropout, config.bias))
        return module.set_weights(layer, weights)


def _rate(dropout: Any) -> float:
    """Return the probability of dropout, which each framework stores under another name."""
    return next((getattr(dropout, name) for name in ("p", "rate", "_rate") if hasattr(dropout, name)), dropout)


# For the backends


def select_options(function: Any, **options: Any) -> dict[str, Any]:
    """Select the options that a function takes: a subclass may lack options of its framework's layer."""
    known = inspect.signature(function).parameters.values()
    everything = any(one.kind is one.VAR_KEYWORD for one in known)
    return options if everything else {name: options[name] for name in options if name in {one.name for one in known}}


def refuse(kind: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError if a layer uses options that mha does not have, and name them; None and False are off."""
    on = [
        f"{name}={reprlib.repr(value)}" for name, value in options.items() if value is not None and value is not False
    ]
    if on:
        raise ValueError(
            f"the {kind} has {', '.join(on)}, which no layer of mha has; only a layer without it can be converted"
        )


def require(kind: str, config: Config, needed: Mapping[str, Any]) -> None:
    """Raise ValueError if a kind of layer cannot have the options of a configuration, and name them."""
    others = [
        f"{name}={getattr(config, name)!r}, expected {value!r}"
        for name, value in (plain(config) | dict(needed)).items()
        if getattr(config, name) != value
    ]
    if others:
        raise ValueError(f"a {kind} cannot be made of a layer with {'; '.join(others)}")
