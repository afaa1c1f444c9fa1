"""Names of a package that are imported when they are first used, as PEP 562 has it, so that an import stays quick."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package, which import what it hands on.

    These are the names that the package imports for type checkers alone, under `if TYPE_CHECKING:`, so that each is
    listed once; and its own modules.
    """
    module = sys.modules[package]
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    homes = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module not in (None, package)
        for alias in node.names
    }

    def find(name: str) -> Any:
        if home := homes.get(name):
            found = getattr(importlib.__import__(home, fromlist=[name]), name)
            setattr(module, name, found)  # it is not asked for again
            return found
        if not name.startswith("__") and importlib.util.find_spec(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted({*vars(module), *homes})
