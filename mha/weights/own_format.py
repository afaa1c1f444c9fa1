"""The format of `save`: a safetensors file of canonical weights, with the layer's configuration in its metadata."""

import json
import os
import reprlib
from dataclasses import asdict
from typing import Any, TypeGuard

import numpy as np

from mha.core.options import checks
from mha.core.options.config import MODERN, ROWS, Config, config_of_record, shapes, special
from mha.core.options.norms import Norm
from mha.weights import files, json_text, safetensors_writer
from mha.weights.readers import SafetensorsFile, Source

# Each has options that older versions of mha do not know: 2 those of 2024's models, 3 the magnitude of a rotation, a
# norm over all heads or after the rotation, and what is named here.
LAYOUTS = "1", "2", "3"
LATER = tuple(name for name, row in ROWS.items() if row.layout > 2)
HEADER_LIMIT = 2**20  # bytes; a header that `save` writes has less than 4,000


def save(path: str | os.PathLike[str], config: Config, arrays: dict[str, np.ndarray]) -> None:
    """Write weights and configuration to a safetensors file; the old file stays until the new one is complete.

    Raises ValueError if a weight holds NaN or infinity, FileError (an OSError and a ValueError) if something other than
    a regular file is there, and OSError if the file cannot be written. Then nothing is written.
    """
    for name, array in arrays.items():
        checks.finite(name, array)  # `read` would refuse the file
    options = special(config)
    later = not options.keys().isdisjoint(LATER) or (config.rotary and config.rotary.magnitude != 1)
    later = later or not is_plain(config.qk_norm)
    recorded, layout = config_text(config), LAYOUTS[2 if later else 1]
    if not options:
        recorded, layout = json.dumps({key: X for key, X in asdict(config).items() if key not in MODERN}), LAYOUTS[0]
    metadata = {"format": "mha", "layout": layout, "config": recorded}
    files.write(path, safetensors_writer.to_bytes(arrays, metadata))


def is_own(source: Source) -> TypeGuard[SafetensorsFile]:
    """Whether a file's metadata says that `save` wrote it."""
    return isinstance(source, SafetensorsFile) and source.metadata.get("format") == "mha"


def read(source: SafetensorsFile) -> tuple[Config, dict[str, np.ndarray]]:
    """Read configuration and weights from an open file that `save` wrote, and check them against each other.

    The numbers are read only after the header is checked, so that a wrong file takes no memory.
    """
    if source.header_size > HEADER_LIMIT:
        raise ValueError(
            f"says that mha wrote it, but has a header of {source.header_size} bytes, expected at most {HEADER_LIMIT}"
        )
    match source.metadata:
        case {"layout": layout, "config": text} if layout in LAYOUTS:
            config = parse_config(text)
        case metadata:
            raise ValueError(
                f"has layout {reprlib.repr(metadata.get('layout'))}, expected '1', '2' or '3' and a configuration; if "
                "another version of mha wrote it, load it with that one"
            )
    try:
        claimed = {name: entry.stand_in(name) for name, entry in source.entries.items()}
        checks.weights(shapes(config), config.dtype, claimed)
    except (TypeError, ValueError) as error:
        raise ValueError(f"does not fit its own configuration: {error}") from error
    arrays = {name: source.read(name) for name in shapes(config)}
    try:
        for name, array in arrays.items():
            checks.finite(name, array)
    except ValueError as error:
        raise ValueError(f"is damaged: {error}") from error
    return config, arrays


def config_text(config: Config) -> str:
    """Return a configuration as JSON, with a rotation's frequencies, so that other readers need not compute them.

    Options of layout 3 are in it where they are used; a norm of layout 2 is recorded as its kind and its number.
    """
    used, norm, recorded = special(config), config.qk_norm, dict[str, Any]()
    for name, X in asdict(config).items():
        if name == "qk_norm" and is_plain(norm):
            recorded |= {"qk_norm": norm and norm.kind, "qk_norm_eps": norm.eps if norm else Norm.eps}
        elif name not in LATER or name in used:
            recorded[name] = X
    if config.rotary:
        recorded["rotary"]["frequencies"] = config.rotary.angles()
        if config.rotary.magnitude == 1:
            del recorded["rotary"]["magnitude"]
    return json.dumps(recorded)


def is_plain(norm: Norm | None) -> bool:
    """Whether layout 2 has a norm: one over each head, before the rotation, or none."""
    return norm is None or norm == Norm(norm.kind, norm.eps)


def parse_config(text: str) -> Config:
    """Return the configuration in a JSON text; ValueError if it is missing, or if no layer can have it."""
    try:
        return config_of_record(json_text.parse(text))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"holds no valid configuration: {error}") from error
