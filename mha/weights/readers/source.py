"""The interface of an open file of weights: arrays that are described by name, and read one at a time."""

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mha.core.options import checks
from mha.core.options.config import numpy_dtype

# The dtypes of weights, and all dtypes of case files. Arrays of other dtypes may be in a file, too.
FLOATS = ("float64", "float32", "float16", "bfloat16")
ALL = (*FLOATS, "int64", "bool")

MOST_AXES = 32  # of an array, as in NumPy 1
LARGE = 2**28  # bytes; a smaller array may be packed as well as it can
MOST = 100  # times as many bytes as it is packed into; random numbers hardly become fewer

T = TypeVar("T")


class Lazy(Mapping[str, T]):
    """A mapping of names to what is made when it is asked for."""

    def __init__(self, names: Iterable[str], make: Callable[[str], T]) -> None:
        self.names, self.make = dict.fromkeys(names), make

    def __getitem__(self, name: str) -> T:
        return self.make(name)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclasses.dataclass(frozen=True)
class Entry:
    """The description of an array, which is known before its numbers are read.

    dtype: NumPy's name of it; where there is none, the file's name of it, in quotes.
    shape: of the array.
    """

    dtype: str
    shape: tuple[int, ...]

    def stand_in(self, name: str, dtypes: Sequence[str] = FLOATS) -> np.ndarray:
        """Return a stand-in of this shape and dtype, which takes the memory of one number."""
        if 0 in self.shape:
            raise ValueError(f"{name} has shape {self.shape}, expected no size of 0")
        return np.broadcast_to(np.zeros((), self.numpy_dtype(name, dtypes)), self.shape)

    def numpy_dtype(self, name: str, dtypes: Sequence[str] = FLOATS) -> np.dtype:
        """Return NumPy's dtype of the array; ValueError, with the array's name, if it is not a known one."""
        if self.dtype not in dtypes:
            raise ValueError(f"{name} has dtype {self.dtype}, expected one of {', '.join(dtypes)}")
        return numpy_dtype(self.dtype)


@dataclasses.dataclass(frozen=True)
class Source(abc.ABC):
    """The arrays of a checkpoint that is open.

    path: of the file, or of the index of several files; the model's configuration lies beside it.
    entries: its arrays by name, in the order of the file.
    metadata: the texts by name that it holds beside its arrays.
    """

    path: Path
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]

    @abc.abstractmethod
    def read(self, name: str, dtypes: Sequence[str] = FLOATS) -> np.ndarray:
        """Read the array of this name.

        Raises ValueError if its dtype is not one of the known ones, if the file is damaged or has become shorter since
        it was opened, or if memory is short.
        """

    def format_of(self, name: str) -> str:
        """Return the format in the metadata of the file of this array, such as "pt" or "mlx"; "" = none."""
        return self.metadata.get("format", "")

    def packing_of(self, name: str) -> str:
        """Say how an array is quantised; "" = it is not."""
        return ""

    def format_at(self, prefix: str) -> str:
        """Return the format of the first array whose name begins so; "" = none."""
        name = next((name for name in self.entries if name.startswith(prefix)), None)
        return "" if name is None else self.format_of(name)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that have the arrays."""
        return (self.path,)


class Arrays(Lazy[Any]):
    """The arrays of an open file of weights, by their names; each is read when it is asked for."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.entries, source.read)
        self.source = source


# For the kinds of files that are packed


def dtype_name(dtype: np.dtype) -> str:
    """Return NumPy's name of a dtype, in any order of bytes; in quotes if it is of no single number."""
    return checks.dtype_name(dtype) if dtype.kind in "biufc" else repr(str(dtype))


def unique(named: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return things by name, slashes as dots; ValueError if a name comes twice, or if it cannot be printed."""
    found: dict[str, T] = {}
    for name, thing in named:
        name = name.replace("/", ".")
        if name in found:
            raise ValueError(f"has two arrays called {name!r}, expected different names")
        if not name.isprintable():
            raise ValueError(f"has an array called {name!r}, expected a name that can be printed")
        found[name] = thing
    return found


def refuse_bomb(name: str, size: int, packed: int) -> None:
    """Raise ValueError if many bytes are packed into next to nothing, as no array of weights is."""
    if size > LARGE and size > MOST * packed:
        raise ValueError(
            f"has {name} of {size} bytes packed into {packed}, which is no array of weights; if it is, save it "
            "uncompressed"
        )


@contextlib.contextmanager
def in_memory(name: str, size: int) -> Iterator[None]:
    """Turn a MemoryError into a ValueError that says which array has so many bytes."""
    try:
        yield
    except MemoryError as error:
        raise ValueError(f"has {size} bytes in {name}, more than there is memory for") from error


@contextlib.contextmanager
def readable(kind: str, what: str) -> Iterator[None]:
    """Turn any error of a library about broken bytes into a ValueError; kind: of the file."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        said = "".join(X if X.isprintable() else " " for X in str(error))
        raise ValueError(f"is a damaged {kind}: {what} cannot be read: {said}") from error
