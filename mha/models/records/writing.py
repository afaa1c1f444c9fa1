"""Record a model: write the arrays that enter and leave each of its modules, call by call."""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mha import arrays
from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.names import BackendName
from mha.models.audit.calls.model_calls import Histories, History, cache_in, cache_state, owner_of
from mha.models.audit.calls.own_layers import OwnLayers, is_array
from mha.models.audit.layers.reference import adapter_of, backend_of, outermost_config, whole_models
from mha.models.records.contents import WEIGHTS, Record
from mha.models.records.storing import CODES, FileStore, MemoryStore
from mha.weights import foreign, own_format

MOST = 8  # arrays of a call of a module
PLAIN = (bool, int, float, str)


@contextlib.contextmanager
def record(
    model: Any, path: str | os.PathLike[str] | None = None, weights: bool = False, *, call: tuple[Any, ...] = ()
) -> Iterator[Record]:
    """Record what enters and leaves every module of a model in the calls inside, to compare it with another model.

    Args:
        model: a model of one of the frameworks.
        path: file to write, array by array; it is at its place when the context ends without an error. None = in
            memory, from where `record.save(path)` writes it.
        weights: whether the arrays of the model are recorded, too, so that its attention can be judged elsewhere.
        call: of a model of Flax's linen, the arguments of one of its calls, `(variables, x)`: its parts are not there
            before.

    Yields:
        A `Record`, which is complete when the context ends.

    The calls run without dropout; the model is as it was afterwards, also if something fails. Then there is no record.

    Raises:
        TypeError: if model is of no known framework.
        FileError (an OSError and a ValueError), OSError: if the file cannot be written.
    """
    backend = backend_of(model)
    checks.flag("weights", weights)
    adapter = adapter_of(backend)
    store = MemoryStore() if path is None else FileStore(path)
    try:
        if not isinstance(call, tuple):
            came = type(call).__name__
            raise TypeError(f"call is a {came}, expected a tuple of the arguments of a call, (variables, x)")
        try:
            target = adapter.prepare(model, call, {})
        except TypeError as error:
            if call:
                raise
            raise TypeError(
                f"model is a {type(model).__name__}, whose parts only a call shows; say the arguments of one: "
                "record(model, path, call=(variables, x))"
            ) from error
        recorder = Recorder(target, backend, adapter, store)
        if weights:
            recorder.weights()
        try:
            with adapter.watching(target, recorder):
                yield recorder.record
        finally:
            recorder.histories.forget()
        finish_record(recorder.record, store)
    except BaseException:
        store.abandon()
        raise


def finish_record(made: Record, store: Any) -> None:
    """Complete a record that is in a store."""
    store.finish(made.metadata)
    if isinstance(store, FileStore):
        made.path, made.said = os.fspath(store.path), os.fspath(store.path)
    made.complete = True


