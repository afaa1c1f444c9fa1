"""NumPy has no attention layer of its own, nor has the book one in NumPy: only our own layer is known here."""

from typing import Any

from mha.weights import native

DENSE = "Dense"  # the class of a printed layer's projections
FIRST = "set its weights"


def is_ready(layer: Any) -> bool:
    """Whether a layer has its weights."""
    return True


def printed(layer: Any) -> tuple[str, dict[str, Any]]:
    """Raises TypeError: the book prints no layer in NumPy."""
    raise TypeError("source is a layer of NumPy's, which the book does not print; pass its arrays by name instead")


def children(module: Any) -> list[tuple[str, Any]]:
    """The parts of a module, each with what is written after the module to have it."""
    parts = getattr(module, "__dict__", {}).items()
    return [(native.part(name), part) for name, part in parts if type(part).__module__.partition(".")[0] == "mha"]
