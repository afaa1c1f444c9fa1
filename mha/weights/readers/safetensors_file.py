"""Read safetensors files, header first: a wrong header is refused before any numbers are read.

A file is eight bytes that hold the size of its header, the header in JSON, and the numbers of one array after another.
The `safetensors` package, which writes our files, accepts a header with the same name twice, and cannot read bfloat16
into NumPy.

Source: the format's description in the documentation of safetensors.
"""

import dataclasses
import math
import os
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mha.core.options.config import numpy_dtype
from mha.weights import json_text
from mha.weights.readers import foreign
from mha.weights.readers.source import FLOATS, MOST_AXES, Entry, Source, in_memory

LIMIT = 100_000_000  # bytes of a header, as in the safetensors package

# NumPy's names of dtypes, by their names in a file. Arrays of other dtypes, such as new ones, may be in the file, too.
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_BYTES = {code: numpy_dtype(name).itemsize for code, name in DTYPES.items()} | {"F8_E4M3": 1, "F8_E5M2": 1}


@dataclasses.dataclass(frozen=True)
class SafetensorsFile(Source):
    """An open file whose header is right: its arrays fill the file, and do not overlap.

    header_size: of the header, in bytes.
    places: the bytes of each array of `entries`, from the start of the file.
    """

    file: BinaryIO
    header_size: int
    places: Mapping[str, range]

    def read(self, name: str, dtypes: Sequence[str] = FLOATS) -> np.ndarray:
        """Read the array of this name; it is read-only. See `Source.read`."""
        entry, place = self.entries[name], self.places[name]
        dtype = entry.numpy_dtype(name, dtypes)
        length = place.stop - place.start
        self.file.seek(place.start)
        with in_memory(name, length):
            data = self.file.read(length)
        if len(data) != length:
            raise ValueError(f"was cut while it was read: {name} has {len(data)} bytes, expected {length}")
        return np.frombuffer(data, dtype).reshape(entry.shape)


def read(path: Path, file: BinaryIO, stack: ExitStack) -> SafetensorsFile:
    """Read the header of an open file; nothing is left to the stack."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    if len(start) < 8:
        raise ValueError(f"is not a safetensors file: it has {size} bytes, expected 8 or more")
    header_size = int.from_bytes(start, "little")
    if header_size > min(LIMIT, size - 8):
        most = f"{LIMIT}" if header_size > LIMIT else f"{size - 8}, all that the file has"
        foreign.refuse(path, file)
        raise ValueError(
            f"is not a safetensors file: it claims a header of {header_size} bytes, expected at most {most}"
        )
    data = file.read(header_size)
    begin = data[:1]
    try:
        header = json_text.parse(data.decode())
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError(f"its metadata is {reprlib.repr(metadata)}, expected texts by name")
    except ValueError as error:
        if begin != b"{":
            foreign.refuse(path, file)
        raise ValueError(f"is not a safetensors file: its header is wrong: {error}") from error
    end = 8 + header_size
    found = {name: _entry(name, described, end) for name, described in header.items()}
    places = {name: place for name, (_, place) in found.items()}
    for name, place in sorted(places.items(), key=lambda item: (item[1].start, item[1].stop)):
        if place.start != end:
            raise ValueError(
                f"is not a safetensors file: {name} begins at byte {place.start}, expected {end}, where the array "
                "before it ends"
            )
        end = place.stop
    if size != end:
        raise ValueError(f"has {size} bytes, expected {end} as its header says")
    entries = {name: entry for name, (entry, _) in found.items()}
    return SafetensorsFile(path, entries, metadata, file, header_size, places)


def _entry(name: str, described: Any, begin: int) -> tuple[Entry, range]:
    """Check the description of an array; return it and its place. begin: the byte after the header."""
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
                return Entry(DTYPES.get(dtype, repr(dtype)), tuple(shape)), range(begin + start, begin + stop)
    raise ValueError(
        f"is not a safetensors file: {name} is described as {reprlib.repr(described)}, expected a dtype, a shape, and "
        "where its numbers begin and end"
    )
