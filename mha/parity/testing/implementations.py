"""Call an implementation: a function by the names of its parameters, a layer in its framework's manner."""

import contextlib
import dataclasses
import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.call import ROWS
from mha.core.options import checks
from mha.core.options.names import BackendName
from mha.layer import MultiHeadAttention, restore
from mha.weights import foreign

# The other parameters by which an implementation may ask for something.
ASKED = ("attention", "cotangent", "state")
# The names of the three inputs, here and in the frameworks' own layers; their order is not the same everywhere.
INPUTS = ({"queries", "query", "q"}, {"keys", "key", "k"}, {"values", "value", "v"})
HIDING = ("valid_lens", "mask", "causal")

Call = dict[str, Any]
Run = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Implementation:
    """Somebody's implementation, and how to call it."""

    name: str  # in messages
    backend: BackendName  # of its arrays
    run: Run  # of a layer, inputs and cotangent in its arrays, and a call in NumPy; returns theirs for `parity.compare`
    attention: MultiHeadAttention | None = None  # the layer that it should equal, if its weights can be read
    takes: tuple[str, ...] = tuple(ROWS)  # the arguments of a call that it takes
    alone: bool = False  # whether it takes one input for all three
    cotangent: bool = True  # whether it takes a cotangent
    empty_rows: bool = True  # whether queries that see no key must give 0
    decodes: bool = False  # whether it has a state, which `run` takes last
    place: Any = None  # where its arrays are made, see `arrays.place` of its backend


def read_implementation(
    given: Any, backend: str | None, weights_known: bool, takes: tuple[str, ...] | None
) -> Implementation:
    """Find out how to call an implementation.

    weights_known: True if the layer that it should equal was given, too; takes: as of `by_name`.
    Raises TypeError or ValueError if there is no way to call it, or if a layer is of another backend.
    """
    found = foreign.layer_kind(given)
    if takes is not None and (isinstance(given, MultiHeadAttention) or (found and found[0])):
        raise ValueError(f"takes is {takes}, expected None: mha knows how to call a {_kind(given)}")
    if isinstance(given, MultiHeadAttention):
        return _ours(given, _same(backend, given.backend))
    if found:
        kind, own = found
        own = _same(backend, own)
        config, weights = foreign.read_layer(given)
        attention = restore(config, weights, own)
        return _of_framework(given, attention) if kind else _of_book(given, attention, takes)
    if not callable(given):
        raise TypeError(
            f"implementation is {checks.brief(given)}, expected a function, or an attention layer: an "
            f"mha.MultiHeadAttention or one of {', '.join(foreign.KINDS)}"
        )
    if not is_layer(given):
        return by_name(given, given, dispatch.backend_name(backend), weights_known, takes)
    if not weights_known:
        inside = foreign.layers_inside(given)
        hint = f"it contains one at {inside[0]}: pass implementation{inside[0]}, or " if inside else "pass "
        raise TypeError(
            f"implementation is a {_kind(given)}, whose weights mha cannot read; {hint}attention= too, a layer of mha "
            "with its weights, such as mha.from_native(state_dict, ...)"
        )
    own = _same(backend, dispatch.backend_of(given) or dispatch.backend_name(backend))
    return dataclasses.replace(by_name(given, method(given), own, True, takes), name=_kind(given))


def is_layer(given: Any) -> bool:
    """Return True for a layer of a framework, False for a function, compiled or not."""
    roots = {base.__module__.partition(".")[0] for base in type(given).__mro__}
    return any(
        method and dispatch.FRAMEWORKS[name].needs[-1] in roots and hasattr(given, method)
        for name, method in dispatch.facts("METHOD").items()
    )


def method(layer: Any) -> Any:
    """Return the method in which a layer of any framework computes; its parameters are those of the layer."""
    return next(getattr(layer, name) for name in ("forward", "call", "__call__") if hasattr(layer, name))


