"""Write and read files of caches: safetensors, with the layer's configuration in the header."""

import os
from collections.abc import Mapping

import numpy as np

from mha.core.cache.slots import ARRAYS, dtypes, shapes
from mha.core.options import checks
from mha.core.options.config import Config
from mha.weights import files, own_format, safetensors_writer
from mha.weights.readers import SafetensorsFile, open_weights

LAYOUT = "1"


def save(path: str | os.PathLike[str], config: Config, arrays: Mapping[str, np.ndarray], frozen: bool) -> None:
    """Write a cache, whose arrays are given as NumPy's; errors as of `files.write`."""
    facts = {"layout": LAYOUT, "config": own_format.config_text(config), "frozen": str(int(frozen))}
    files.write(path, safetensors_writer.to_bytes(arrays, {"format": "mha.Cache", **facts}))


def load(path: str | os.PathLike[str]) -> tuple[Config, list[np.ndarray], bool]:
    """Read the configuration of a file, the arrays of its cache, and whether that is frozen."""
    with open_weights(path) as source:
        if not isinstance(source, SafetensorsFile) or source.metadata.get("format") != "mha.Cache":
            raise ValueError("holds no cache, expected a file that mha.Cache.save wrote")
        try:
            return _read(source)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"is damaged, or of another version of mha: {error}") from error


def _read(source: SafetensorsFile) -> tuple[Config, list[np.ndarray], bool]:
    recorded = source.metadata
    if recorded.get("layout") != LAYOUT or recorded.get("frozen") not in ("0", "1"):
        raise ValueError(f"its layout is {checks.brief(recorded.get('layout'))}, expected {LAYOUT!r}")
    config = own_format.parse_config(recorded["config"])
    if {*source.entries} != {*ARRAYS}:
        raise ValueError(f"it holds {', '.join(sorted(source.entries))}, expected {', '.join(ARRAYS)}")
    claimed = tuple(source.entries["positions"].shape)
    if len(claimed) != 2:
        raise ValueError(f"positions has shape {claimed}, expected (batch, slots)")
    kinds = dtypes(config)
    for name, shape in shapes(config, *claimed).items():
        entry, dtype = source.entries[name], kinds[name]
        if (tuple(entry.shape), entry.dtype) != (shape, dtype):
            raise ValueError(f"{name} has shape {entry.shape} and dtype {entry.dtype}, expected {shape} and {dtype}")
    arrays = [source.read(name, (kinds[name],)) for name in ARRAYS]
    return config, arrays, recorded["frozen"] == "1"
