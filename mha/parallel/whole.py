"""The weights of a split layer in a file of ours: read and checked before anything changes; written by one for all."""

import dataclasses
import os

import numpy as np

from mha import weights
from mha.config import Config
from mha.weights import FileError

ROOM = 512  # bytes of a problem that is told to the other ranks


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


def write(path: str | os.PathLike[str], config: Config, arrays: dict[str, np.ndarray]) -> Exception | None:
    """Write canonical weights, as `attention.save` does: the problem, which the others are told before it is raised."""
    try:
        weights.save(path, config, arrays)
    except (OSError, ValueError) as error:
        return error
    return None


def told(problem: Exception | None) -> np.ndarray:
    """What the rank that writes tells the others: a problem, or none, in bytes of one number."""
    return np.frombuffer(str(problem or "").encode()[:ROOM].ljust(ROOM, b"\0"), np.uint8)


def failed(rank: int, told: np.ndarray) -> FileError | None:
    """What the others raise when the rank that writes could not; None if it could."""
    problem = told.tobytes().rstrip(b"\0").decode(errors="replace")
    return FileError(f"rank {rank} could not write the file: {problem}") if problem else None
