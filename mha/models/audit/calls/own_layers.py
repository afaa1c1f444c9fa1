"""Read calls of a framework's own attention layer: its arguments, and those that a derived class adds.

An argument that is not read is never ignored: such a call counts as not known.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.cache import Cache
from mha.core.cache.slots import ARRAYS
from mha.core.call import ROWS
from mha.layer import MultiHeadAttention
from mha.models.audit.layers.attention_layer import RecordedModule
from mha.weights import foreign

NAMES = {
    "queries": ("query", "inputs_q"),
    "keys": ("key", "inputs_k", "key_value_states", "encoder_hidden_states"),
    "values": ("value", "inputs_v"),
}
INPUTS = {"inputs_kv", *NAMES, *(name for names in NAMES.values() for name in names)}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments that are read of a layer's call, and idle ones, which change nothing."""

    read: tuple[str, ...]
    idle: tuple[str, ...] = ()


OURS = Arguments((*NAMES, *ROWS, "cache"), ("training", "return_weights"))  # of our layers, and of the book's


def cache_for(attention: MultiHeadAttention, said: Any) -> Cache | None:
    """Return the cache of a call, from what `OwnLayers.leave` returned for it; None if it had none.

    Raises TypeError or ValueError if it does not fit the layer.
    """
    if said is None or "frozen" not in said:
        return None if said is None else Cache.from_native(said, attention)
    return Cache(attention.config, [np.asarray(said[name]) for name in ARRAYS], bool(said["frozen"]))


def kind_in(module: Any, calls: Mapping[Any, Arguments]) -> Any:
    """Return the framework's class that a module is of, or derives from; None if it is no such layer."""
    return next((kind for kind in type(module).__mro__ if kind in calls), None)


def require_readable(module: Any, given: Mapping[str, Any], known: Arguments) -> None:
    """Raise ValueError if an argument is not read, and does not mean leaving it out."""
    backend: Any = dispatch.backend_of(module)
    call = getattr(module, dispatch.facts("METHOD")[backend])
    parameters = inspect.signature(call).parameters
    for argument, X in given.items():
        if argument in known.read or argument in known.idle or argument in NAMES or X is None:
            continue
        default = parameters[argument].default if argument in parameters else None
        plain = isinstance(X, (bool, int, float, str)) and type(X) is type(default) and default == X
        if not (plain or X is default or (X is False and default in (None, inspect.Parameter.empty))):
            raise ValueError(f"argument {argument} of {type(module).__name__} is not read")


class OwnLayers:
    """The calls of frameworks' own layers that have begun; adapter: of their framework."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self.begun: dict[str, tuple[Any, dict[str, Any]]] = {}
        self.based: dict[int, dict[str, Any]] = {}

    def enter(self, path: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Take the arguments of a call, and copy a cache of ours, which the call may change."""
        given = self.adapter.arguments(module, args, kwargs)
        self.begun[path] = module, given | {name: copy_cache(X) for name, X in given.items() if isinstance(X, Cache)}
        self.based.pop(id(module), None)

    def inner(self, module: Any, given: dict[str, Any]) -> None:
        """Take the arguments with which the framework's own class runs."""
        self.based.setdefault(id(module), given)

    def leave(self, path: str, output: Any, is_user_layer: bool = False) -> tuple[dict[str, Any], Any]:
        """Return a call by our names, and a function from our output (B, Q, D) to all that the layer returns.

        is_user_layer: whether layers= says what the layer computes. Raises KeyError, TypeError or ValueError if it is
        not known, as where a class computes something else.
        """
        module, given = self.begun.pop(path)
        calls = getattr(self.adapter, "CALLS", {})
        name, kind = type(module).__name__, kind_in(module, calls)
        if (base := self.based.pop(id(module), None)) is not None:
            given = add_base_arguments(name, given, base)
        elif kind is not None and not is_user_layer:
            ran = "another one" if type(module) is kind else f"that of {name}"
            raise ValueError(
                f"the call of {kind.__name__} did not run, but {ran}, which may compute something else; say what with "
                "layers="
            )
        given = name_inputs(given)
        if isinstance(module, RecordedModule):  # whose call was read when it was recorded
            if "problem" in given:
                raise ValueError(given["problem"])
            return given, None
        result, *rest = output if isinstance(output, tuple) else (output,)
        if kind is None:
            found = read_our_call(module, given)
        else:
            require_readable(module, given, calls[kind])
            found = self.adapter.attention(module, given)
        tokens_first, found["output"] = found.pop("tokens_first", False), result
        if tokens_first:
            found |= {ours: found[ours].swapaxes(0, 1) for ours in (*NAMES, "output")}

        def back(X: np.ndarray) -> Any:
            X = self.adapter.alike(X.swapaxes(0, 1) if tokens_first else X, result)
            return (X, *rest) if isinstance(output, tuple) else X

        return found, back


def read_our_call(module: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call of our layer or the book's by our names; of any other module its inputs."""
    if foreign.layer_kind(module) is None:
        return {name: given[name] for name in NAMES if name in given}
    require_readable(module, given, OURS)
    cache = given.get("cache")
    if isinstance(cache, Exception):
        raise ValueError(f"its cache cannot be read: {cache}") from cache
    if isinstance(cache, Cache):
        return dict(given) | {"cache": dict(zip(ARRAYS, cache.arrays(), strict=True)) | {"frozen": cache.frozen}}
    return dict(given)


def copy_cache(cache: Cache) -> Any:
    """Copy a cache; return the error if that fails, for whoever reads the copy."""
    try:
        return cache.to("numpy")
    except (TypeError, ValueError) as error:
        return error


def add_base_arguments(name: str, given: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of a derived class, of this name, with those that it passes to its base.

    The user's own count more, so that a mistake in the class is seen; ValueError where two arrays of one name differ.
    """
    handed = {id(X) for X in base.values() if is_array(X)}
    own = {key: X for key, X in given.items() if key in base or id(X) not in handed}
    for key, X in own.items():
        arrays = is_array(X) and is_array(base.get(key))
        if key not in INPUTS and arrays and X is not base[key]:
            raise ValueError(f"{name} calls the class that it derives from with another {key} than it was given")
    return own | dict(base) | {key: X for key, X in own.items() if X is not None and X is not False}


def name_inputs(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call with queries, keys and values under our names."""
    found = given | {
        ours: given[name] for ours, names in NAMES.items() for name in names if given.get(name) is not None
    }
    if "queries" not in found and (first := next(filter(is_array, given.values()), None)) is not None:
        found["queries"] = first
    if "queries" in found:
        found.setdefault("keys", found["queries"])
        found.setdefault("values", found["keys"])
    return found


def is_array(X: Any) -> bool:
    """Whether an object is an array of a framework."""
    return dispatch.backend_of(X) is not None and hasattr(X, "shape") and hasattr(X, "dtype")
