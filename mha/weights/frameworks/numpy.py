"""NumPy has no attention layer of its own, nor has the book one in NumPy: only our own layer is known here."""

from typing import Any

from mha.weights import foreign


def children(module: Any) -> list[tuple[str, Any]]:
    """Return the parts of a module, each with the text to write after the module for it."""
    parts = getattr(module, "__dict__", {}).items()
    return [
        (foreign.access_text(name), part) for name, part in parts if type(part).__module__.partition(".")[0] == "mha"
    ]
