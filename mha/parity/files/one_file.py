"""One of two files that are compared: which layers of attention it has, and what else."""

import dataclasses
import os
import re
from collections.abc import Iterable, Sequence

import numpy as np

from mha import weights
from mha.names import SchemeChoice, SchemeName
from mha.weights import models, readers, said, schemes

Name = str | os.PathLike[str]  # of a file
Layer = tuple[SchemeName, str]  # scheme and prefix


@dataclasses.dataclass(frozen=True)
class File:
    """A file, and the scheme and prefix to look for in it; side: "a" or "b", as in the names of the arguments."""

    side: str
    path: Name
    scheme: SchemeChoice
    prefix: str | None

    def layers(self) -> list[Layer]:
        """List the layers of the scheme, in the order of their prefixes, in which 2 comes before 10."""
        with readers.opened(self.path) as source:
            every = schemes.recognise(source.entries, source.format_of)
        found = [layer for layer in every if schemes.is_meant(self.scheme, layer[0])]
        parts = {layer: re.split(r"(\d+)", layer[1]) for layer in found}
        return sorted(found, key=lambda layer: [int(X) if X.isdigit() else X for X in parts[layer]])

    def chosen(self, prefixes: Sequence[str | None]) -> list[Layer]:
        """Return the layers with these prefixes, None = the only one; errors name the arguments of `compare_files`."""
        names = {name: f"{name}_{self.side}" for name in ("scheme", "prefix")}
        with readers.opened(self.path) as source, said.named(names):
            return [weights.choose(source, self.scheme, prefix) for prefix in prefixes]

    def beside(self, layer: Layer) -> dict[str, np.ndarray]:
        """Read the arrays beside the weights of a layer, by their names after its prefix, those of known dtypes."""
        (scheme, prefix), known = layer, readers.ALL
        with readers.opened(self.path) as source:
            found = [name for name, entry in source.entries.items() if name.startswith(prefix) and entry.dtype in known]
            names = {name.removeprefix(prefix): name for name in found}
            pattern = schemes.SCHEMES[scheme].pattern
            return {after: source.read(name, known) for after, name in names.items() if pattern(after)}

    def silent(self, layer: Layer) -> bool:
        """Whether the file says no options of a layer: it is not of mha, and no configuration of its model is there."""
        with readers.opened(self.path) as source:
            config = models.beside(source.path, layer[0])
            return not weights.is_own(source) and not (config and config.exists())

    def packings(self, layers: Iterable[Layer]) -> list[str]:
        """List how arrays of these layers are quantised, in words; [] = none is."""
        with readers.opened(self.path) as source:
            if weights.is_own(source):
                return []
            names = [name for layer in layers for name in schemes.wanted(source.entries, *layer)]
            return list(filter(None, dict.fromkeys(map(source.packing_of, names))))

    def others(self, layers: Iterable[Layer], compared: Iterable[str]) -> tuple[str, ...]:
        """List all arrays that hold no weight of these layers and have not been compared, from their names alone."""
        with readers.opened(self.path) as source:
            if weights.is_own(source):
                return ()
            names = list(source.entries)
        held = {name for layer in layers for name in schemes.wanted(names, *layer)} | set(compared)
        return tuple(name for name in names if name not in held)
