"""Convert the frameworks' own layers and the book's to ours and back, option by option and weight by weight.

An option that the other side does not have is refused by name, never dropped. `commands/native.py` in each backend's
folder knows the layers of its framework, and is imported when it is used:
    take(layer) -> the configuration and the canonical weights of the framework's own layer
    make(kind, config, weights) -> the framework's own layer with these canonical weights
    is_ready(layer), FIRST -> True if a layer of the book has its weights; the call that gives them to it
    printed(layer) -> the naming scheme and the arrays of a layer as the book prints it
    begun(layer) -> a layer of the book with room for its weights
    attend(layer, queries, keys, values, padding, pairs, causal, cotangent) -> the results of a call of the framework's
        own layer: output, weights and gradients of the inputs by our names; the naming scheme of its own arrays, and
        the gradients of these; see `attend` here
    children(module) -> the submodules of any module, each with the text to write after the module: ".attention"
"""

import importlib
import inspect
import reprlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mha import checks, dispatch
from mha.call import known
from mha.config import Config, plain, shapes
from mha.names import BackendName, SchemeName
from mha.weights import sayable, schemes

# The kinds of layers, by the names that import them, and the backend of each.
BOOK = {f"mha.d2l.{name}.MultiHeadAttention": name for name in dispatch.having("commands/book.py")}
KINDS = {kind: name for name, framework in dispatch.FRAMEWORKS.items() for kind in framework.layers} | BOOK
OWN = {
    f"mha.backends.{name}.{file}.MultiHeadAttention": name
    for name in dispatch.FRAMEWORKS
    for file in ("layer", "engine.layer")
}

GROUPED = "keras.layers.GroupQueryAttention"  # of two kinds of Keras, the one for shared heads of keys
LISTED = 3  # so many layers of a model are shown, if it has more

Layer = tuple[Config, dict[str, np.ndarray]]


def read(source: Any, scheme: str, prefix: str | None, num_heads: int | None, options: Mapping[str, Any]) -> Layer:
    """The configuration and canonical weights of a layer of any kind, or of named arrays; see `mha.from_native`."""
    sayable(options)
    if isinstance(source, Mapping):
        arrays = named(source)
        chosen, prefix = schemes.choose(arrays, scheme, prefix)
        layer = canonical(arrays, chosen, prefix, num_heads, options=options)
        schemes.ask(chosen, options)
        return layer
    kind, backend = _kind(source)
    for name, value, none in (("scheme", scheme, "auto"), ("prefix", prefix, None)):
        if value != none:
            raise ValueError(f"{name} is {value!r}, expected {none!r} for a layer: it chooses among named arrays")
    if options:
        raise ValueError(f"{', '.join(options)} came with a layer, which has its own configuration; leave it out")
    config, weights = _book(backend, source) if kind is None else _native(backend).take(source)
    if num_heads is not None and checks.size("num_heads", num_heads) != config.num_heads:
        raise ValueError(f"num_heads is {num_heads}, expected {config.num_heads} as the layer has, or None")
    return config, weights


def kind_of(source: Any) -> tuple[str | None, BackendName] | None:
    """The kind of an attention layer (None for the book's and ours) and its backend; None if it is no attention layer.

    A subclass counts as its base class, although it may compute something else.
    """
    known = (_of_class(each) for each in type(source).__mro__)
    return next(filter(None, known), None) or _known(source)


def taken(source: Any) -> Layer:
    """The configuration and canonical weights of a layer of a known kind, or of a subclass of one."""
    kind, backend = kind_of(source) or _kind(source)
    return _book(backend, source) if kind is None else _native(backend).take(source)


def attend(
    layer: Any, backend: BackendName, config: Config, inputs: Any, hiding: Any, cotangent: Any
) -> dict[str, Any]:
    """Call a framework's own layer in its own manner; returns output, weights and gradients by our names.

    inputs: queries, keys, values; hiding: padding (B, K) and pairs (B, 1 or H, Q, K), both True = may attend or None,
    and causal, True or False; cotangent: (B, Q, D). All arrays are the framework's.
    """
    found, scheme, gradients = _native(backend).attend(layer, *inputs, *hiding, cotangent)
    own = {name: _numpy(name, X) for name, X in gradients.items()}
    return found | {f"gradient.{name}": X for name, X in schemes.unpacked(own, scheme, config).items()}


