"""Read a zip archive of arrays: NumPy's `.npz`, and Keras's `.keras`, which has an HDF5 file in it.

What an array claims is checked before it is unpacked. One of many megabytes that is packed into next to nothing, as an
archive that fills the memory of whoever unpacks it is, is refused.
"""

import contextlib
import dataclasses
import math
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from mha.weights.readers import foreign, hdf5
from mha.weights.readers.source import (
    FLOATS,
    MOST_AXES,
    Entry,
    Source,
    dtype_name,
    in_memory,
    readable,
    refuse_bomb,
    unique,
)

KERAS = "model.weights.h5"  # in a .keras file
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclasses.dataclass(frozen=True)
class Npz(Source):
    """An open `.npz` file; members: of the archive, by the names of their arrays."""

    archive: zipfile.ZipFile
    members: Mapping[str, zipfile.ZipInfo]

    def read(self, name: str, dtypes: Sequence[str] = FLOATS) -> np.ndarray:
        """Unpack the array of this name; see `Source.read`."""
        self.entries[name].numpy_dtype(name, dtypes)  # refuses the others
        member = self.members[name]
        refuse_bomb(name, member.file_size, member.compress_size)
        with in_memory(name, member.file_size), readable("archive", name), self.archive.open(member) as file:
            return np.lib.format.read_array(file, allow_pickle=False)


def read(path: Path, file: BinaryIO, stack: contextlib.ExitStack) -> Source:
    """Read what the arrays of an archive claim; stack: closes it."""
    size = path.stat().st_size
    with in_memory("its list of files", size), readable("archive", "its list of files"):
        archive = stack.enter_context(zipfile.ZipFile(file))
    members = archive.infolist()
    names = [member.filename for member in members]
    if KERAS in names:
        return _of_keras(path, archive, stack)
    foreign.refuse_archive(path, names)
    if strangers := [name for name in names if not name.endswith(".npy")]:
        raise ValueError(
            f"is a zip archive with {strangers[0]!r} in it, expected that of numpy.savez, which has arrays only, or a "
            ".keras file"
        )
    named = unique((member.filename.removesuffix(".npy"), member) for member in members)
    entries = {name: _entry(name, archive, member) for name, member in named.items()}
    return Npz(path, entries, {}, archive, named)


def _of_keras(path: Path, archive: zipfile.ZipFile, stack: contextlib.ExitStack) -> Source:
    """Read the weights in a `.keras` file, which are unpacked onto the disk, since HDF5 is read by leaps."""
    member = archive.getinfo(KERAS)
    refuse_bomb(KERAS, member.file_size, member.compress_size)
    unpacked = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    with readable("archive", KERAS), archive.open(member) as file:
        shutil.copyfileobj(file, unpacked)
    unpacked.seek(0)
    return hdf5.read(path, unpacked, stack)


def _entry(name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Entry:
    """Describe an array, whose header alone is unpacked."""
    with readable("archive", name), archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:  # names of fields in other letters
            return Entry(f"'of version {version[0]}'", ())
        shape, _, dtype = _HEADERS[version](file)
        header = file.tell()
    if min(shape, default=0) < 0 or len(shape) > MOST_AXES:
        raise ValueError(f"has {name} of shape {shape}, expected at most {MOST_AXES} sizes, none below 0")
    if not dtype.hasobject and member.file_size != header + math.prod(shape) * dtype.itemsize:
        raise ValueError(
            f"has {member.file_size - header} bytes in {name}, which does not fit dtype {dtype} and shape {shape}"
        )
    return Entry(dtype_name(dtype), shape)