def by_name(
    given: Any, function: Any, backend: BackendName, weights_known: bool, takes: tuple[str, ...] | None
) -> Implementation:
    """Make an implementation that is called by the names of its parameters; function: has these parameters.

    takes: the arguments of a call that its `**kwargs` take, None = all if it has a parameter `attention`, or else none.
    Raises TypeError if the parameters are neither three inputs nor one, besides the known arguments, and TypeError or
    ValueError if these cannot be known.
    """
    name = getattr(given, "__qualname__", None) or _kind(given)
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise TypeError(f"implementation {name} shows no parameters: call it in a function of your own") from error
    inputs = _inputs(name, signature)
    asked = [one for one in ASKED if one in signature.parameters]
    if "attention" not in asked and not weights_known:
        raise TypeError(
            f"implementation {name}{signature} has no parameter `attention`, the layer whose weights it should have: "
            "add one; or pass attention=, a layer that has its weights"
        )
    rest, place = _rest(signature), _place(given, backend)
    taken = _arguments_of(name, signature, inputs, takes)

    def run(
        attention: MultiHeadAttention, arrays: tuple[Any, ...], call: Call, cotangent: Any, state: Any = None
    ) -> Any:
        offered = {"attention": attention, "cotangent": cotangent, "state": state}
        named = dict(zip(inputs, arrays, strict=False)) | {one: offered[one] for one in asked}
        named |= {one: own(backend, value, place) for one, value in call.items()}
        known = {one: named.pop(one) for one in signature.parameters if one in named}
        bound = inspect.BoundArguments(signature, OrderedDict(known | ({rest: named} if rest and named else {})))
        if "arguments by name" in dispatch.FRAMEWORKS[backend].lacks and function is not given:
            bound.apply_defaults()
        with evaluating(given):
            return given(*bound.args, **bound.kwargs)

    alone, decodes = len(inputs) == 1, "state" in asked  # a decoder may give anything for padding
    return Implementation(name, backend, run, None, taken, alone, "cotangent" in asked, not decodes, decodes, place)


def _rest(signature: inspect.Signature) -> str | None:
    """Return the name of the parameter that takes all others by name, such as `kwargs`; None = there is none."""
    return next((one.name for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD), None)


def _arguments_of(
    name: str, signature: inspect.Signature, inputs: list[str], takes: tuple[str, ...] | None
) -> tuple[str, ...]:
    """Return the arguments of a call that an implementation takes; takes: as of `by_name`.

    Most modules of `transformers` accept any argument by name, and use few of them.
    Raises ValueError if `takes` has what it cannot be given, TypeError if nobody says how it hides keys.
    """
    rest, named = _rest(signature), [one for one in ROWS if one in signature.parameters]
    if takes is None and rest and "attention" in signature.parameters:
        return tuple(ROWS)
    if not rest and (refused := [one for one in takes or () if one not in named]):
        raise ValueError(
            f"takes has {', '.join(refused)}, but implementation {name}{signature} has neither a parameter of that "
            "name nor **kwargs"
        )
    if takes is None and not set(HIDING).intersection(named):
        other = next((one.name for one in signature.parameters.values() if _is_mask(one)), None)
        given = ", ".join(one for one in inputs if one != other)
        if other:
            raise TypeError(
                f"implementation {name} hides keys by `{other}`, which each library means in its own way: pass a "
                f"function that makes it of mha's mask, booleans (B, 1 or H, Q, K), True = may attend: "
                f"lambda {given}, mask=None: port({given}, {other}=...); or takes=(), to compare only calls that hide "
                "nothing"
            )
        if rest:
            raise TypeError(
                f"implementation {name}{signature} does not say which arguments of a call its **{rest} take: "
                f'takes=("mask",) if they take the mask, takes=() if they take none of {", ".join(ROWS)}'
            )
    return tuple(one for one in ROWS if one in named or one in (takes or ()))


def _is_mask(parameter: inspect.Parameter) -> bool:
    """Return True for a mask by another name than ours; False for a switch, such as `use_causal_mask=False`."""
    return parameter.name.endswith("mask") and not isinstance(parameter.default, bool)


def _place(given: Any, backend: BackendName) -> Any:
    """Return where the weights of a layer lie; None where the framework moves arrays by itself, and of a function."""
    weights = given.parameters() if backend == "torch" and is_layer(given) else ()
    return next((X.device for X in weights), None)


def own(backend: BackendName, value: Any, place: Any = None) -> Any:
    """Copy a NumPy array into an array of the framework, at this place; anything else is returned unchanged."""
    return dispatch.load(backend).tensor(value.copy(), place) if isinstance(value, np.ndarray) else value


