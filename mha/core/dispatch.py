"""Choose a backend: by argument, by MHA_BACKEND, or by an array's type. A framework is imported when it is used."""

import dataclasses
import functools
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from mha.core.options import checks
from mha.core.options.names import BackendName, FloatName


@dataclasses.dataclass(frozen=True)
class Framework:
    """The facts of a backend that the core needs; `facts.py` in the backend's folder has these and others as data.

    needs: the modules that the backend imports, the framework first, the module of its layers last.
    aliases: other names that people write.
    arrays: the packages in which the types of its arrays and layers are defined; () = none: it takes NumPy's arrays.
    dtypes: those of its layers.
    packages: the packages for `pip install`, as in pyproject.toml; last: the command to run after it, or "".
    lacks: the abilities of `LACKING` that it does not have, each with the reason.
    """

    needs: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()
    dtypes: tuple[FloatName, ...] = checks.FLOATS
    packages: tuple[str, ...] = ()
    last: str = ""
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)


# The chapters of every lesson, in the order of the book.
CHAPTERS = ("hiding", "pooling", "heads", "layer", "gradients", "weights", "slots", "cache")
# What a framework may lack.
LACKING = (
    "arrays of its own", "sparse arrays", "arrays that change", "64 bits everywhere", "layers that change",
    "arguments by name", "automatic differentiation", "a compiler", "a compiler of calls", "a state of training",
    "a state of precision", "kept gradients", "frozen weights", "a section of the book",
    "a section of the next edition", "models of its own",
)  # fmt: skip
FOLDER = Path(importlib.util.find_spec("mha.backends").submodule_search_locations[0])  # type: ignore
PLOTS = ("matplotlib>=3.8",)  # draws the pictures
HDF5 = ("h5py>=3.8",)  # reads files of Keras
NOTEBOOKS = ("nbformat>=5.10",)  # reads notebooks that are handed in
WRITE = ("libcst>=1.5", "ruff>=0.12")  # read the lesson and form a file of its own


def _read_facts(name: BackendName) -> dict[str, Any]:
    """Read the facts of a backend from its file; to import the folder would import the framework."""
    spec: Any = importlib.util.spec_from_file_location(f"mha.backends.{name}.facts", FOLDER / name / "facts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {fact: value for fact, value in vars(module).items() if fact.isupper()}


# A new backend is a folder in `backends/` and its name in `BackendName`; one whose folder is gone counts for nothing.
FACTS: dict[BackendName, dict[str, Any]] = {
    name: _read_facts(name) for name in get_args(BackendName) if (FOLDER / name / "facts.py").is_file()
}
FRAMEWORKS: dict[BackendName, Framework] = {
    name: Framework(**{key: facts[key.upper()] for key in Framework.__match_args__ if key.upper() in facts})
    for name, facts in FACTS.items()
}
ARRAY_PACKAGES = {package: name for name, known in FRAMEWORKS.items() for package in known.arrays}
ALIASES = {alias: name for name, known in FRAMEWORKS.items() for alias in known.aliases}


@dataclasses.dataclass(frozen=True)
class Backend:
    """One backend, as `mha.backends()` reports it.

    name: as in MHA_BACKEND.
    installed: whether its framework is installed.
    version: of the framework; None if it is not installed.
    problem: None, or the packages that are missing and the command that installs them.
    """

    name: BackendName
    installed: bool
    version: str | None
    problem: str | None


def backends() -> dict[BackendName, Backend]:
    """List every backend: whether it is installed, its version, or why it cannot be used. Imports no framework.

    Returns a dict of `Backend` by name, NumPy first.
    """
    return {name: _describe(name) for name in FRAMEWORKS}


def backend_name(backend: str | None = None) -> BackendName:
    """The name of the backend to use: the argument, else the environment variable MHA_BACKEND, else "numpy".

    Raises TypeError or ValueError with the known names if it is none of them.
    """
    if backend is None and os.environ.get("MHA_BACKEND"):
        return parse_backend("MHA_BACKEND", os.environ["MHA_BACKEND"])
    return parse_backend("backend", "numpy" if backend is None else backend)


def parse_backend(argument: str, value: object, known: Collection[BackendName] = tuple(FRAMEWORKS)) -> BackendName:
    """The backend that an argument names, one of those that are known.

    Raises TypeError or ValueError, listing these, if it is none of them.
    """
    return checks.choice(argument, value, tuple(known), ALIASES)


def facts(fact: str, default: Any = None) -> dict[BackendName, Any]:
    """Return one fact of every backend, from its `facts.py`, or the default; no framework is imported."""
    return {name: known.get(fact, default) for name, known in FACTS.items()}


def load(name: BackendName) -> Any:
    """Import a backend's module, and with it the framework.

    Raises ModuleNotFoundError, which says what to install, if the framework is missing; a framework that is there but
    broken raises its own error.
    """
    loaded = sys.modules.get(f"mha.backends.{name}")
    if loaded is not None and not getattr(loaded.__spec__, "_initializing", False):  # by another thread, at this moment
        return loaded
    if missing := _missing_modules(name):
        raise ModuleNotFoundError(f"backend {name!r} needs {' and '.join(missing)}: {install(name)}", name=missing[0])
    return importlib.import_module(f"mha.backends.{name}")


@functools.cache
def lesson(name: BackendName) -> types.SimpleNamespace:
    """Return all functions and classes of a backend's lesson in one namespace; none is from the engine."""
    load(name)
    chapters = [importlib.import_module(f"mha.backends.{name}.{chapter}") for chapter in CHAPTERS]
    return types.SimpleNamespace(**{key: X for chapter in chapters for key, X in vars(chapter).items()})


def is_readable(readable: bool | None = None) -> bool:
    """True if the lesson itself shall run: the argument, else the environment variable MHA_READABLE, else False.

    Raises TypeError or ValueError if the argument is no boolean, or if the variable is neither 0 nor 1.
    """
    if readable is None:
        return checks.choice("MHA_READABLE", os.environ.get("MHA_READABLE") or "0", ("0", "1")) == "1"
    return checks.flag("readable", readable)


def install(name: BackendName) -> str:
    """The command that installs what a backend needs; it works wherever `mha` was installed from."""
    known = FRAMEWORKS[name]
    return " && ".join(filter(None, [pip_for(known.packages), known.last]))


def pip_for(packages: Sequence[str]) -> str:
    """The command that installs packages, with quotes that every shell understands."""
    return " ".join(["pip install", *(f'"{package}"' for package in packages)])


def backends_with(files: str) -> tuple[BackendName, ...]:
    """List the backends that have a file of `mha` such as "models/frameworks/*.py", where * is the backend's name."""
    room = Path(__file__).parents[1]
    return tuple(name for name in FRAMEWORKS if (room / files.replace("*", name)).is_file())


def backend_of(array: Any) -> BackendName | None:
    """The backend whose framework an array belongs to, found from its type; None if it is of none of them."""
    kind = type(array)
    root = kind.__module__.partition(".")[0]
    if root in ARRAY_PACKAGES:  # as most are
        return ARRAY_PACKAGES[root]
    roots = (base.__module__.partition(".")[0] for base in kind.__mro__)
    return next((ARRAY_PACKAGES[root] for root in roots if root in ARRAY_PACKAGES), None)


def backend_of_all(*arrays: Any) -> BackendName | None:
    """The backend whose framework all of these arrays belong to; None if there is none, or more than one."""
    found = None
    for array in arrays:
        backend = ARRAY_PACKAGES.get(type(array).__module__.partition(".")[0]) or backend_of(array)
        if backend is None or found not in (None, backend):
            return None
        found = backend
    return found


def module_of(array: Any, name: str) -> Any:
    """The module of the backend that an array belongs to; `name` is the argument's name, for the error.

    Raises TypeError if the argument is no dense array of a known framework.
    """
    backend = backend_of(array)
    module = backend and load(backend)
    if not module or not module.is_own(array):
        raise TypeError(
            f"{name} is a {type(array).__name__}, expected an array of {', '.join(FRAMEWORKS)}; convert it with "
            "mha.tensor"
        )
    return module


def _missing_modules(name: BackendName) -> list[str]:
    return [module for module in FRAMEWORKS[name].needs if importlib.util.find_spec(module) is None]


def _describe(name: BackendName) -> Backend:
    if missing := _missing_modules(name):
        return Backend(name, False, None, f"{' and '.join(missing)} not installed: {install(name)}")
    return Backend(name, True, version(FRAMEWORKS[name].needs[0]), None)


def version(module: str) -> str | None:
    """The version of the package that provides a module."""
    from importlib import metadata  # here, since it takes longer than the rest of `import mha`

    package = next(iter(_packages_by_module().get(module, ())), None)
    return package and metadata.version(package)


@functools.cache
def _packages_by_module() -> Mapping[str, list[str]]:
    """Map each module to the installed packages that provide it; the search takes a while, and is done once."""
    from importlib import metadata

    return metadata.packages_distributions()
