"""Open the weights at a path by the contents of the file, whatever its name: each kind of file has its module here."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from mha.weights import files
from mha.weights.files import FileError
from mha.weights.readers import archive, foreign, hdf5, safetensors_file, shards
from mha.weights.readers.quantised import Quantised
from mha.weights.readers.source import Source

BEGINNING = 64  # bytes, which show the kind of a file
# Files of a directory that may have its weights.
FIRST = "model.safetensors", "model.safetensors.index.json"  # as in transformers
ENDINGS = (".safetensors.index.json",), (".safetensors",), (".keras", ".h5", ".npz")  # the earlier, the better
LISTED = 8  # so many names of a long list are shown


@contextlib.contextmanager
def open_weights(path: str | os.PathLike[str]) -> Iterator[Source]:
    """Open a file of weights, or the one in a directory; a ValueError that is raised meanwhile gets its path before it.

    Raises:
        FileNotFoundError: if there is no such file.
        FileError (an OSError and a ValueError): if the path is no regular file, may not be read, or is a directory
            without weights.
        ValueError: if it is of no kind that can be read; if it is of a known one, the message says how to convert it.
    """
    place = weights_in(path) if isinstance(path, str | os.PathLike) and os.path.isdir(path) else path
    with files.open_file(place) as file, contextlib.ExitStack() as stack:
        try:
            source = _reader(file)(Path(place), file, stack)
            is_quantised = any(name.endswith(".scales") for name in source.entries)
            yield Quantised(source) if is_quantised else source
        except FileError:
            raise
        except ValueError as error:
            raise ValueError(f"{os.fspath(place)} {error}") from error


def _reader(file: BinaryIO) -> Callable[[Path, BinaryIO, contextlib.ExitStack], Source]:
    """Return the function that reads a file, by its first bytes; the file stays at its beginning."""
    start = file.read(BEGINNING)
    file.seek(0)
    if start.startswith(b"\x89HDF\r\n\x1a\n"):
        return hdf5.read
    # The size of a safetensors file's header may be these bytes, but JSON follows it; where JSON itself would begin,
    # it has zeros.
    if start.startswith((b"PK\3\4", b"PK\5\6")) and start[8:9] != b"{":
        return archive.read
    if start.startswith(b"{") and b"\0" not in start:
        return shards.read
    return safetensors_file.read


def weights_in(path: str | os.PathLike[str]) -> Path:
    """Return the path of the file of weights, or of the index of several, in a directory; errors as `open_weights`."""
    folder = Path(path)
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise FileError(f"{folder} cannot be listed: {error.strerror}") from error
    for name in FIRST:
        if name in names:
            return folder / name
    for endings in ENDINGS:
        found = [name for name in names if name.endswith(endings)]
        if len(found) == 1:
            return folder / found[0]
        if found:
            raise ValueError(
                f"{folder} has {len(found)} files of weights, {_list_names(found)}; pass the path of one of them"
            )
    if kind := foreign.describe_folder(folder, names):
        raise FileError(f"{folder} {kind}")
    raise FileError(
        f"{folder} is a directory without weights, expected {FIRST[0]} or {FIRST[1]} in it; it has "
        f"{_list_names(names) or 'nothing'}"
    )


def _list_names(names: list[str]) -> str:
    shown = (name if name.isprintable() else repr(name) for name in names[:LISTED])
    return ", ".join(shown) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
