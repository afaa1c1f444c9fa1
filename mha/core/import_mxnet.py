"""Let MXNet be imported on a NumPy that is too new for it, without changing NumPy for anybody else.

MXNet is retired. It uses names that NumPy has since removed: some in 1.24, most in 2.0. Once `mha` is imported, MXNet's
own modules get another `import` statement: there, `import numpy` gives a stand-in, which is NumPy plus the removed
names. Only modules named `mxnet` or `mxnet.*` see it.
"""

import builtins
import importlib.abc
import importlib.machinery
import re
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

# Names that NumPy has removed without a successor, which MXNet imports but attention never calls.
_GONE = ("msort", "mirr", "npv", "pmt", "ppmt", "pv", "rate")


def enable() -> None:
    """Make `import mxnet` work in this process. It does not import NumPy, which MXNet will do."""
    if not any(isinstance(finder, _MXNetFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MXNetFinder())


def is_needed() -> bool:
    """True if this NumPy lacks names that MXNet uses."""
    import numpy

    return numpy.lib.NumpyVersion(numpy.__version__) >= "1.24.0"


class _NumPyForMXNet(types.ModuleType):
    """NumPy with the names that it has removed."""

    def __getattr__(self, name: str) -> Any:
        import numpy

        if hasattr(numpy, name):
            found = getattr(numpy, name)
            setattr(self, name, found)  # MXNet looks up the same few names in every operation
            return found
        if name in _GONE:
            return _stub(name, numpy.__version__)
        successors = _successors(numpy)
        return successors[name] if name in successors else getattr(numpy, name)


def _successors(numpy: Any) -> dict[str, Any]:
    """Map names that NumPy has removed to what replaces them."""
    return {
        "PZERO": 0.0, "NZERO": -0.0, "PINF": numpy.inf, "NINF": -numpy.inf, "Inf": numpy.inf,
        "NAN": numpy.nan, "NaN": numpy.nan,
        "alltrue": numpy.all, "sometrue": numpy.any, "product": numpy.prod, "round_": numpy.round, "in1d": numpy.isin,
        "trapz": getattr(numpy, "trapezoid", None),
        "bool": bool, "int": int, "float": float, "complex": complex, "object": object, "str": str,
    }  # fmt: skip


def _stub(name: str, version: str) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"numpy.{name} was removed from NumPy; this NumPy is {version}")

    return function


class _MXNetFinder(importlib.abc.MetaPathFinder):
    """Finds MXNet's own modules, and no others, and gives each of them the `import` statement below."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "mxnet" or not is_needed():
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _MXNetLoader(spec.loader.name, spec.loader.path)
        return spec


class _MXNetLoader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        own = vars(module)["__builtins__"] = dict(vars(builtins), __import__=_import)
        with warnings.catch_warnings():
            # MXNet compares versions with a module of Python that is deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            super().exec_module(module)
        # Where no function imports it later; some import others at every call.
        if not re.search(rb"[\n:;][ \t]+(import|from) numpy\b", self.get_data(self.path)):
            own["__import__"] = builtins.__import__


def _import(name: str, *arguments: Any, **options: Any) -> types.ModuleType:
    module = builtins.__import__(name, *arguments, **options)
    return _STAND_IN if module is sys.modules.get("numpy") else module


_STAND_IN = _NumPyForMXNet("numpy")
