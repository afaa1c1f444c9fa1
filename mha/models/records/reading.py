"""Read a record: its header is checked before any number is read."""

import contextlib
import os
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mha.models.records.contents import LAYOUT, WEIGHTS, Record
from mha.models.records.storing import FILLER, FORMAT, UNFINISHED, temporary_path
from mha.weights import files, json_text, readers
from mha.weights.readers.safetensors_file import DTYPES

KNOWN = tuple(DTYPES.values())
BEGINNING = 4096  # bytes, in which the metadata begin
EVENTS = {"call": 2, "whole": 2, "enter": 3, "leave": 3, "native": 3, "pooled": 4, "unknown": 3, "cache": 4, "over": 2,
          "ended": 2}  # and their lengths  # fmt: skip


class ArraysInFile:
    """The arrays of a record in an open file."""

    def __init__(self, source: readers.Source) -> None:
        self.source = source

    def read(self, name: str) -> np.ndarray:
        """Return the array of this name."""
        try:
            return self.source.read(name, KNOWN)
        except ValueError as error:
            raise ValueError(f"{self.source.path} {error}") from error

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.source.entries if not name.startswith(FILLER))


@contextlib.contextmanager
def open_record(argument: str, given: Any) -> Iterator[Record]:
    """Open a record: a path, or one of this process; errors as for `compare_records`."""
    if isinstance(given, Record):
        if not given.complete:
            raise ValueError(f"{argument} is a record that is not complete: use it when its context has ended")
        if given.path is None:
            yield given
            return
        given = given.path
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"{argument} is a {type(given).__name__}, expected the path of a record, or a record")
    require_whole(given)
    problem = None
    with readers.open_weights(given) as source:
        made = parse_record(source)
        try:
            yield made
        except Exception as error:  # it is not the file's, whose path would be put before it
            problem = error
    if problem is not None:
        raise problem


def require_whole(path: Any) -> None:
    """Raise FileError if the run that writes this record has not ended."""
    beside = temporary_path(path)
    left = f" ({beside.name} is what it left)" if beside.exists() else None
    if left is None:
        with contextlib.suppress(FileNotFoundError), files.open_file(path) as file:
            left = "" if f'"layout":"{UNFINISHED}"'.encode() in file.read(BEGINNING) else None
    if left is not None:
        said = "is not whole: the run that records it was killed, or has not ended; record it again"
        raise files.FileError(f"{os.fspath(path)} {said}{left}")


def is_record(path: Any) -> bool:
    """Whether a path is that of a record, whole or not, by its metadata."""
    if temporary_path(path).exists():
        return True
    if os.path.isdir(path):
        return False
    try:
        with files.open_file(path) as file:
            return f'"format":"{FORMAT}"'.encode() in file.read(BEGINNING)
    except (OSError, TypeError):
        return False


def parse_record(source: readers.Source) -> Record:
    """Return the record in an open file."""
    if (form := source.metadata.get("format")) != FORMAT:
        raise ValueError(f"is no record: its metadata has format {reprlib.repr(form)}, expected {FORMAT!r}")
    if (layout := source.metadata.get("layout")) != LAYOUT:
        raise ValueError(
            f"has layout {reprlib.repr(layout)}, expected {LAYOUT!r}; if another version of mha wrote it, use that one"
        )
    try:
        if missing := [name for name in ("facts", "modules", "events") if name not in source.metadata]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        facts, modules = json_text.parse(source.metadata["facts"]), json_text.parse(source.metadata["modules"])
        events = json_text.parse(f'{{"events":{source.metadata["events"]}}}')["events"]
        names = [name for name in source.entries if name[:1].isdigit()]
        check_metadata(facts, modules, events, len(names))
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise ValueError(f"is a damaged record: {error}") from error
    own = [name.removeprefix(WEIGHTS) for name in source.entries if name.startswith(WEIGHTS)]
    path = os.fspath(source.path)
    return Record(Path(path).name, facts, modules, events, names, ArraysInFile(source), own or None, path, True)


def check_metadata(facts: Any, modules: Any, events: Any, count: int) -> None:
    """Raise ValueError if the metadata of a record do not fit each other or its arrays."""
    for name in ("framework", "version", "model", "config", "inside", "wholes"):
        if name not in facts:
            raise ValueError(f"nothing says its {name}")
    if not isinstance(modules, dict) or not all(isinstance(one.get("class"), str) for one in modules.values()):
        raise ValueError("its modules are not described")
    depth, called = 0, False
    for event in events:
        kind, *_ = event
        if EVENTS.get(kind) != len(event):
            raise ValueError(f"it has the event {reprlib.repr(event)}")
        if kind in ("enter", "leave", "native", "unknown") and not 0 <= event[1] < len(modules):
            raise ValueError(f"it has no module {event[1]}, of which an event says something")
        if kind in ("enter", "leave") and any(X is not None and not 0 <= X < count for X in event[2] or ()):
            raise ValueError(f"it has no array of a number in {reprlib.repr(event)}")
        depth += (kind == "enter") - (kind == "leave")
        within = called == (kind != "call") or kind in ("pooled", "unknown", "cache")
        if depth < 0 or not within or (depth and kind in ("call", "ended")):
            raise ValueError("its events are in no order in which they can have happened")
        called = kind == "call" or (called and kind != "ended")
