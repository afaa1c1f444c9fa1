"""Tell a listener of the calls of Flax modules: of each whose numbers are known, and at the end of the others."""

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from flax import linen, nnx

from mha.models.audit.calls.listener import Listener, arguments_by_name
from mha.models.audit.calls.own_layers import Arguments, kind_in
from mha.models.frameworks.flax_linen import LinenModel, params_of

CALLS = {
    linen.MultiHeadDotProductAttention: Arguments(
        ("inputs_q", "inputs_k", "inputs_v", "inputs_kv", "mask"), ("deterministic", "dropout_rng", "sow_weights")
    ),
    nnx.MultiHeadAttention: Arguments(
        ("inputs_q", "inputs_k", "inputs_v", "mask", "is_causal", "decode"),
        ("deterministic", "rngs", "sow_weights", "out_sharding", "qkv_sharding"),
    ),
}
OWN = tuple(CALLS)
TRACED = "it is called inside a transformation of JAX, such as vmap or grad, where numbers are not known"


class Watcher:
    """The source of a listener's calls; modules: those of the model, by their paths."""

    def __init__(self, model: Any, modules: dict[str, Any], listener: Listener) -> None:
        self.model, self.listener = model, listener
        self.modules = modules
        self.seen: set[str] = set()
        self.traced: dict[str, tuple[str, int] | None] = {}
        self.inside: list[str] = []  # the paths of modules that are called without numbers
        self.steps: dict[tuple[str, ...], list[int]] = {}
        self.copies: dict[type, tuple[str, int] | None] = {}
        self.copied: list[type] = []
        self.active: set[int] = set()
        self.paths = {id(module): path for path, module in reversed(modules.items())}
        self.by_arrays = (
            {} if isinstance(model, LinenModel) else {_ids(X): path for path, X in reversed(modules.items())}
        )

    def linen(self, run: Any, args: Any, kwargs: Any, context: Any) -> Any:
        """Tell of a call of a module of linen, as an interceptor of Flax."""
        module = context.module
        if isinstance(module, linen.Dropout):
            return args[0]
        if context.method_name == "setup" or (context.method_name != "__call__" and self.seen):
            return run(*args, **kwargs)
        return self.once(module, lambda: self.path(module), run, args, kwargs)

    def path(self, module: Any) -> list[str]:
        """Return the path of a module; those of all layers of a stack where numbers are not known."""
        path, whole = module.path, self.model
        root = whole.root(path)
        if root is None or (path == root and not whole.is_slice(module)):
            self.steps.pop(path, None)
            return [".".join(path)]
        if _has_tracers(params_of(module)):
            return [whole.name(path, root, at) for at in range(whole.length(root))]
        steps = self.steps.setdefault(root, [])
        if path == root:
            steps.append(whole.step(root, module, steps))
        return [whole.name(path, root, steps[-1] if steps else 0)]

    def nnx(self, module: Any, run: Any, args: Any, kwargs: Any) -> Any:
        """Tell of a call of a module of nnx that is one of the model's, or a copy as nnx.jit makes it."""
        if isinstance(module, nnx.Dropout):
            return args[0]
        path = self.paths.get(id(module), self.by_arrays.get(_ids(module)))
        if path is None and not _ids(module)[1:]:
            return run(module, *args, **kwargs)
        if path is None:
            self.copies.setdefault(type(module), None)
            self.copied.append(type(module))
            try:
                return run(module, *args, **kwargs)
            finally:
                self.copied.pop()
        return self.once(module, lambda: [path], functools.partial(run, module), args, kwargs)

    def once(self, module: Any, paths: Any, run: Any, args: Any, kwargs: Any) -> Any:
        """Run a call, and tell of it unless it is its base's, called by its class; paths: returns the paths."""
        if id(module) in self.active:
            self.listener.inner(module, arguments_by_name(run, args, kwargs))
            return run(*args, **kwargs)
        self.active.add(id(module))
        try:
            with _without_dropout(module):
                return self.tell(paths(), module, run, args, kwargs)
        finally:
            self.active.discard(id(module))

    def tell(self, paths: list[str], module: Any, run: Any, args: Any, kwargs: Any) -> Any:
        """Run a call, and tell of it if its numbers are known."""
        if len(paths) > 1 or _has_tracers((args, kwargs)):
            self.traced |= {path: self.traced.get(path) for path in paths}
            self.inside.extend(paths)
            try:
                return run(*args, **kwargs)
            finally:
                del self.inside[len(self.inside) - len(paths) :]
        (path,) = paths
        self.seen.add(path)
        self.listener.enter(path, module, args, kwargs)
        if _inherits(module):
            self.listener.inner(module, arguments_by_name(run, args, kwargs))
        output = None
        try:
            output = run(*args, **kwargs)
        finally:
            instead = self.listener.leave(path, output)
        return output if instead is None else instead

    def note_pooling(self, name: str, run: Any, *args: Any, **kwargs: Any) -> Any:
        """Tell of a softmax or a fused kernel."""
        X = args[0] if args else next(iter(kwargs.values()))
        if self.copied:
            self.copies[self.copied[-1]] = name, np.ndim(X)
        elif not _has_tracers(X):
            self.listener.note_pooling(name, np.ndim(X))
        elif self.inside:
            self.traced[self.inside[-1]] = name, np.ndim(X)
        return run(*args, **kwargs)

    def finish(self) -> None:
        """Tell of the modules whose numbers were never known."""
        left = {path: type(module) for path, module in self.modules.items() if path not in self.seen}
        for path, kind in left.items():
            if path in self.traced or kind in self.copies:
                self.listener.note_no_numbers(path, TRACED)
                if found := self.traced.get(path) or self.copies.get(kind):
                    self.listener.note_pooling(*found, path)


@contextlib.contextmanager
def _without_dropout(module: Any) -> Iterator[None]:
    """Let an attention layer drop no weights meanwhile; modules of linen are frozen."""
    kept = getattr(module, "dropout_rate", None)
    if isinstance(module, OWN):
        object.__setattr__(module, "dropout_rate", 0.0)
    try:
        yield
    finally:
        if isinstance(module, OWN):
            object.__setattr__(module, "dropout_rate", kept)


def _inherits(module: Any) -> bool:
    """Whether a module's own call is that of a framework's layer, also while it is watched."""
    runs, kind = inspect.unwrap(type(module).__call__), kind_in(module, CALLS)
    return kind is not None and runs is inspect.unwrap(kind.__call__)


def _has_tracers(tree: Any) -> bool:
    """Whether an array in a tree has no numbers, since it is inside a transformation."""
    return any(isinstance(X, jax.core.Tracer) for X in jax.tree.leaves(tree))


def _ids(module: Any) -> tuple[Any, ...]:
    """Return the class and the arrays' ids of a module of nnx, which are those of its copies inside nnx.jit, too."""
    return type(module), *(id(X) for X in jax.tree.leaves(nnx.state(module, nnx.Param)))
