"""Read safetensors files, header first: a wrong header is refused before any numbers are read.

A file is eight bytes that hold the size of its header, the header in JSON, and the numbers of one array after another.
The `safetensors` package, which writes our files, accepts a header with the same name twice, and cannot read bfloat16
into NumPy.

Source: the format's description in the documentation of safetensors.
"""

import collections
import contextlib
import dataclasses
import json
import math
import os
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from mha.config import numpy_dtype
from mha.weights import files

LIMIT = 100_000_000  # bytes of a header, as in the safetensors package
MOST_AXES = 32  # as in NumPy 1

# The dtypes of weights, by their names in a file; and all dtypes of case files.
FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ALL = FLOATS | {"I64": "int64", "BOOL": "bool"}
# Bytes of one number. Arrays of other dtypes, such as new ones, may be in the file, too.
_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
# Other kinds of files that people try to read, by their first bytes.
_OTHERS = {
    b"\x80": "it begins as a pickle does, which may run code and is never opened; save the weights as safetensors",
    b"PK": "it begins as an archive does, such as those of torch.save, Keras and NumPy, which may hold pickles and is "
    "never opened; save the weights as safetensors",
    b"\x89HDF": "it begins as HDF5 does; save the weights as safetensors",
    b"{": "it begins as JSON does; is it the index of a checkpoint in parts? Then name the part that has the layer",
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """The description of an array in a header.

    dtype: its name in the format.
    shape: of the array.
    start, stop: the place of its numbers, in bytes from the start of the file.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def claimed(self, name: str, known: Mapping[str, str] = FLOATS) -> np.ndarray:
        """A stand-in of this shape and dtype, which takes the memory of one number."""
        if 0 in self.shape:
            raise ValueError(f"{name} has shape {self.shape}, expected no size of 0")
        return np.broadcast_to(np.zeros((), self.numpy_dtype(name, known)), self.shape)

    def numpy_dtype(self, name: str, known: Mapping[str, str] = FLOATS) -> np.dtype:
        """NumPy's dtype of the array; ValueError, with the array's name, if it is not one of the known dtypes."""
        if self.dtype not in known:
            raise ValueError(f"{name} has dtype {self.dtype}, expected one of {', '.join(known)}")
        return numpy_dtype(known[self.dtype])


@dataclasses.dataclass(frozen=True)
class Tensors:
    """An open file whose header is right: its arrays fill the file, and do not overlap.

    size: of the file, in bytes.
    header_size: of the header, in bytes.
    metadata: the texts by name in the header.
    entries: its arrays by name, as the header lists them.
    """

    file: BinaryIO
    size: int
    header_size: int
    metadata: dict[str, str]
    entries: dict[str, Entry]

    def read(self, name: str, known: Mapping[str, str] = FLOATS) -> np.ndarray:
        """Read the array of this name; it is read-only.

        Raises ValueError if its dtype is unknown, if the file has become shorter since it was opened, or if memory is
        short.
        """
        entry = self.entries[name]
        dtype = entry.numpy_dtype(name, known)
        length = entry.stop - entry.start
        self.file.seek(entry.start)
        try:
            data = self.file.read(length)
        except MemoryError as error:
            raise ValueError(f"has {length} bytes in {name}, more than there is memory for") from error
        if len(data) != length:
            raise ValueError(f"was cut while it was read: {name} has {len(data)} bytes, expected {length}")
        return np.frombuffer(data, dtype).reshape(entry.shape)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Tensors]:
    """Open a safetensors file; a ValueError that is raised while it is open gets the path before its text.

    Raises:
        FileNotFoundError: if there is no such file.
        FileError (an OSError and a ValueError): if the path is no regular file or may not be read.
        ValueError: if it is no safetensors file.
    """
    with files.open_file(path) as file:
        try:
            yield _tensors(file)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)} {error}") from error


def parse(text: str) -> dict[str, Any]:
    """Parse a JSON object; a name that comes twice is an error, where Python would take the last one."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, count in collections.Counter(name for name, _ in pairs).items():
            if count > 1:
                raise ValueError(f"the name {name!r} comes {count} times")
            if not name.isprintable():  # an error that quotes it could not be printed either
                raise ValueError(f"the name {name!r} is not printable")
        return dict(pairs)

    try:
        parsed = json.loads(text, object_pairs_hook=unique)
    except RecursionError as error:
        raise ValueError("the JSON nests too deep") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"expected a JSON object, not {reprlib.repr(parsed)}")
    return parsed


def _tensors(file: BinaryIO) -> Tensors:
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    if len(start) < 8:
        raise ValueError(f"is not a safetensors file: it has {size} bytes, expected 8 or more")
    header_size = int.from_bytes(start, "little")
    if header_size > min(LIMIT, size - 8):
        most = f"{LIMIT}" if header_size > LIMIT else f"{size - 8}, all that the file has"
        problem = f"it claims a header of {header_size} bytes, expected at most {most}"
        problem = next((other for beginning, other in _OTHERS.items() if start.startswith(beginning)), problem)
        raise ValueError(f"is not a safetensors file: {problem}")
    try:
        header = parse(file.read(header_size).decode())
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError(f"its metadata is {reprlib.repr(metadata)}, expected texts by name")
    except ValueError as error:
        raise ValueError(f"is not a safetensors file: its header is wrong: {error}") from error
    end = 8 + header_size
    entries = {name: _entry(name, described, end) for name, described in header.items()}
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != end:
            raise ValueError(
                f"is not a safetensors file: {name} begins at byte {entry.start}, expected {end}, where the array "
                "before it ends"
            )
        end = entry.stop
    if size != end:
        raise ValueError(f"has {size} bytes, expected {end} as its header says")
    return Tensors(file, size, header_size, metadata, entries)


def _entry(name: str, described: Any, begin: int) -> Entry:
    """The checked description of an array; begin: the byte after the header."""
    match described:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [start, stop]} if dtype.isprintable():
            numbers = (*shape, start, stop)
            in_bounds = len(shape) <= MOST_AXES and all(type(size) is int and 0 <= size < 2**63 for size in numbers)
            if in_bounds and start <= stop:
                if dtype in _BYTES and stop - start != math.prod(shape) * _BYTES[dtype]:
                    raise ValueError(
                        f"is not a safetensors file: {name} has {stop - start} bytes, which does not fit dtype {dtype} "
                        f"and shape {reprlib.repr(tuple(shape))}"
                    )
                return Entry(dtype, tuple(shape), begin + start, begin + stop)
    raise ValueError(
        f"is not a safetensors file: {name} is described as {reprlib.repr(described)}, expected a dtype, a shape, and "
        "where its numbers begin and end"
    )
