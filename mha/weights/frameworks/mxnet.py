"""Convert the book's layer in MXNet: Gluon has no attention layer of its own."""

import weakref
from typing import Any

from mha.weights import foreign, schemes

DENSE = ("Dense",)  # the class of the book's projections
FIRST = "call `initialize()`, and then the layer once"


def is_ready(layer: Any) -> bool:
    """Whether a layer of the book has its weights."""
    try:
        return all(X.data() is not None for X in layer.collect_params().values())
    except RuntimeError:
        return False


def book_arrays(layer: Any) -> tuple[str, dict[str, Any]]:
    """Return the naming scheme and the arrays of a layer as the book prints it."""
    foreign.refuse("layer", {f"activation of {name}": getattr(layer, name).act for name in schemes.PROJECTIONS})
    arrays = foreign.arrays_by_part(layer, "weight", layer.collect_params().values())
    return "d2l", {name: X.data() for name, X in arrays.items()}


def allocate(layer: Any) -> Any:
    """Return a layer of the book with room for its weights."""
    layer.initialize()
    return layer


def children(module: Any) -> list[tuple[str, Any]]:
    """Return the parts of a module, each with the text to write after the module for it."""
    parts = getattr(module, "_children", {}).items()
    return [(foreign.access_text(name), part() if isinstance(part, weakref.ref) else part) for name, part in parts]
