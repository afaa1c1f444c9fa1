"""The weights of a split layer in a file of ours: read and checked once, before anything changes."""

import dataclasses
import os

import numpy as np

from mha import weights
from mha.config import Config
from mha.weights import FileError


def read(path: str | os.PathLike[str], config: Config) -> dict[str, np.ndarray]:
    """The canonical weights in a file that `save` wrote, of a layer of this configuration; dropout may differ.

    Raises FileError if the file is none of ours, and ValueError if its layer is configured otherwise.
    """
    found, arrays = weights.load(path, scheme="mha")
    for field in dataclasses.fields(config):
        came, expected = getattr(found, field.name), getattr(config, field.name)
        if came != expected and field.name != "dropout":
            raise ValueError(
                f"{os.fspath(path)} has a layer with {field.name}={came!r}, expected {expected!r} as the layer"
            )
    return arrays


def failed(rank: int, problem: str) -> FileError:
    """What the other ranks raise when the one that writes could not."""
    return FileError(f"rank {rank} could not write the file: {problem}")
