"""Read a file whose layers have names of their own as one whose layers have the names of a scheme."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mha.weights import projections
from mha.weights.projections import LayerArrays, Parts
from mha.weights.readers import FLOATS, Arrays, Entry, Source


@dataclasses.dataclass(frozen=True)
class RenamedSource(Source):
    """An open file whose arrays have the names of scheme "llama", or of "phi3" if they are packed."""

    source: Source
    guessed: bool  # whether a kernel lies as its name alone says
    places: Mapping[str, tuple[str, str]]  # by the name of an array, the path of its layer and its name after that
    held: Mapping[str, list[str]]  # by the path of a layer, the file's own names of its arrays
    parts: Parts  # the names of the projections
    kept: dict[str, LayerArrays] = dataclasses.field(default_factory=dict)  # the layer that was read last, by path

    def read(self, name: str, dtypes: Sequence[str] = FLOATS) -> np.ndarray:
        """Read an array, as `Source.read`."""
        if name not in self.places:
            return self.source.read(name, dtypes)
        path, own = self.places[name]
        if path not in self.kept:
            self.kept.clear()
            self.kept[path] = read_layer(self.source, Arrays(self.source), path, self.parts)
        return np.array(self.kept[path].arrays[own])

    def format_of(self, name: str) -> str:
        """Return the format of the file."""
        return self.source.format_of(name)

    def packing_of(self, name: str) -> str:
        """Say how an array is quantised; "" = it is not."""
        return "" if name in self.places else self.source.packing_of(name)


class _StandIns(Arrays):
    """Stand-ins for the arrays of an open file, of the shapes and dtypes that its header claims."""

    def __getitem__(self, name: str) -> Any:
        return self.source.entries[name].stand_in(name)


def read_layer(source: Source, arrays: Mapping[str, Any], path: str, parts: Parts) -> LayerArrays:
    """Read the arrays of a layer of a file."""
    return projections.read_arrays(arrays, path, parts, {}, whose=source.path.name, formats=source.format_of)


def fits(source: Source, parts: Parts) -> bool:
    """Whether a file has a layer with projections of these names."""
    return bool(projections.layer_paths(parts, source.entries))


def rename_source(source: Source, parts: Parts) -> Source:
    """Return a file by the names of a scheme. Raises ValueError if nothing shows how its kernels lie."""
    entries, places, guessed = dict(source.entries), dict[str, tuple[str, str]](), False
    held: dict[str, list[str]] = {}
    for path in projections.layer_paths(parts, source.entries):
        found = read_layer(source, _StandIns(source), path, parts)
        guessed |= bool(found.guessed)
        held[path] = projections.names_of(source.entries, path, parts)
        for name in held[path]:
            entries.pop(name, None)
        for own, X in found.arrays.items():
            name = projections.join_path(path, own)
            entries[name], places[name] = Entry(str(X.dtype), X.shape), (path, own)
    # A configuration beside it says nothing of layers that no scheme has.
    nowhere = source.path.with_name(f"{source.path.name} with names of its own") / source.path.name
    return RenamedSource(nowhere, entries, source.metadata, source, guessed, places, held, parts)
