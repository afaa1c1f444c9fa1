"""Store the arrays of a record while it is written: in memory, or in a file that grows array by array.

A file is written beside its place, with `.unfinished` after its name, and is moved there when it is whole. Its true
header is written last, into room that was left for it.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mha.core.options import checks
from mha.weights import files
from mha.weights.readers.safetensors_file import DTYPES, LIMIT

FORMAT = "mha record"
UNFINISHED = "unfinished"  # the layout of a file that is still written
CODES = {name: code for code, name in DTYPES.items()}
ROOM = 2**16  # bytes for the header; where it needs more, the arrays are moved
PIECE = 2**24  # bytes that are moved at once
ALIGNED = 8  # bytes
FILLER = "filler."  # before the names of arrays of few bytes, which let others begin where readers need it


class MemoryStore:
    """Arrays in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, np.ndarray] = {}

    def add(self, name: str, X: np.ndarray) -> None:
        """Keep a copy of an array."""
        self.kept[name] = np.array(X)

    def read(self, name: str) -> np.ndarray:
        """Return the array of this name."""
        return self.kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def finish(self, metadata: Mapping[str, str]) -> None:
        """Do nothing: the arrays are there."""

    def abandon(self) -> None:
        """Forget the arrays."""
        self.kept.clear()


class FileStore:
    """Arrays in a file of safetensors that grows; FileError if its place is no regular file."""

    def __init__(self, path: Any) -> None:
        self.path = Path(os.path.realpath(files.regular(path)))
        self.beside = temporary_path(self.path)
        self.file = open(self.beside, "w+b")  # noqa: SIM115  # closed by `finish` or `abandon`
        self.places: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        self.size = 0
        self.file.write(header({"__metadata__": {"format": FORMAT, "layout": UNFINISHED}}, ROOM))
        self.file.flush()  # what a killed run leaves says what it is

    def add(self, name: str, X: np.ndarray) -> None:
        """Append an array."""
        if gap := -self.size % ALIGNED:
            self.append(f"{FILLER}{len(self.places)}", np.zeros(gap, np.uint8))
        self.append(name, X)

    def append(self, name: str, X: np.ndarray) -> None:
        """Append an array where the one before it ends."""
        start = self.size
        self.file.write(checks.plain(X).tobytes())
        self.size += X.nbytes
        self.places[name] = CODES[checks.dtype_name(X.dtype)], X.shape, start, self.size

    def read(self, name: str) -> np.ndarray:
        """Raise ValueError: a file cannot be read while it is written."""
        raise ValueError(f"{name} is in {self.beside}, which is still written; read the record when it is closed")

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def finish(self, metadata: Mapping[str, str]) -> None:
        """Write the header, and put the file in its place."""
        described: dict[str, Any] = {"__metadata__": dict(metadata)}
        for name, (dtype, shape, start, stop) in self.places.items():
            described[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
        written = header(described, ROOM)
        if len(written) > LIMIT:
            raise ValueError(f"the record has {len(self.places)} arrays, too many for one file; record fewer calls")
        move_bytes(self.file, ROOM, self.size, len(written) - ROOM)
        self.file.flush()
        os.fsync(self.file.fileno())  # the arrays, before a header says that they are there
        self.file.seek(0)
        self.file.write(written)
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self.beside, self.path)

    def abandon(self) -> None:
        """Close and remove the file; one that was at its place before stays."""
        self.file.close()
        self.beside.unlink(missing_ok=True)


def temporary_path(path: Any) -> Path:
    """Return the path of a record while it is written."""
    return Path(f"{os.fspath(path)}.unfinished")


def header(described: Mapping[str, Any], least: int) -> bytes:
    """Return the first bytes of a file, its header padded to at least so many."""
    text = json.dumps(described, separators=(",", ":")).encode()
    size = max(least, 8 + len(text) + -len(text) % ALIGNED)
    return (size - 8).to_bytes(8, "little") + text.ljust(size - 8)


def move_bytes(file: Any, start: int, size: int, by: int) -> None:
    """Move the bytes of a file from start on further to its end, the last ones first."""
    at = start + size
    while by and at > start:
        piece = min(PIECE, at - start)
        at -= piece
        file.seek(at)
        data = file.read(piece)
        file.seek(at + by)
        file.write(data)
