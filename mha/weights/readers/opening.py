"""Open the weights at a path by the contents of the file, whatever its name: each kind of file has its module here."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from mha.weights import files
from mha.weights.readers import archive, folder, hdf5, quantised, safetensors_file, shards
from mha.weights.readers.source import Source

BEGINNING = 64  # bytes, which show the kind of a file


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Source]:
    """Open a file of weights, or the one in a directory; a ValueError that is raised meanwhile gets its path before it.

    Raises:
        FileNotFoundError: if there is no such file.
        FileError (an OSError and a ValueError): if the path is no regular file, may not be read, or is a directory
            without weights.
        ValueError: if it is of no kind that can be read; if it is of a known one, the message says how to convert it.
    """
    place = folder.weights_in(path) if folder.is_one(path) else path
    with files.open_file(place) as file, contextlib.ExitStack() as stack:
        try:
            yield quantised.shown(_reader(file)(Path(place), file, stack))
        except files.FileError:
            raise
        except ValueError as error:
            raise ValueError(f"{os.fspath(place)} {error}") from error


def _reader(file: BinaryIO) -> Callable[[Path, BinaryIO, contextlib.ExitStack], Source]:
    """Return the function that reads a file, by its first bytes; the file stays at its beginning."""
    start = file.read(BEGINNING)
    file.seek(0)
    if hdf5.begins(start):
        return hdf5.read
    if archive.begins(start):
        return archive.read
    if shards.begins(start):
        return shards.read
    return safetensors_file.read
