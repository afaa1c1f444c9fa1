"""Check what the methods of a layer are given, and convert it from NumPy where it is not of the layer's framework."""

from collections.abc import Callable
from typing import Any

from mha.core import dispatch
from mha.core.cache import Cache, check_owner
from mha.core.call import inputs
from mha.core.call.check import check, check_cotangent, to_backend
from mha.core.call.declaration import Call
from mha.core.call.fitting import fit_inputs
from mha.core.call.signatures import call_of
from mha.core.options.names import BackendName


def convert(
    attention: Any, function: str, queries: Any, keys: Any, values: Any, valid_lens: Any, call: Any, **switches: Any
) -> tuple[Any, Call, Callable[[Any], Any]]:
    """Return the inputs and the checked call, as the backend's arrays, and a function that turns results back.

    attention: an `mha.MultiHeadAttention`.
    function: the name of the method that was called.
    call: its keyword arguments.
    switches: other arguments, a cache among them if the function takes one.

    Raises TypeError or ValueError if an argument does not fit.
    """
    if call.get("cache") is not None:
        raise ValueError("cache is given, expected None: gradients are of one call with all tokens, without a cache")
    call = call_of(f"MultiHeadAttention.{function}", valid_lens, call, **switches)
    backend, dtype, layer = attention.backend, attention.config.dtype, attention.layer
    module = dispatch.load(backend)
    arrays, given = own_inputs(attention, queries, keys, values, call.cache)
    queries, keys, values = arrays
    with module.context(dtype):
        own = check(module, layer, queries, keys, values, call)
    return arrays, own, (lambda X: X) if given == backend else module.to_numpy


def own_inputs(
    attention: Any, queries: Any, keys: Any, values: Any, cache: Any = None
) -> tuple[list[Any], BackendName]:
    """Return queries, keys and values as arrays that the layer takes, and the backend that they were of.

    Those of NumPy are checked before they are turned, which may change their dtype. A cache is of the layer's backend
    whatever the inputs are. Raises TypeError or ValueError if one does not fit.
    """
    backend, config, layer = attention.backend, attention.config, attention.layer
    module, given_inputs = dispatch.load(backend), (queries, keys, values)
    if isinstance(cache, Cache):
        check_owner(cache, layer)
        if cache.backend != (backend if dispatch.FRAMEWORKS[backend].arrays else "numpy"):
            raise ValueError(f"cache is of {cache.backend}, expected {backend} as the layer: call cache.to")
    if cache is not None:  # beside a frozen one there are no keys and values: the queries stand in for them
        keys, values = (queries if X is None else X for X in (keys, values))
    *arrays, given = inputs.of_one_framework(backend, config.dtype, queries, keys, values)
    if given != backend:
        if cache is None and getattr(layer, "sequence", None) is not None:  # see mha.parallel.parallelize
            raise TypeError(
                "queries is of NumPy, expected tensors: a layer that is split by its sequence takes its own rows"
            )
        if cache is None:
            fit_inputs(dispatch.load(given), config, None, *arrays)
        with module.context(config.dtype):
            place = module.place(layer)
            turned = {id(X): inputs.to_layer(module, place, X) for X in arrays}  # one that comes three times, once
        arrays = [turned[id(X)] for X in arrays]
    return [None if X is None else own for X, own in zip(given_inputs, arrays, strict=True)], given


def check_cotangent_of(attention: Any, X: Any, shape: Any, place: Any) -> Any:
    """Check a cotangent of an output of this shape; return it as the backend's own array."""
    backend, config = attention.backend, attention.config
    X, kind = inputs.array_and_backend(backend, config.dtype, "cotangent", X)
    check_cotangent(dispatch.load(kind), config, place, X, tuple(shape))
    module = dispatch.load(backend)
    with module.context(config.dtype):
        return to_backend(module, place, X)
