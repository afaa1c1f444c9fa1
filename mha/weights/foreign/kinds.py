"""Recognise the layers of the frameworks, of the book and of ours, by their classes, and those inside of a module."""

import importlib
import sys
from typing import Any

from mha.core import dispatch
from mha.core.options.names import BackendName
from mha.weights import schemes

# The kinds of layers, by the names that import them, and the backend of each.
BOOK = {f"mha.d2l.{name}.MultiHeadAttention": name for name in dispatch.backends_with("learn/d2l/*.py")}
KINDS = {kind: name for name, kinds in dispatch.facts("LAYERS", ()).items() for kind in kinds} | BOOK
OWN = {
    f"mha.backends.{name}.{file}.MultiHeadAttention": name
    for name in dispatch.FRAMEWORKS
    for file in ("layer", "engine.layer")
}

GROUPED = "keras.layers.GroupQueryAttention"  # of two kinds of Keras, the one for shared heads of keys
LISTED = 3  # so many layers of a model are shown, if it has more


def layer_kind(source: Any) -> tuple[str | None, BackendName] | None:
    """Return the kind of an attention layer (None for the book's and ours) and its backend; None if it is none.

    A subclass counts as its base class, although it may compute something else.
    """
    of_classes = (_of_class(each) for each in type(source).__mro__)
    return next(filter(None, of_classes), None) or exact_kind(source)


def access_text(name: Any) -> str:
    """Return the text to write after a module for its submodule of this name: ".attention", or "[0]" in a list."""
    return f"[{name}]" if str(name).isdigit() else f".{name}"


def require_kind(source: Any) -> tuple[str | None, BackendName]:
    """Return the kind of a layer (None for the book's and ours) and its backend; TypeError if it is none."""
    if exact := exact_kind(source):
        return exact
    wanted = f"expected named arrays, the layer of an mha.MultiHeadAttention, or exactly one of {', '.join(KINDS)}"
    came = f"{type(source).__module__}.{type(source).__qualname__}"
    if not (found := layers_inside(source)):
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


def layers_inside(module: Any) -> list[str]:
    """Return the text to write after a module for each attention layer in it."""
    children = module_of(dispatch.backend_of(module) or "numpy").children
    found, seen, left = [], {id(module)}, [("", module)]
    for path, parent in left:  # the loop appends to it
        for name, part in children(parent):
            if id(part) not in seen:
                seen.add(id(part))
                if exact_kind(part):
                    found.append(path + name)
                else:
                    left.append((path + name, part))
    return found


def full_name(kind: Any, grouped: bool = False) -> Any:
    """Return the full name of a kind that is given as a class or as the start of its name; anything else as it is.

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
    """Return the class of a kind; None if its module is not imported."""
    place, _, name = kind.rpartition(".")
    return getattr(sys.modules.get(place), name, None)


def exact_kind(source: Any) -> tuple[str | None, BackendName] | None:
    """Return the kind of a layer (None for the book's and ours) and its backend; None if it is no attention layer.

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


def _of_class(exact: type) -> tuple[str | None, BackendName] | None:
    """Return the kind and the backend of exactly this class, as `exact_kind` does."""
    return next(
        ((kind if kind in KINDS.keys() - BOOK else None, backend)
         for kind, backend in (KINDS | OWN).items() if exact is _class(kind)), None,
    )  # fmt: skip


def module_of(backend: BackendName) -> Any:
    """Return the module in which a backend handles the layers of its framework."""
    return importlib.import_module(f"mha.weights.frameworks.{backend}")