@contextlib.contextmanager
def evaluating(given: Any) -> Iterator[None]:
    """Switch off dropout meanwhile, in modules of PyTorch, which remember whether they train."""
    modules = list(given.modules()) if hasattr(given, "modules") and hasattr(given, "forward") else []
    modes = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def _inputs(name: str, signature: inspect.Signature) -> list[str]:
    """Return the parameters that are queries, keys and values, in this order; or the one that is all of them."""
    known = [one for one in signature.parameters.values() if one.name not in (*ROWS, *ASKED)]
    named = [next((one.name for one in known if one.name in names), "") for names in INPUTS]
    if all(named):
        return named
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [one.name for one in known if one.default is one.empty and one.kind not in variable]
    if len(required) not in (1, 3):
        raise TypeError(
            f"implementation {name}{signature} takes {len(required)} inputs, expected three, queries, keys and values, "
            f"or one for all of them; other parameters must have defaults, or be {', '.join((*ROWS, *ASKED))}"
        )
    return required


def _ours(given: MultiHeadAttention, backend: BackendName) -> Implementation:
    """Make an implementation of a layer of `mha` itself."""

    def run(_: Any, arrays: tuple[Any, ...], call: Call, cotangent: Any) -> Mapping[str, Any]:
        steps, output = given.trace(*arrays, **call), given(*arrays, **call)
        gradients = given.gradients(*arrays, **call, cotangent=cotangent)
        return steps | {"output": output} | {f"gradient.{name}": X for name, X in gradients.items()}

    return Implementation("mha.MultiHeadAttention", backend, run, given, place=_place(given.layer, backend))


def _of_framework(given: Any, attention: MultiHeadAttention) -> Implementation:
    """Make an implementation of a framework's own layer or a subclass; attention: a layer of mha with its weights."""
    backend = attention.backend

    def run(_: Any, arrays: tuple[Any, ...], call: Call, cotangent: Any) -> Mapping[str, Any]:
        padding, pairs = _masks(call, len(arrays[0]), arrays[0].shape[1], arrays[1].shape[1])
        hiding = own(backend, padding), own(backend, pairs), call.get("causal", False)
        with evaluating(given):
            return foreign.attend(given, backend, attention.config, arrays, hiding, cotangent)

    return Implementation(_kind(given), backend, run, attention, HIDING, empty_rows=False)


def _of_book(given: Any, attention: MultiHeadAttention, takes: tuple[str, ...] | None) -> Implementation:
    """Make an implementation of the book's layer, as printed there or of `mha.d2l`, or of the `layer` of mha's."""
    named = by_name(given, method(given), attention.backend, True, takes)
    return dataclasses.replace(named, name=_kind(given), attention=attention, empty_rows=hasattr(given, "config"))


def _masks(call: Call, B: int, Q: int, K: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the keys that are no padding, (B, K), and those that each query sees, (B, 1 or H, Q, K); None = all."""
    lengths, mask = call.get("valid_lens"), call.get("mask")
    padding = None if lengths is None else np.arange(K) < lengths[..., None]  # (B, K) or (B, Q, K)
    pairs = [] if mask is None else [mask[:, None] if mask.ndim == 3 else mask]  # (Q, K), (B, 1, Q, K) or (B, H, Q, K)
    if padding is not None and padding.ndim == 3:
        pairs, padding = [*pairs, padding[:, None]], None
    if not pairs:
        return padding, None
    seen = functools.reduce(np.logical_and, pairs)
    heads = seen.shape[1] if seen.ndim == 4 else 1
    return padding, np.broadcast_to(seen, (B, heads, Q, K))


def _same(asked: str | None, backend: BackendName) -> BackendName:
    """Return the backend of a layer; ValueError if another one is asked for."""
    if asked is not None and dispatch.backend_name(asked) != backend:
        raise ValueError(f"backend is {asked!r}, expected {backend!r}, the backend of the implementation, or None")
    return backend


def _kind(given: Any) -> str:
    """Return the full name of an implementation's class."""
    return f"{type(given).__module__}.{type(given).__qualname__}"
