"""The contents of a record: the facts of a model, its modules, the events of its calls in order, and arrays.

An event is a list, so that JSON has it: its kind, and then, by kind,
    "call": the arguments of the model by name
    "ended": the cache that the call used or made
    "whole": the arguments of a model inside of another one
    "over": the cache of its call
    "enter": the number of a module, its arrays
    "leave": the number of a module, its arrays, None = it failed
    "native": the number of a module, the call of a framework's own layer of attention by our names
    "pooled": a function, the axes of its input, and the path of a module, None = the one that is being called
    "unknown": the number of a module, why a call of it is not known
    "cache": a cache, and the name and the arguments of the method that changed it
Arrays are numbers of those that are stored; for an argument, which is a dict, see `writing.Recorder.argument`.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from mha.models.records.storing import FORMAT, FileStore

LAYOUT = "1"
WEIGHTS = "weights/"  # before the names of weights in a file


@dataclasses.dataclass(frozen=True)
class Visit:
    """One call of a module."""

    path: str
    number: int  # how many times it was called before in this call of the model
    entered: int  # the number of an event, as `left`
    left: int
    inputs: tuple[int | None, ...]  # numbers of arrays, as `outputs`; None = one that cannot be stored
    outputs: tuple[int | None, ...]
    parent: str | None  # the path of the module that called it, None for the model
    leaf: bool  # whether it called no other one

    @property
    def firsts(self) -> list[int]:
        """The numbers of its first input and output, as far as they are stored."""
        return [numbers[0] for numbers in (self.inputs, self.outputs) if numbers and numbers[0] is not None]


@dataclasses.dataclass(frozen=True)
class RecordedCall:
    """One call of the model; number: from 1 on; cache: that of the one that it used or made."""

    number: int
    arguments: Mapping[str, Any]
    cache: int | None
    visits: tuple[Visit, ...]


@dataclasses.dataclass(repr=False, eq=False)
class Record:
    """The record of a model.

    Attributes:
        said: where it is, in words.
        facts: "framework", "version", "model" (its class), "config", of the part at the path "inside", "wholes" (the
            paths of models in it), and "checkpoint": the "name" or path that the configuration says, and the "commit"
            of a model of the hub, but nothing of the contents of files; None without a name.
        modules: by path, the "class" of a module, and of some "odd" and "native".
        events: of all calls, in order.
        names: of the arrays, by their numbers.
        arrays: the store that has them.
        weights: the names of the model's arrays, None = they were not recorded.
        path: of its file, None = it is in memory.
        complete: whether its context has ended.
    """

    said: str
    facts: dict[str, Any]
    modules: dict[str, dict[str, Any]]
    events: list[list[Any]]
    names: list[str]
    arrays: Any
    weights: list[str] | None = None
    path: str | None = None
    complete: bool = False

    def array(self, number: int) -> np.ndarray:
        """Return a recorded array."""
        return self.arrays.read(self.names[number])

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        """The calls of the model; one that failed has the visits that ended."""
        paths, found = list(self.modules), list[RecordedCall]()
        arguments: Mapping[str, Any] = {}
        visits: list[Visit] = []
        counts: dict[str, int] = {}
        stack: list[tuple[int, list[Any], bool]] = []  # of modules that are called: event, and whether a leaf
        for at, event in enumerate(self.events):
            kind = event[0]
            if kind == "call":
                arguments, visits, counts, stack = event[1], [], {}, []
            elif kind == "enter":
                if stack:
                    stack[-1] = (*stack[-1][:2], False)
                stack.append((at, event, True))
            elif kind == "leave":
                entered, began, leaf = stack.pop()
                path = paths[event[1]]
                count = counts[path] = counts.get(path, -1) + 1
                if event[2] is not None:
                    parent = paths[stack[-1][1][1]] if stack else None
                    visits.append(Visit(path, count, entered, at, tuple(began[2]), tuple(event[2]), parent, leaf))
            elif kind == "ended":
                in_order = tuple(sorted(visits, key=lambda one: one.entered))
                found.append(RecordedCall(len(found) + 1, arguments, event[1], in_order))
        return tuple(found)

    @property
    def metadata(self) -> dict[str, str]:
        """The texts in the header of its file."""
        texts = {"facts": self.facts, "modules": self.modules, "events": self.events}
        return {"format": FORMAT, "layout": LAYOUT} | {name: json.dumps(X) for name, X in texts.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a record that is in memory to a file, which `compare_records` and `mha audit` read.

        A file that is there stays until all of the new one is written. Raises ValueError if the record is not
        complete, or in a file already, FileError (an OSError and a ValueError) if something other than a regular file
        is there, and OSError if it cannot be written.
        """
        if not self.complete:
            raise ValueError("the record is not complete: save it when its context has ended")
        if self.path is not None:
            raise ValueError(f"the record is in {self.path} already; copy that file")
        store = FileStore(path)
        try:
            for name in self.arrays:
                store.add(name, self.arrays.read(name))
            store.finish(self.metadata)
        except BaseException:
            store.abandon()
            raise

    def __repr__(self) -> str:
        calls = sum(event[0] == "call" for event in self.events)
        return (
            f"<record of {self.facts['model']}, {self.facts['framework']} {self.facts['version']}: {calls} calls, "
            f"{len(self.modules)} modules, {len(self.names)} arrays>"
        )