def make(kind: str | type, config: Config, weights: dict[str, np.ndarray]) -> Any:
    """A layer of another kind with these canonical weights; see `MultiHeadAttention.to_native`."""
    grouped = config.num_key_value_heads < config.num_heads
    kind = checks.choice("kind", _named_in_full(kind, grouped), tuple(KINDS))
    backend = KINDS[kind]
    dispatch.load(backend)  # if the framework is missing, this says how to install it
    return _make_book(backend, kind, config, weights) if kind in BOOK else _native(backend).make(kind, config, weights)


# Layers of Dive into Deep Learning: of `mha.d2l`, as the book prints them, and `attention.layer` itself


def _book(backend: BackendName, layer: Any) -> Layer:
    """The configuration and canonical weights of a layer of the book, or of ours."""
    module, native = dispatch.load(backend), _native(backend)
    config = getattr(layer, "config", None)
    dtype = config.dtype if isinstance(config, Config) else "float32"
    with module.context(dtype):
        if not native.is_ready(layer):
            raise ValueError(f"the layer has no weights yet, expected a layer with weights: first {native.FIRST}")
        if not isinstance(config, Config):
            return _printed(native, layer)
        weights = checks.weights(shapes(config), dtype, module.get_weights(layer))
    for name, array in weights.items():
        checks.finite(name, array)
    return config, weights


def _printed(native: Any, layer: Any) -> Layer:
    """The configuration and canonical weights of a layer that the book prints."""
    for name, kind in ({"attention": "DotProductAttention"} | dict.fromkeys(schemes.PROJECTIONS, native.DENSE)).items():
        if (came := type(getattr(layer, name)).__name__) != kind:
            raise TypeError(f"{name} of the layer is a {came}, expected a {kind} as in the book")
    scheme, arrays = native.printed(layer)
    return canonical(arrays, scheme, "", layer.num_heads, _rate(layer.attention.dropout))


def _make_book(backend: BackendName, kind: str, config: Config, weights: dict[str, np.ndarray]) -> Any:
    """A layer of `mha.d2l` with these canonical weights."""
    D, H = config.num_hiddens, config.num_heads
    width = D / H if D % H else D // H
    require(kind, config, {"key_dim": width, "value_dim": width, "pooling": "dot", "dtype": "float32"})
    sizes = config.key_size, config.query_size, config.value_size, D, H
    module, book = dispatch.load(backend), importlib.import_module(f"mha.d2l.{backend}")
    with module.context(config.dtype):
        layer = _native(backend).begun(book.MultiHeadAttention(*sizes, config.dropout, config.bias))
        return module.set_weights(layer, weights)


def _rate(dropout: Any) -> float:
    """The probability of dropout, which each framework stores under another name."""
    return next((getattr(dropout, name) for name in ("p", "rate", "_rate") if hasattr(dropout, name)), dropout)


# For the backends


def asked(function: Any, **options: Any) -> dict[str, Any]:
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


def canonical(
    arrays: Mapping[str, Any],
    scheme: SchemeName,
    prefix: str,
    num_heads: int | None,
    dropout: float = 0.0,
    options: Mapping[str, Any] | None = None,
) -> Layer:
    """The configuration and canonical weights of the layer with this prefix; its arrays are of any framework."""
    own = {name: _numpy(name, arrays[name]) for name in schemes.wanted(arrays, scheme, prefix)}
    return schemes.to_canonical(own, scheme, prefix, num_heads, dropout, options)


