"""Read arrays that are quantised in a file as floats: the library that packed them unpacks them.

A quantised `layer.weight` holds integers of few bits, packed into uint32; beside it are `layer.scales` and, in mode
"affine", `layer.biases`. `config.json` has the number of bits, and how many numbers share a scale.

Source: `mlx.core.quantize` of MLX 0.32, and `mlx_lm.utils` of mlx-lm 0.32, which writes such files.
"""

import dataclasses
import functools
import importlib
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.options import checks
from mha.weights import models
from mha.weights.readers.source import ALL, FLOATS, Entry, Lazy, Source

# Formats of files, as their metadata say them, and the backend that unpacks their quantised arrays.
FORMATS = {form: name for name, forms in dispatch.facts("FORMATS", ()).items() for form in forms}
BESIDE = "scales", "biases", "global_scale"
PACKED = "uint32"
# Of each mode: the numbers that share a scale, and their bits, unless something else is said.
MODES = {"affine": (64, 4), "mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}


@dataclasses.dataclass(frozen=True)
class Quantisation:
    """The way an array is quantised: the numbers of a group that shares a scale, the bits of each, and the mode."""

    group_size: int
    bits: int
    mode: str


class Quantised(Source):
    """An open file with arrays that are quantised, which are described and read as unpacked, without their scales."""

    # Only the fields of `Source` are frozen: these are set once.
    def __init__(self, source: Source) -> None:
        self.source, self.inner = source, source.entries
        names = [name for name in self.inner if not self._is_beside(name)]
        super().__init__(source.path, Lazy(names, self._entry), source.metadata)

    def read(self, name: str, dtypes: Sequence[str] = FLOATS) -> np.ndarray:
        """Read the array of this name, unpacked; see `Source.read`."""
        if not self._is_packed(name):
            return self.source.read(name, dtypes)
        entry, how, backend = self.entries[name], self._how(name), FORMATS[self.format_of(name)]
        dtype = entry.numpy_dtype(name, dtypes)
        try:
            dispatch.load(backend)
        except ModuleNotFoundError as error:
            raise ValueError(
                f"has {name} quantised to {how.bits} bits, which {dispatch.facts('TITLE')[backend]} unpacks: "
                f"{dispatch.install(backend)}"
            ) from error
        module = importlib.import_module(f"mha.weights.frameworks.{backend}")
        stem = name.removesuffix("weight")
        parts = {end: self.source.read(stem + end, (*ALL, "uint8")) for end in BESIDE if stem + end in self.inner}
        try:
            found = module.unpacked(self.source.read(name, (PACKED,)), parts, dtype, **dataclasses.asdict(how))
        except (RuntimeError, ValueError) as error:  # as the framework refuses sizes or modes
            raise ValueError(f"has {name} quantised in a way that cannot be unpacked: {error}") from error
        if found.shape != entry.shape:
            raise ValueError(f"has {name} of shape {found.shape} once it is unpacked, expected {entry.shape}")
        return found

    def format_of(self, name: str) -> str:
        """Return the format that the file of this array says; see `Source.format_of`."""
        return self.source.format_of(name)

    def packing_of(self, name: str) -> str:
        """Say how an array is quantised; see `Source.packing_of`."""
        if not self._is_packed(name):
            return ""
        how = self._how(name)
        return f"{how.bits} bits in groups of {how.group_size}, mode {how.mode}"

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that have the arrays."""
        return self.source.paths

    def _entry(self, name: str) -> Entry:
        """Describe an array as it is once it is unpacked."""
        entry = self.inner[name]
        if not self._is_packed(name):
            return entry
        how, scales = self._how(name), self.inner[f"{name.removesuffix('weight')}scales"]
        *rows, words = entry.shape
        width = words * 32 // how.bits
        if words * 32 % how.bits or scales.shape != (*rows, width // how.group_size) or width % how.group_size:
            raise ValueError(
                f"has {name} of shape {entry.shape} with scales of shape {scales.shape}, which does not fit {how.bits} "
                f"bits in groups of {how.group_size}, as the configuration beside it says"
            )
        return Entry(scales.dtype if how.mode == "affine" else self._dtype, (*rows, width))

    def _is_packed(self, name: str) -> bool:
        """Whether an array is a quantised one."""
        named = name.endswith(".weight") and f"{name.removesuffix('weight')}scales" in self.inner
        return named and self.inner[name].dtype == PACKED and self.source.format_of(name) in FORMATS

    def _how(self, name: str) -> Quantisation:
        """Return the way an array is quantised; ValueError if the configuration lacks it, or has an unknown one."""
        settings = self._settings.get(name.removesuffix(".weight"))
        settings = settings if isinstance(settings, dict) else self._settings
        mode = settings.get("mode", "affine")
        if mode not in MODES:
            raise ValueError(f"has {name} quantised in mode {reprlib.repr(mode)}, expected one of {', '.join(MODES)}")
        group_size, bits = MODES[mode]
        try:
            group_size = checks.size("group_size", settings.get("group_size") or group_size)
            return Quantisation(group_size, checks.size("bits", settings.get("bits") or bits), mode)
        except (TypeError, ValueError) as error:
            raise ValueError(f"has config.json beside it, which does not say how {name} lies: {error}") from error

    @functools.cached_property
    def _settings(self) -> dict[str, Any]:
        """The part of the configuration beside the file that is about its quantised arrays."""
        path = self.source.path.with_name("config.json")
        model = {} if (data := models.read_bytes(path)) is None else models.parse_model(data)
        settings = model.get("quantization") or model.get("quantization_config")
        if not isinstance(settings, dict):
            raise ValueError(
                f"has quantised arrays, and no {path.name} beside it whose quantization says how: expected group_size, "
                "bits and mode"
            )
        return settings

    @functools.cached_property
    def _dtype(self) -> str:
        """The dtype of arrays whose scales are no floats: that of the first array that is not quantised."""
        dtypes = (entry.dtype for entry in self.inner.values())
        return next((dtype for dtype in dtypes if dtype in FLOATS), "bfloat16")

    def _is_beside(self, name: str) -> bool:
        """Whether an array, by its name, is the scales or biases of a quantised one."""
        stem, _, last = name.rpartition(".")
        return last in BESIDE and f"{stem}.scales" in self.inner and f"{stem}.weight" in self.inner
