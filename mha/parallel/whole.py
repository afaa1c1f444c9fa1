"""Read and write the file of a split layer: the weights are checked before any changes, and one rank writes for all."""

import dataclasses
import os

import numpy as np

from mha import weights
from mha.core.options.config import Config
from mha.weights import FileError

ROOM = 512  # bytes of an error's text that are sent to the other ranks


def read(path: str | os.PathLike[str], config: Config) -> dict[str, np.ndarray]:
    """Read the canonical weights of a layer of this configuration from a file that `save` wrote; dropout may differ.

    Raises FileError if `save` did not write the file, and ValueError if its layer has another configuration.
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
    """Write canonical weights, as `attention.save` does; return an error, so that the other ranks learn of it first."""
    try:
        weights.save(path, config, arrays)
    except (OSError, ValueError) as error:
        return error
    return None


def error_bytes(problem: Exception | None) -> np.ndarray:
    """The text of an error, "" for none, as an array of bytes that the writing rank sends to the others."""
    return np.frombuffer(str(problem or "").encode()[:ROOM].ljust(ROOM, b"\0"), np.uint8)


def error_of_rank(rank: int, sent: np.ndarray) -> FileError | None:
    """The error that the other ranks raise if the writing rank failed; None if it did not."""
    problem = sent.tobytes().rstrip(b"\0").decode(errors="replace")
    return FileError(f"rank {rank} could not write the file: {problem}") if problem else None