def named(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """The leaves of nested mappings by their path, joined by dots; a lone outer "params" is left out of the path."""
    if set(tree) == {"params"} and isinstance(tree["params"], Mapping):
        tree = tree["params"]
    arrays: dict[str, Any] = {}
    for path, array in _leaves(tree):
        name = ".".join(path).replace("/", ".")
        if name in arrays:
            raise ValueError(f"two arrays are called {name}, expected different names")
        arrays[name] = array
    return arrays


def named_parts(layer: Any, kernel: str, parameters: Any) -> dict[str, Any]:
    """The arrays of a layer: of projections by our names, all others by its own; kernel: its name for a kernel."""
    parts = {name: getattr(layer, name) for name in schemes.PROJECTIONS}
    own = {f"{name}.{kind}": getattr(part, kind) for name, part in parts.items() for kind in (kernel, "bias")}
    own = {name: X for name, X in own.items() if X is not None}
    return own | {X.name: X for X in parameters if not any(X is other for other in own.values())}


def part(name: Any) -> str:
    """The text to write after a module for its submodule of this name: ".attention", or "[0]" in a list."""
    return f"[{name}]" if str(name).isdigit() else f".{name}"


def _leaves(tree: Mapping[Any, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in tree.items():
        here = (*path, *(map(str, name) if isinstance(name, tuple) else [str(name)]))
        if isinstance(value, Mapping):
            yield from _leaves(value, here)
        else:
            yield here, value


def _numpy(name: str, value: Any) -> np.ndarray:
    """Convert an array of any framework, or one of Flax's boxes around it, to a NumPy array."""
    if type(value).__module__.startswith("flax."):
        value = value.unbox() if hasattr(value, "unbox") else value.get_value()
    array = value if dispatch.backend_of(value) is None else known(name, value)
    if not checks.is_numpy(array):
        raise TypeError(f"{name} is a {type(value).__name__}, expected a dense array whose numbers are known by now")
    return array


def _kind(source: Any) -> tuple[str | None, BackendName]:
    """The kind of a layer (None for the book's and ours) and its backend; TypeError if it is no attention layer."""
    if known := _known(source):
        return known
    wanted = f"expected named arrays, the layer of an mha.MultiHeadAttention, or exactly one of {', '.join(KINDS)}"
    came = f"{type(source).__module__}.{type(source).__qualname__}"
    if not (found := inside(source)):
        raise TypeError(
            f"source is a {came}, {wanted}. For a whole model, or for a subclass, pass the named arrays instead, such "
            "as its state dict, with scheme and prefix"
        )
    if len(found) == 1:
        raise TypeError(f"source is a {came}, {wanted}; it contains one at {found[0]}: pass source{found[0]}")
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    raise TypeError(
        f"source is a {came}, {wanted}; it contains {len(found)}, at {', '.join(found[:LISTED])}{more}: pass one of "
        f"them, as source{found[0]}"
    )


def inside(module: Any) -> list[str]:
    """The text to write after a module for each attention layer in it."""
    children = _native(dispatch.backend_of(module) or "numpy").children
    found, seen, left = [], {id(module)}, [("", module)]
    for path, parent in left:  # the loop appends to it
        for name, part in children(parent):
            if id(part) not in seen:
                seen.add(id(part))
                if _known(part):
                    found.append(path + name)
                else:
                    left.append((path + name, part))
    return found


def _named_in_full(kind: Any, grouped: bool = False) -> Any:
    """The full name of a kind that is given as a class or as the start of its name; anything else stays as it is.

    grouped: True if heads of keys are shared, which decides between two kinds of Keras.
    """
    if isinstance(kind, type):
        return next((name for name in KINDS if _class(name) is kind), kind)
    if not isinstance(kind, str) or kind in KINDS:
        return kind
    meant = [name for name in KINDS if name.startswith(f"{kind}.") or (KINDS[name] == kind and name not in BOOK)]
    if GROUPED in meant and len(meant) > 1:
        meant = [name for name in meant if (name == GROUPED) == grouped]
    if len(meant) > 1:
        raise ValueError(f"kind is {kind!r}, which fits several kinds, expected one of {', '.join(meant)}")
    return meant[0] if meant else kind


def _class(kind: str) -> type | None:
    """The class of a kind; None if its module is not imported."""
    place, _, name = kind.rpartition(".")
    return getattr(sys.modules.get(place), name, None)


def _known(source: Any) -> tuple[str | None, BackendName] | None:
    """The kind of a layer (None for the book's and ours) and its backend; None if it is no attention layer.

    The class must be exactly the kind's: a subclass may compute something else.
    """
    if found := _of_class(type(source)):
        return found
    # A class that the book prints is in the module where its reader defined it. Flax shows submodules only when bound.
    unbound = getattr(source, "scope", "") is None
    parts = ("num_heads",) if unbound else ("num_heads", "attention", *schemes.PROJECTIONS)
    if type(source).__name__ == "MultiHeadAttention" and all(hasattr(source, part) for part in parts):
        return None, dispatch.backend_of(source) or "numpy"
    return None


def _of_class(known: type) -> tuple[str | None, BackendName] | None:
    """The kind and the backend of exactly this class, as `_known` returns them."""
    return next(
        ((kind if kind in KINDS.keys() - BOOK else None, backend)
         for kind, backend in (KINDS | OWN).items() if known is _class(kind)), None,
    )  # fmt: skip


def _native(backend: BackendName) -> Any:
    """The module in which a backend handles the layers of its framework."""
    return importlib.import_module(f"mha.backends.{backend}.commands.native")
