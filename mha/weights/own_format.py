"""Our own format: a safetensors file of canonical weights whose metadata says how the layer is configured."""

import json
import os
import reprlib
from dataclasses import asdict

import numpy as np

from mha import checks
from mha.config import MODERN, Config, shapes, special
from mha.positions import Rotary
from mha.weights import files, safetensors_reader
from mha.weights.safetensors_reader import Tensors

LAYOUTS = "1", "2"  # the second has options of today's models, which older readers of the first do not know
HEADER_LIMIT = 2**20  # bytes; a header that `save` writes has less than 4,000


def save(path: str | os.PathLike[str], config: Config, arrays: dict[str, np.ndarray]) -> None:
    """Write weights and configuration to a safetensors file; the old file stays until the new one is whole.

    Raises ValueError if a weight holds NaN or infinity, FileError (an OSError and a ValueError) if the path is there
    but no regular file, and OSError if the file cannot be written; nothing is written then.
    """
    from safetensors.numpy import save as to_bytes

    for name, array in arrays.items():
        checks.finite(name, array)  # `read` would refuse the file
    told, layout = config_text(config), LAYOUTS[1]
    if not special(config):
        told, layout = json.dumps({key: X for key, X in asdict(config).items() if key not in MODERN}), LAYOUTS[0]
    metadata = {"format": "mha", "layout": layout, "config": told}
    # safetensors writes the memory of an array as it lies, so that a transposed view would be saved untransposed.
    data = to_bytes({name: checks.plain(array) for name, array in arrays.items()}, metadata)
    files.write(path, data)


def is_own(source: Tensors) -> bool:
    """Whether a file says that `save` wrote it."""
    return source.metadata.get("format") == "mha"


def read(source: Tensors) -> tuple[Config, dict[str, np.ndarray]]:
    """The configuration and weights in an open file that `save` wrote, checked against each other.

    The numbers are read once their description is right and as long as it says, so that a wrong file takes no memory.

    Raises ValueError if the file is not as `save` writes it, or if a weight holds NaN or infinity.
    """
    if source.header_size > HEADER_LIMIT:
        raise ValueError(
            f"says that mha wrote it, but has a header of {source.header_size} bytes, expected at most {HEADER_LIMIT}"
        )
    config = _config(source.metadata)
    try:
        checks.weights(
            shapes(config), config.dtype, {name: entry.claimed(name) for name, entry in source.entries.items()}
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"does not fit its own configuration: {error}") from error
    arrays = {name: source.read(name) for name in shapes(config)}
    try:
        for name, array in arrays.items():
            checks.finite(name, array)
    except ValueError as error:
        raise ValueError(f"is damaged: {error}") from error
    return config, arrays


def _config(metadata: dict[str, str]) -> Config:
    """The configuration in a file's metadata."""
    match metadata:
        case {"layout": layout, "config": text} if layout in LAYOUTS:
            pass
        case _:
            raise ValueError(
                f"has layout {reprlib.repr(metadata.get('layout'))}, expected '1' or '2' and a configuration; if "
                "another version of mha wrote it, load it with that one"
            )
    return parse_config(text)


def config_text(config: Config) -> str:
    """A configuration as JSON, with the frequencies of a rotation, which other readers need not work out."""
    told = asdict(config)
    if config.rotary:
        told["rotary"]["frequencies"] = config.rotary.angles()
    return json.dumps(told)


def parse_config(text: str) -> Config:
    """The configuration in a JSON text; raises ValueError if there is none, or none that a layer may have."""
    try:
        told = safetensors_reader.parse(text)
        if told.get("rotary") is not None:
            told["rotary"] = Rotary(**told["rotary"])
        return Config(**told)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"holds no valid configuration: {error}") from error
