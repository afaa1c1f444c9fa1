"""Import the names of a package when they are first used (PEP 562), so that importing the package is quick."""

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package, which import its names on first use.

    The names are those that the package imports for type checkers, under `if TYPE_CHECKING:`, so that each is listed
    once; and its own modules. A module from elsewhere, and its own modules, can be imported by the package's name, too.
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

    sys.meta_path.insert(0, _Finder(package, homes))

    def find(name: str) -> Any:
        if home := homes.get(name):
            found = getattr(importlib.__import__(home, fromlist=[name]), name)
            setattr(module, name, found)  # it is not asked for again
            return found
        if not name.startswith("__") and importlib.util.find_spec(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted({*vars(module), *homes})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules that lie elsewhere, such as `mha.plot`, which is `mha.learn.plot`: one module with two names."""

    def __init__(self, package: str, homes: dict[str, str]) -> None:
        self.package, self.homes = package, homes

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module that a name stands for; None if the package hands on none of that name."""
        package, _, name = fullname.partition(f"{self.package}.")
        home = None if package else self.homes.get(name.partition(".")[0])
        if home is None or not self._exists(f"{home}.{name}"):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=f"{home}.{name}")

    @staticmethod
    def _exists(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # of a function in a module
            return False

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The module itself, imported where it lies."""
        module = importlib.import_module(str(spec.origin))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module as it was: the import has given it the other name's description.

        What it has imported itself is known by both names, too; a function may have taken its module's name since.
        """
        alias, module.__spec__ = module.__spec__.name, module.__spec__.loader_state  # type: ignore[union-attr]
        for name, inside in list(sys.modules.items()):
            if name.startswith(f"{module.__name__}."):
                sys.modules.setdefault(alias + name.removeprefix(module.__name__), inside)
