"""Read a checkpoint in several safetensors files, its shards, by the index that says which array lies in which.

Only the shards that have the arrays which are asked for are opened.

Source: how transformers and huggingface_hub write `model.safetensors.index.json`.
"""

import functools
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np

from mha.weights import files, json_text
from mha.weights.readers import foreign, safetensors_file
from mha.weights.readers.source import FLOATS, Lazy, Source

LIMIT = 100_000_000  # bytes of an index; that of a large model has 10 million


class Shards(Source):
    """An open index, whose shards are opened when they are needed; places: the shard of each array."""

    def __init__(self, path: Path, places: Mapping[str, str], stack: ExitStack) -> None:
        super().__init__(path, Lazy(places, lambda name: self._shard_of(name).entries[name]), {})
        self.places, self.stack = places, stack
        self.open_shard = functools.cache(self._open_shard)

    def read(self, name: str, dtypes: Sequence[str] = FLOATS) -> np.ndarray:
        """Read the array of this name out of its shard; it is read-only. See `Source.read`."""
        return self._shard_of(name).read(name, dtypes)

    def format_of(self, name: str) -> str:
        """Return the format that the shard of this array says; see `Source.format_of`."""
        return self._shard_of(name).format_of(name)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The index and its shards."""
        return (self.path, *(self.path.parent / shard for shard in dict.fromkeys(self.places.values())))

    def _shard_of(self, name: str) -> safetensors_file.SafetensorsFile:
        return self.open_shard(self.places[name])

    def _open_shard(self, shard: str) -> safetensors_file.SafetensorsFile:
        """Open a shard, and check that it has what the index says, and no more."""
        path = self.path.parent / shard
        try:
            file = self.stack.enter_context(files.open_file(path))
            found = safetensors_file.read(path, file, self.stack)
        except FileNotFoundError as error:
            raise ValueError(f"has a shard {shard} in its index, which is not there") from error
        except OSError as error:
            raise ValueError(f"has a shard {shard}, which cannot be read: {error}") from error
        except ValueError as error:
            raise ValueError(f"has a shard {shard}, which {error}") from error
        for name, place in self.places.items():
            if place == shard and name not in found.entries:
                raise ValueError(f"has a shard {shard}, which lacks {name}, expected it there as the index says")
        for name in found.entries:
            if (owner := self.places.get(name)) != shard:
                expected = f"it in {owner} alone" if owner else "it in the index, too"
                raise ValueError(f"has a shard {shard}, which has {name}, expected {expected}")
        return found


def read(path: Path, file: BinaryIO, stack: ExitStack) -> Shards:
    """Read an index, all of whose files must be in its folder; no shard is opened yet. stack: closes the shards."""
    data = file.read(LIMIT + 1)
    try:
        if len(data) > LIMIT:
            raise ValueError(f"it has more than {LIMIT} bytes")
        places = json_text.parse(data.decode()).get("weight_map")
        if not isinstance(places, dict):
            raise ValueError("it is JSON without a weight_map")
        for name, shard in places.items():
            if not _is_inside(shard):
                raise ValueError(f"it places {name} in {reprlib.repr(shard)}, expected a file in its own folder")
    except ValueError as error:
        raise ValueError(f"is not the index of a checkpoint in shards: {error}") from error
    foreign.refuse_shards(path, places.values())
    return Shards(path, places, stack)


def _is_inside(shard: object) -> bool:
    """Whether a shard is the path of a file in the folder of its index, or further inside."""
    if not isinstance(shard, str) or not shard.isprintable() or shard.endswith("/"):
        return False
    path = PurePosixPath(shard)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts
