"""Which backend: by argument, by MHA_BACKEND, or by an array's own type. A framework is imported only on use."""

import dataclasses
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mha import checks
from mha.names import BackendName, KindName


@dataclasses.dataclass(frozen=True)
class Framework:
    """What has to be known of a backend's framework before it is imported.

    needs: the modules that the backend imports, the framework first.
    arrays: the packages that the types of its arrays and layers come from; () = those of `needs`.
    layers: its own attention layers, which `mha.from_native` and `to_native` know, as they are imported.
    packages: what pip is told to install, as in pyproject.toml; last: the command that follows, or "".
    """

    needs: tuple[str, ...]
    arrays: tuple[str, ...] = ()
    layers: tuple[KindName, ...] = ()
    packages: tuple[str, ...] = ()
    last: str = ""


TORCH: tuple[KindName, ...] = ("torch.nn.MultiheadAttention",)
KERAS: tuple[KindName, ...] = ("keras.layers.MultiHeadAttention", "keras.layers.GroupQueryAttention")
FLAX: tuple[KindName, ...] = (
    "flax.linen.MultiHeadDotProductAttention",
    "flax.linen.MultiHeadAttention",
    "flax.nnx.MultiHeadAttention",
)
# A new backend is a folder in `backends/`, a line here and its names in `mha.names`; a line whose folder is gone counts
# for nothing.
KNOWN: dict[BackendName, Framework] = {
    "numpy": Framework(("numpy",)),
    "torch": Framework(("torch",), layers=TORCH, packages=("torch>=2.4",)),
    "tensorflow": Framework(("tensorflow", "keras"), layers=KERAS, packages=("tensorflow>=2.18", "keras>=3.6")),
    "jax": Framework(("jax", "flax"), ("jax", "jaxlib", "flax"), layers=FLAX, packages=("jax>=0.8", "flax>=0.12")),
    "mxnet": Framework(
        ("mxnet",),
        packages=("requests>=2", "graphviz>=0.8.1", "setuptools>=65"),
        last="pip install --no-deps mxnet==1.9.1",
    ),
}
PLOTS = ("matplotlib>=3.8",)  # what draws pictures
FOLDER = Path(importlib.util.find_spec("mha.backends").submodule_search_locations[0])  # type: ignore
FRAMEWORKS = {name: framework for name, framework in KNOWN.items() if (FOLDER / name).is_dir()}
ARRAY_PACKAGES = {package: name for name, known in FRAMEWORKS.items() for package in known.arrays or known.needs}


@dataclasses.dataclass(frozen=True)
class Backend:
    """One backend, as `mha.backends()` reports it.

    name: as in MHA_BACKEND; installed: whether its framework is there; version: of the framework, None if it is not;
    problem: None, or what is missing and the command that installs it.
    """

    name: BackendName
    installed: bool
    version: str | None
    problem: str | None


def backends() -> dict[BackendName, Backend]:
    """Every backend that exists, whether it is installed, its version, or why not; imports no framework.

    Returns a dict of `Backend` by name, NumPy first.
    """
    return {name: _describe(name) for name in FRAMEWORKS}


def backend_name(backend: str | None = None) -> BackendName:
    """The backend to use: the argument, else the environment variable MHA_BACKEND, else "numpy".

    Raises TypeError or ValueError, listing the known names, if it is none of them.
    """
    if backend is None and os.environ.get("MHA_BACKEND"):
        return checks.choice("MHA_BACKEND", os.environ["MHA_BACKEND"], tuple(FRAMEWORKS))
    return checks.choice("backend", "numpy" if backend is None else backend, tuple(FRAMEWORKS))


def load(name: BackendName) -> Any:
    """The module of a backend, importing its framework.

    Raises ModuleNotFoundError, saying what to install, if the framework is missing; a framework that is there but
    broken raises its own error.
    """
    loaded = sys.modules.get(f"mha.backends.{name}")
    if loaded is not None and not getattr(loaded.__spec__, "_initializing", False):  # by another thread, at this moment
        return loaded
    if missing := _missing(name):
        raise ModuleNotFoundError(f"backend {name!r} needs {' and '.join(missing)}: {install(name)}", name=missing[0])
    return importlib.import_module(f"mha.backends.{name}")


def lesson(name: BackendName) -> Any:
    """The module of a backend's lesson, `layer.py`, which knows no fast path."""
    load(name)
    return importlib.import_module(f"mha.backends.{name}.layer")


def is_readable(readable: bool | None = None) -> bool:
    """Whether the lesson itself is to run: the argument, else the environment variable MHA_READABLE, else False.

    Raises TypeError or ValueError if it says neither yes nor no.
    """
    if readable is None:
        return checks.choice("MHA_READABLE", os.environ.get("MHA_READABLE") or "0", ("0", "1")) == "1"
    return checks.flag("readable", readable)


def install(name: BackendName) -> str:
    """The command that installs what a backend needs, whatever `mha` itself was installed from."""
    known = FRAMEWORKS[name]
    return " && ".join(filter(None, [pip(known.packages), known.last]))


def pip(packages: Sequence[str]) -> str:
    """The command that installs packages, in quotes that every shell knows."""
    return " ".join(["pip install", *(f'"{package}"' for package in packages)])


def has_book(name: BackendName) -> bool:
    """Whether Dive into Deep Learning has a section for a backend's framework."""
    return (FOLDER / name / "book.py").is_file()


def backend_of(array: Any) -> BackendName | None:
    """The backend whose framework an array belongs to, found from its type; None if it is of none of them."""
    kind = type(array)
    root = kind.__module__.partition(".")[0]
    if root in ARRAY_PACKAGES:  # as most are
        return ARRAY_PACKAGES[root]
    roots = (base.__module__.partition(".")[0] for base in kind.__mro__)
    return next((ARRAY_PACKAGES[root] for root in roots if root in ARRAY_PACKAGES), None)


def module_of(array: Any, name: str) -> Any:
    """The backend module of an array's own framework; `name` is the argument's name, for the error.

    Raises TypeError if it is no dense array of a known framework.
    """
    backend = backend_of(array)
    module = backend and load(backend)
    if not module or not module.is_own(array):
        raise TypeError(
            f"{name} is a {type(array).__name__}, expected an array of {', '.join(FRAMEWORKS)}; convert it with "
            "mha.tensor"
        )
    return module


def _missing(name: BackendName) -> list[str]:
    return [module for module in FRAMEWORKS[name].needs if importlib.util.find_spec(module) is None]


def _describe(name: BackendName) -> Backend:
    if missing := _missing(name):
        return Backend(name, False, None, f"{' and '.join(missing)} not installed: {install(name)}")
    return Backend(name, True, _version(FRAMEWORKS[name].needs[0]), None)


def _version(module: str) -> str | None:
    """The version of the package that brings a module."""
    from importlib import metadata  # here, since it takes longer than the rest of `import mha`

    package = next(iter(_packages().get(module, ())), None)
    return package and metadata.version(package)


@functools.cache
def _packages() -> Mapping[str, list[str]]:
    """The installed packages by the modules that they bring; looking them all up takes a while."""
    from importlib import metadata

    return metadata.packages_distributions()
