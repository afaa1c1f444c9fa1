"""What a method of a layer is given: inputs of NumPy or of its framework, checked, and what turns results back."""

from collections.abc import Callable
from typing import Any

from mha import dispatch
from mha.call import inputs
from mha.call.check import check, native, of_output
from mha.call.declaration import Call
from mha.call.taking import call_of


def checked(
    attention: Any, function: str, queries: Any, keys: Any, values: Any, valid_lens: Any, call: Any, **switches: Any
) -> tuple[Any, Call, Callable[[Any], Any]]:
    """The inputs and the checked call, as the backend's arrays; and the function that turns results back.

    attention: an `mha.MultiHeadAttention`; function: the name of the method that was called; call: its keyword
    arguments. Raises TypeError or ValueError if one of them does not fit.
    """
    call = call_of(f"MultiHeadAttention.{function}", valid_lens, call, **switches)
    backend, dtype, layer = attention.backend, attention.config.dtype, attention.layer
    module = dispatch.load(backend)
    queries, keys, values, given = inputs.of_one_framework(backend, dtype, queries, keys, values)
    arrays = [queries, keys, values]
    if given != backend and getattr(layer, "sequence", None) is not None:  # see mha.parallel.parallelize
        raise TypeError(
            "queries is of NumPy, expected tensors: a layer that is split by its sequence takes its own rows"
        )
    with module.context(dtype):
        own = check(dispatch.load(given), layer, queries, keys, values, call)
        if given == backend:
            return arrays, own, _same
        place = module.place(layer)
        taken = {id(X): inputs.taken(module, place, X) for X in arrays}  # an array that comes three times, once
        own = own.mapped(lambda X: inputs.taken(module, place, X))
        return [taken[id(X)] for X in arrays], own, module.to_numpy


def cotangent(attention: Any, X: Any, shape: Any, place: Any) -> Any:
    """A cotangent of an output of this shape, checked, as the backend's own array; raises TypeError or ValueError."""
    backend, config = attention.backend, attention.config
    X, kind = inputs.array(backend, config.dtype, "cotangent", X)
    of_output(dispatch.load(kind), config, place, X, tuple(shape))
    module = dispatch.load(backend)
    with module.context(config.dtype):
        return native(module, place, X)


def _same(X: Any) -> Any:
    return X