class Recorder:
    """A listener that writes all calls into a record."""

    def __init__(self, model: Any, backend: BackendName, adapter: Any, store: Any) -> None:
        self.model, self.adapter, self.store = model, adapter, store
        modules = adapter.modules(model)
        inside, config = outermost_config(modules)
        self.wholes = whole_models(modules)
        facts = {
            "framework": backend, "version": dispatch.version(dispatch.FRAMEWORKS[backend].needs[0]) or "",
            "model": type(model).__name__, "config": config, "inside": inside, "wholes": sorted(self.wholes),
            "checkpoint": checkpoint_of(modules.get(inside, model)),
        }  # fmt: skip
        descriptions = {path: self.describe_module(path, module) for path, module in modules.items()}
        self.record = Record("a record in memory", facts, descriptions, [], [], store)
        self.numbers = {path: number for number, path in enumerate(descriptions)}
        self.own = OwnLayers(adapter)
        self.inner = self.own.inner
        self.numbers_by_digest: dict[bytes, int] = {}
        self.caches: dict[int, int | None] = {}
        self.histories = Histories(self.note_change)
        self.stack: list[str] = []
        self.began = -1  # the place in the stack of the model whose call counts; -1 = none does
        self.cache: Any = None

    def describe_module(self, path: str, module: Any) -> dict[str, Any]:
        """Describe a module as a record has it."""
        found: dict[str, Any] = {"class": type(module).__name__}
        if why := self.adapter.odd(module):
            found["odd"] = why
        if kind := foreign.layer_kind(module):
            native = found["native"] = {"kind": kind[0] or type(module).__name__}
            try:
                native["config"] = own_format.config_text(foreign.read_layer(module)[0])
            except (TypeError, ValueError) as error:
                native["problem"] = str(error)
        return found

    def weights(self) -> None:
        """Record the arrays of the model, and those of the layers of frameworks by our names."""
        self.record.weights = []
        for name, X in self.adapter.arrays(self.model).items():
            if (array := plain(X)) is not None:
                self.store.add(WEIGHTS + name, array)
                self.record.weights.append(name)
        for path, module in self.adapter.modules(self.model).items():
            if "config" in self.record.modules[path].get("native", {}):
                for name, array in foreign.read_layer(module)[1].items():
                    self.store.add(f"native/{path}/{name}", array)

    def enter(self, path: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the arguments of a module."""
        whole = self.began < 0 and (path in self.wholes if self.wholes else not self.stack)
        if whole or not self.stack:
            arguments = self.adapter.arguments(module, args, kwargs)
            if whole:
                self.began = len(self.stack)
            self.cache, _ = self.histories.of(arguments)
            description = {name: self.argument(name, X) for name, X in arguments.items()}
            self.record.events.append(["whole" if self.stack else "call", description])
        self.stack.append(path)
        if path not in self.numbers:  # made since the context began
            self.numbers[path] = len(self.numbers)
            self.record.modules[path] = self.describe_module(path, module)
        if "native" in self.record.modules[path]:
            self.own.enter(path, module, args, kwargs)
        found = [self.array(X, path, "input") for X in arrays_in((args, kwargs))]
        self.record.events.append(["enter", self.numbers[path], found])

    def leave(self, path: str, output: Any) -> None:
        """Record the output of a module."""
        if path not in self.stack:
            return
        while (left := self.stack.pop()) != path:  # they raised
            self.record.events.append(["leave", self.numbers[left], None])
        if path in self.own.begun and output is not None:
            try:
                found, _ = self.own.leave(path, output)
                description = {name: self.argument(name, X) for name, X in found.items()}
            except (KeyError, TypeError, ValueError) as error:
                description = {"problem": {"value": str(error)}}
            self.record.events.append(["native", self.numbers[path], description])
        made = None if output is None else [self.array(X, path, "output") for X in arrays_in(output)]
        self.record.events.append(["leave", self.numbers[path], made])
        whole = len(self.stack) <= self.began
        self.began = -1 if whole else self.began
        if whole or not self.stack:
            made = cache_in(output)
            used = made if self.cache is None else self.cache
            for cache in (used, made):
                if cache is not None and not isinstance(cache, bool):
                    self.histories.keep(cache, History())
                    self.caches[id(owner_of(cache))] = self.number(used)  # with which it goes on
            self.record.events.append(["over" if self.stack else "ended", self.number(used)])

    def note_pooling(self, function: str, axes: int, path: str | None = None) -> None:
        """Record a softmax or an attention kernel."""
        self.record.events.append(["pooled", function, axes, path])

    def enter_kernel(self, function: str, axes: int, read: Any) -> None:
        """Record that a kernel of attention is called."""
        self.note_pooling(function, axes)

    def leave_kernel(self, call: Any, output: Any) -> None:
        """Take nothing: the arrays of kernels are not recorded."""

    def note_no_numbers(self, path: str, reason: str) -> None:
        """Record that a module was called with arrays whose numbers are not known."""
        if path in self.numbers:
            self.record.events.append(["unknown", self.numbers[path], reason])

    def note_change(self, cache: Any, name: str, given: tuple[Any, ...]) -> None:
        """Record that a method of this name changed a cache between calls."""
        self.record.events.append(["cache", self.number(cache), name, [self.argument(name, X) for X in given]])

    def argument(self, name: str, X: Any) -> dict[str, Any]:
        """Describe an argument: {"value"}, {"array"}, {"several"}, {"cache", "length"} or {"other"}."""
        if X is None or isinstance(X, PLAIN):
            return {"value": X}
        if is_array(X):
            return {"array": self.array(X, "", name)}
        if self.cache is not None and X is self.cache:
            kept = cache_state(X)
            padding = None if kept.padding is None else kept.padding.tolist()
            state = {"padding": padding, "length": kept.length, "most": kept.most, "rounded": kept.rounded or None}
            return {"cache": self.number(X)} | {name: one for name, one in state.items() if one is not None}
        if isinstance(X, Mapping):
            return {"several": {str(key): self.argument(f"{name}.{key}", Y) for key, Y in X.items()}}
        if isinstance(X, (list, tuple)):
            with contextlib.suppress(TypeError, ValueError):
                listed = np.asarray(X)
                if listed.dtype.kind in "biuf":
                    return {"array": self.array(listed, "", name)}
        return {"other": type(X).__name__}

    def number(self, cache: Any) -> int | None:
        """Return the number of a cache in the record; None for none."""
        if cache is None or isinstance(cache, bool):
            return None
        return self.caches.setdefault(id(owner_of(cache)), len(self.caches))

    def array(self, X: Any, path: str, what: str) -> int | None:
        """Return the number of an array, which is stored unless an equal one is; None if it cannot be."""
        array = plain(X)
        if array is None:
            return None
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.view(np.uint8).data if array.size and array.ndim else array.tobytes())
        number = self.numbers_by_digest.setdefault(digest.digest(), len(self.record.names))
        if number == len(self.record.names):
            name = f"{number:06d}.{path or 'model'}.{what}"
            self.store.add(name, array)
            self.record.names.append(name)
        return number


def arrays_in(given: Any, depth: int = 3) -> list[Any]:
    """Return the first arrays in the arguments or the output of a module."""
    if is_array(given):
        return [given]
    parts = given.values() if isinstance(given, Mapping) else given if isinstance(given, (tuple, list)) else ()
    return [X for part in parts if depth for X in arrays_in(part, depth - 1)][:MOST]


def plain(X: Any) -> np.ndarray | None:
    """Return an array as one of NumPy whose numbers lie in order; None if it cannot be stored."""
    try:
        array = checks.plain(arrays.to_numpy(X))
    except (TypeError, ValueError, RuntimeError):
        return None
    return array if checks.dtype_name(array.dtype) in CODES else None


def checkpoint_of(model: Any) -> dict[str, str] | None:
    """Return the name of the checkpoint that a model was read from, and its commit; None if it does not say it."""
    config = getattr(model, "config", None)
    name = getattr(config, "_name_or_path", "") or getattr(config, "name_or_path", "")
    if not isinstance(name, str) or not name:
        return None
    commit = getattr(config, "_commit_hash", None)
    return {"name": name} | ({"commit": str(commit)} if commit else {})
