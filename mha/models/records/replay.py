"""Judge the attention layers of a record: play its calls once more to what watches models."""

import contextlib
import json
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mha.models.audit.audit_report import AuditReport
from mha.models.audit.calls.model_calls import CHANGES, CacheState
from mha.models.audit.layers.attention_layer import RecordedModule
from mha.models.audit.watching import Watch
from mha.models.records.contents import WEIGHTS, Record
from mha.models.records.reading import open_record
from mha.weights import own_format

Progress = Callable[[list[Any]], Any]


def audit_record(record: Any, like: Any = None, layers: Any = None, *, track: Progress = iter) -> AuditReport:
    """Judge each attention layer of a recorded model, as `audit` judges those of a model.

    Args:
        record: the path of a record, or a record.
        like, layers: as for `audit`; without like, the record has to have the weights of its model.
        track: goes through the events as they are judged, and may show the progress.

    Returns:
        An `AuditReport`; its `mended` is None, since a record cannot be called again.

    Raises:
        ValueError: if nothing says what the weights should be, or if no attention layer is known.
        TypeError, ValueError, OSError: as `compare_records` for a record, and as `audit`.
    """
    with open_record("record", record) as source:
        if like is None and source.weights is None:
            raise ValueError(
                f"{source.said} has no weights, expected some to judge it by: record it with weights=True, or say with "
                "like= which weights it should have"
            )
        return judge_record(source, like, layers, track)


def judge_record(source: Record, like: Any, layers: Any, track: Progress = iter) -> AuditReport:
    """Judge the attention layers of an open record; see `audit_record`."""
    adapter = RecordAdapter(source)
    calls = sum(event[0] == "call" for event in source.events)
    once: Any = ((), {}) if calls == 1 else None
    watching = Watch(adapter.model, like, layers, once=once, adapter=adapter, backend=source.facts["framework"])
    with watching.open() as report:
        adapter.play(track)
    return report


class RecordedWeights(Mapping[str, Any]):
    """The arrays of the recorded model; each is read when it is asked for."""

    def __init__(self, source: Record) -> None:
        self.source = source

    def __getitem__(self, name: str) -> np.ndarray:
        return self.source.arrays.read(WEIGHTS + name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.source.weights or ())

    def __len__(self) -> int:
        return len(self.source.weights or ())


class RecordedCache:
    """A cache of a recorded call, of which only its state is known."""

    kept = CacheState()

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name in CHANGES:
            return lambda *args: None  # what follows the changes of a cache replaces it
        raise AttributeError(name)


class RecordAdapter:
    """The adapter of a record, which plays the recorded calls to a listener."""

    def __init__(self, source: Record) -> None:
        self.source = source
        self.model = type(source.facts["model"], (), {})()
        self.played = {path: self.module(path, description) for path, description in source.modules.items()}
        self.caches: dict[int, RecordedCache] = {}
        self.session: Any = None

    def module(self, path: str, description: Mapping[str, Any]) -> Any:
        """Return a stand-in for a module."""
        made = type(description["class"], (RecordedModule,), {})()
        made.odd = description.get("odd", "")
        facts, whole = self.source.facts, path in self.source.facts["wholes"]
        if facts["config"] is not None and (whole or path == facts["inside"]):
            made.config = types.SimpleNamespace(to_json_string=lambda: json.dumps(facts["config"]))
        if whole:
            made.save_pretrained = None  # by which models of transformers are known
        if own := description.get("native"):
            made.native = own["kind"]
            made.take = lambda: self.read_layer(path, own)
        return made

    def read_layer(self, path: str, description: Mapping[str, Any]) -> tuple[Any, dict[str, np.ndarray]]:
        """Return the configuration and the weights of a framework's own layer, {} if not recorded."""
        if "problem" in description:
            raise ValueError(description["problem"])
        names = [name for name in self.source.arrays if name.startswith(f"native/{path}/")]
        weights = {name.removeprefix(f"native/{path}/"): self.source.arrays.read(name) for name in names}
        return own_format.parse_config(description["config"]), weights

    def prepare(self, model: Any, args: Any, kwargs: Any) -> Any:
        """Return the model as it is."""
        return model

    def modules(self, model: Any) -> dict[str, Any]:
        """Return the stand-ins for the modules."""
        return self.played

    def arrays(self, model: Any) -> Mapping[str, Any]:
        """Return the arrays of the model."""
        return RecordedWeights(self.source)

    def odd(self, module: Any) -> str:
        """Say why the weights of a projection are not plain arrays; "" if they are."""
        return module.odd

    def arguments(self, module: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name."""
        return dict(kwargs)

    @contextlib.contextmanager
    def watching(self, model: Any, listener: Any) -> Iterator[None]:
        """Remember the listener."""
        self.session = listener
        yield

    def play(self, track: Progress) -> None:
        """Tell the listener all events."""
        paths, events = list(self.played), self.source.events
        natives, stack = dict[int, Any](), list[int]()  # calls of own layers, by the event that begins each
        for at, event in enumerate(events):
            if event[0] == "enter":
                stack.append(at)
            elif event[0] == "leave":
                stack.pop()
            elif event[0] == "native":
                natives[stack[-1]] = event[2]
        arguments = None
        for at, event in enumerate(track(events)):
            kind = event[0]
            if kind in ("call", "whole"):
                arguments = {name: self.read_argument(X) for name, X in event[1].items()}
            elif kind == "enter":
                own = {name: self.read_argument(X) for name, X in natives.get(at, {}).items()}
                given = own if arguments is None else arguments
                self.session.enter(paths[event[1]], self.played[paths[event[1]]], self.first(event[2]), given)
                arguments = None
            elif kind == "leave":
                output: Any = None if event[2] is None else next(iter(self.first(event[2])), None)
                after, cache = (*events[at + 1], None)[:2] if at + 1 < len(events) else ("", None)
                if after in ("over", "ended") and cache is not None and event[2] is not None:
                    output = {"past_key_values": self.cache(cache)}
                self.session.leave(paths[event[1]], output)
            elif kind == "pooled":
                self.session.note_pooling(*event[1:])
            elif kind == "unknown":
                self.session.note_no_numbers(paths[event[1]], event[2])
            elif kind == "cache":
                getattr(self.cache(event[1]), event[2])(*[self.read_argument(X) for X in event[3]])

    def first(self, numbers: list[int | None]) -> tuple[np.ndarray, ...]:
        """Return the first array of an event, in a tuple; () without one."""
        return () if not numbers or numbers[0] is None else (self.source.array(numbers[0]),)

    def cache(self, number: int) -> RecordedCache:
        """Return the stand-in for a cache."""
        return self.caches.setdefault(number, RecordedCache())

    def read_argument(self, description: Mapping[str, Any]) -> Any:
        """Return a recorded argument."""
        if "array" in description:
            return None if description["array"] is None else self.source.array(description["array"])
        if "several" in description:
            return {name: self.read_argument(X) for name, X in description["several"].items()}
        if "cache" in description:
            cache = self.cache(description["cache"])
            padding = description.get("padding")
            cache.kept = CacheState(
                description.get("length"), None if padding is None else np.asarray(padding), description.get("most"),
                description.get("rounded", False),
            )  # fmt: skip
            return cache
        return description.get("value")
