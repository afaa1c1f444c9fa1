"""Find the file of a directory that has the weights of its model."""

import os
from pathlib import Path
from typing import Any

from mha.weights.files import FileError
from mha.weights.readers import foreign

FIRST = "model.safetensors", "model.safetensors.index.json"  # as in transformers
ENDINGS = (".safetensors.index.json",), (".safetensors",), (".keras", ".h5", ".npz")  # the earlier, the better
LISTED = 8  # so many names of a long list are shown


def is_one(path: Any) -> bool:
    """Whether a path is that of a directory."""
    return isinstance(path, str | os.PathLike) and os.path.isdir(path)


def weights_in(path: str | os.PathLike[str]) -> Path:
    """Return the path of the file of weights, or of the index of several, in a directory.

    Raises ValueError if several could be meant, FileError (an OSError and a ValueError) if there is none, or if the
    directory may not be read.
    """
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
                f"{folder} has {len(found)} files of weights, {_listed(found)}; pass the path of one of them"
            )
    if kind := foreign.in_folder(folder, names):
        raise FileError(f"{folder} {kind}")
    raise FileError(
        f"{folder} is a directory without weights, expected {FIRST[0]} or {FIRST[1]} in it; it has "
        f"{_listed(names) or 'nothing'}"
    )


def _listed(names: list[str]) -> str:
    shown = (name if name.isprintable() else repr(name) for name in names[:LISTED])
    return ", ".join(shown) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
