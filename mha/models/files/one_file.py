"""One of two files that are compared: its layers of attention, and its other arrays."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from mha import weights
from mha.core.options.names import SchemeChoice, SchemeName
from mha.weights import argument_names, models, projections, readers, schemes
from mha.weights.projections import LayerArrays, Parts
from mha.weights.readers import FLOATS, Arrays, Entry, Source

OWN = "of its own"  # what is printed in the place of a scheme
SPELT = "W_q=to_q,W_k=to_k,W_v=to_v,W_o=to_out"
LISTED = 8  # so many names of a long list are shown
Name = str | os.PathLike[str]  # of a file
Layer = tuple[SchemeName, str]  # scheme and prefix


@dataclasses.dataclass(frozen=True)
class File:
    """A file, and the scheme and prefix to look for in it."""

    side: str  # "a" or "b", as in the names of the arguments
    path: Name
    scheme: SchemeChoice  # how it names its arrays
    prefix: str | None  # the beginning of the names of one layer, None = all layers
    parts: Parts | None = dataclasses.field(default=None, hash=False)  # names of projections that no scheme has

    @contextlib.contextmanager
    def open(self) -> Iterator[Source]:
        """Open the file, its layers by the names of a scheme. Raises as `readers.open_weights`."""
        with readers.open_weights(self.path) as source:
            yield source if self.parts is None else rename_source(source, self.parts)

    def with_parts(self, parts: Parts | None) -> "File":
        """Return the file with these names of projections, if some of its layers have them."""
        if parts is None:
            return self
        with readers.open_weights(self.path) as source:
            if not projections.layer_paths(parts, source.entries):
                return self
        if self.scheme != "auto":
            asked = argument_names.setting(**{f"scheme_{self.side}": self.scheme})
            raise ValueError(f"{asked} is given, but the names of its projections are said as well; leave one out")
        return dataclasses.replace(self, parts=parts)

    def some(self) -> str:
        """Join the first names of its arrays."""
        with readers.open_weights(self.path) as source:
            return ", ".join([*source.entries][:LISTED]) + (", ..." if len(source.entries) > LISTED else "")

    def title_of(self, layer: Layer) -> Layer:
        """Return the layer as a report names it: without a scheme if the caller gave the names."""
        return cast(Layer, (OWN, layer[1])) if self.parts else layer

    def name_notes(self, layers: Iterable[Layer]) -> list[str]:
        """Return the notes of a report on the names in this file."""
        with self.open() as source:
            if not isinstance(source, RenamedSource):
                kinds = dict.fromkeys(layer[0] for layer in layers if self.scheme == "auto" and self.silent(layer))
                unsure = [one for one in map(schemes.SCHEMES.__getitem__, kinds) if one.unsure]
                return [f"{self.side.upper()} has no {one.config}: {one.unsure}" for one in unsure]
            names = ", ".join(f"{role}={name}" for role, name in source.parts.names.items())
            found = [f"{self.side.upper()} has names of its own: {names}"]
            if source.guessed:
                taken = "as (out, in), as PyTorch's of this name are; axes=io says otherwise"
                found.append(f"kernels of {self.side.upper()} are taken {taken}")
            return found

    def layers(self) -> list[Layer]:
        """List the layers of the scheme, in the order of their prefixes: 2 before 10."""
        with self.open() as source:
            every = schemes.recognise(source.entries, source.format_of)
        found = [layer for layer in every if schemes.fits_choice(self.scheme, layer[0])]
        parts = {layer: re.split(r"(\d+)", layer[1]) for layer in found}
        return sorted(found, key=lambda layer: [int(X) if X.isdigit() else X for X in parts[layer]])

    def choose(self, prefixes: Sequence[str | None]) -> list[Layer]:
        """Return the layers with these prefixes, None = the only one."""
        names = {name: f"{name}_{self.side}" for name in ("scheme", "prefix")}
        with self.open() as source, argument_names.use_names(names):
            try:
                return [weights.choose(source, self.scheme, prefix) for prefix in prefixes]
            except ValueError as error:
                if self.scheme != "auto" or schemes.recognise(source.entries, source.format_of):
                    raise
                option = argument_names.name("names")
                called = f"{option} {SPELT}" if option.startswith("-") else f"{option}={{'W_q': 'to_q', ...}}"
                raise ValueError(f"{error}; or say what its projections are called, such as {called}") from error

    def beside(self, layer: Layer) -> dict[str, np.ndarray]:
        """Read the arrays beside the weights of a layer, by their names after its prefix."""
        (scheme, prefix), dtypes = layer, readers.ALL
        with self.open() as source:
            found = [
                name for name, entry in source.entries.items() if name.startswith(prefix) and entry.dtype in dtypes
            ]
            names = {name.removeprefix(prefix): name for name in found}
            pattern = schemes.SCHEMES[scheme].pattern
            return {after: source.read(name, dtypes) for after, name in names.items() if pattern(after)}

    def silent(self, layer: Layer) -> bool:
        """Whether the file has no options of a layer: neither mha's own nor a configuration."""
        with self.open() as source:
            config = None if self.parts else models.beside(source.path, layer[0])
            return not weights.is_own(source) and not (config and config.exists())

    def packings(self, layers: Iterable[Layer]) -> list[str]:
        """List how arrays of these layers are quantised, in words; [] = none is."""
        with self.open() as source:
            if weights.is_own(source):
                return []
            names = [name for layer in layers for name in schemes.layer_names(source.entries, *layer)]
            return list(filter(None, dict.fromkeys(map(source.packing_of, names))))

    def others(self, layers: Iterable[Layer], compared: Iterable[str]) -> tuple[str, ...]:
        """List all arrays that hold no weight of these layers and were not compared."""
        with self.open() as source:
            if weights.is_own(source):
                return ()
            if isinstance(source, RenamedSource):
                names = list(source.source.entries)
                held = {name for _, prefix in layers for name in source.held[prefix.rstrip(".")]}
            else:
                names = list(source.entries)
                held = {name for layer in layers for name in schemes.layer_names(names, *layer)}
        seen = held | set(compared)
        return tuple(name for name in names if name not in seen)


# Files whose layers have names of their own


@dataclasses.dataclass(frozen=True)
class RenamedSource(Source):
    """An open file by the names of scheme "llama", or of "phi3" if they are packed."""

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
    """Stand-ins for the arrays of a file, of the shapes in its header."""

    def __getitem__(self, name: str) -> Any:
        return self.source.entries[name].stand_in(name)


def read_layer(source: Source, arrays: Mapping[str, Any], path: str, parts: Parts) -> LayerArrays:
    """Read the arrays of a layer of a file."""
    return projections.read_arrays(arrays, path, parts, {}, whose=source.path.name, formats=source.format_of)


def rename_source(source: Source, parts: Parts) -> Source:
    """Return a file by the names of a scheme."""
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
