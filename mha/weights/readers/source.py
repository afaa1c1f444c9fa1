"""What every kind of file of weights is read as: arrays that are described by name, and read one at a time."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mha.config import numpy_dtype

# The dtypes of weights, and all dtypes of case files. Arrays of other dtypes may be in a file, too.
FLOATS = ("float64", "float32", "float16", "bfloat16")
ALL = (*FLOATS, "int64", "bool")


@dataclasses.dataclass(frozen=True)
class Entry:
    """The description of an array, which is known before its numbers are read.

    dtype: NumPy's name of it; where there is none, the file's name of it, in quotes.
    shape: of the array.
    """

    dtype: str
    shape: tuple[int, ...]

    def claimed(self, name: str, known: Sequence[str] = FLOATS) -> np.ndarray:
        """A stand-in of this shape and dtype, which takes the memory of one number."""
        if 0 in self.shape:
            raise ValueError(f"{name} has shape {self.shape}, expected no size of 0")
        return np.broadcast_to(np.zeros((), self.numpy_dtype(name, known)), self.shape)

    def numpy_dtype(self, name: str, known: Sequence[str] = FLOATS) -> np.dtype:
        """NumPy's dtype of the array; ValueError, with the array's name, if it is not one of the known dtypes."""
        if self.dtype not in known:
            raise ValueError(f"{name} has dtype {self.dtype}, expected one of {', '.join(known)}")
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
    def read(self, name: str, known: Sequence[str] = FLOATS) -> np.ndarray:
        """Read the array of this name.

        Raises ValueError if its dtype is not one of the known ones, if the file is damaged or has become shorter since
        it was opened, or if memory is short.
        """

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that it lies in."""
        return (self.path,)
