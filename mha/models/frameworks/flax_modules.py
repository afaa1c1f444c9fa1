"""Find the modules of a model of Flax's linen, which only a call shows; and tell a listener of calls of Flax modules.

Layers of a stack, as nn.scan makes it, have a path each, with their number: "layers.0.attention".
"""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import linen, nnx

from mha.models.audit.calls.listener import Listener, arguments_by_name, listen_to_kernel
from mha.models.audit.calls.own_layers import Arguments, kind_in
from mha.weights import foreign

CALLS = {
    linen.MultiHeadDotProductAttention: Arguments(
        ("inputs_q", "inputs_k", "inputs_v", "inputs_kv", "mask"), ("deterministic", "dropout_rng", "sow_weights")
    ),
    nnx.MultiHeadAttention: Arguments(
        ("inputs_q", "inputs_k", "inputs_v", "mask", "is_causal", "decode"),
        ("deterministic", "rngs", "sow_weights", "out_sharding", "qkv_sharding"),
    ),
}
TRACED = "it is called inside a transformation of JAX, such as vmap or grad, where numbers are not known"


class LinenModel:
    """A module of linen with its modules and arrays, as a call shows them; layers of nn.scan's stacks are apart.

    stacks: by the path of a stack, the arrays in it, by name, whose first axis goes through its layers.
    """

    def __init__(self, model: Any, variables: Mapping[str, Any]) -> None:
        self.model, self.config = model, getattr(model, "config", None)
        self.params = linen.meta.unbox(variables).get("params", {})
        self.stacks: dict[tuple[str, ...], dict[str, Any]] = {}
        self.modules: dict[str, Any] = {}
        self.inner: list[tuple[tuple[str, ...], Any]] = []

    def note(self, run: Any, args: Any, kwargs: Any, context: Any) -> Any:
        """Note a module that is called, as an interceptor of Flax."""
        module = context.module
        if context.method_name != "setup":
            path = module.path
            if self.is_slice(module) and not any(path[: len(root)] == root for root in self.stacks):
                self.stacks[path] = stack_arrays(self.inside(path), foreign.flatten_names(params_of(module)))
            without = {"dropout_rate": 0.0} if hasattr(module, "dropout_rate") else {}  # which is not judged
            self.inner.append((path, module.clone(parent=None, name=None, **without)))
        return run(*args, **kwargs)

    def inside(self, path: tuple[str, ...]) -> Mapping[str, Any]:
        """Return the arrays of the module at a path."""
        found: Any = self.params
        for name in path:
            found = found.get(name, {}) if isinstance(found, Mapping) else {}
        return found if isinstance(found, Mapping) else {}

    def is_slice(self, module: Any) -> bool:
        """Whether a module sees arrays with one axis less than the model has."""
        own = foreign.flatten_names(params_of(module))
        whole = foreign.flatten_names(self.inside(module.path))
        return any(name in whole and np.ndim(whole[name]) == np.ndim(X) + 1 for name, X in own.items())

    def finish(self) -> None:
        """Bind the noted modules to their arrays, those of a stack once for each of its layers."""
        for path, module in self.inner:
            root = self.root(path)
            for at in [None] if root is None else range(self.length(root)):
                name = self.name(path, root, at)
                if name not in self.modules:
                    tree = self.inside(path) if root is None else nest_arrays(self.stacks[root], at, path[len(root) :])
                    self.modules[name] = module.bind({"params": tree})
        self.modules.setdefault("", self.model)

    def root(self, path: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the path of the stack that a path is in; None if it is in none."""
        return next((root for root in self.stacks if path[: len(root)] == root), None)

    def length(self, root: tuple[str, ...]) -> int:
        """Return the number of layers in a stack."""
        return len(next(iter(self.stacks[root].values())))

    def name(self, path: tuple[str, ...], root: tuple[str, ...] | None, at: Any) -> str:
        """Return the path of a module, with the number of its layer after the path of the stack."""
        return ".".join(path if root is None else (*root, str(at), *path[len(root) :]))

    def arrays(self) -> dict[str, Any]:
        """Return the arrays by name, those of stacks layer by layer."""
        found = {}
        for name, X in foreign.flatten_names(self.params).items():
            if not any(name.startswith(".".join(root) + ".") for root in self.stacks):
                found[name] = X
        for root in self.stacks:
            for at in range(self.length(root)):
                begin = ".".join((*root, str(at)))
                found |= {f"{begin}.{name}": X[at] for name, X in self.stacks[root].items()}
        return found

    def step(self, root: tuple[str, ...], module: Any, used: list[int]) -> int:
        """Return the number of a stack's layer by its arrays; of equal ones, the first unused."""
        own = {name: np.asarray(X) for name, X in foreign.flatten_names(params_of(module)).items()}
        every = [at for at in range(self.length(root)) if at not in used] or list(range(self.length(root)))
        for at in every:
            if all(np.array_equal(own[name], X[at]) for name, X in self.stacks[root].items() if name in own):
                return at
        return every[0]


def params_of(module: Any) -> Any:
    """Return the arrays that a bound module of linen sees, nested, without boxes around them."""
    return linen.meta.unbox(module.variables).get("params", {})


def stack_arrays(whole: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of a stack, the axis of its layers in front; own: those of one layer."""
    found = {}
    for name, X in foreign.flatten_names(whole).items():
        if name in own and np.ndim(X) == np.ndim(own[name]) + 1:
            fits = [at for at in range(np.ndim(X)) if X.shape[:at] + X.shape[at + 1 :] == own[name].shape]
            found[name] = np.moveaxis(np.asarray(X), fits[0] if fits else 0, 0)
    return found


def nest_arrays(stack: Mapping[str, Any], at: Any, path: tuple[str, ...]) -> dict[str, Any]:
    """Return the arrays at a path in one layer of a stack, nested again."""
    tree: dict[str, Any] = {}
    for name, X in stack.items():
        *outer, last = name.split(".")
        if tuple(outer[: len(path)]) == path:
            place = tree
            for part in outer[len(path) :]:
                place = place.setdefault(part, {})
            place[last] = X[at]
    return tree


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
        """Return the path of a module; where numbers are not known, of all layers of a stack."""
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

    def listening_call(self, run: Any) -> Any:
        """Return a class's method that is called, which tells of it."""
        return functools.wraps(run)(lambda module, *args, **kwargs: self.nnx(module, run, args, kwargs))

    def nnx(self, module: Any, run: Any, args: Any, kwargs: Any) -> Any:
        """Tell of a call of one of the model's modules, or of a copy as nnx.jit makes it."""
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
        """Run a call, and tell of it unless its own class calls its base's."""
        if id(module) in self.active:
            self.listener.inner(module, arguments_by_name(run, args, kwargs))
            return run(*args, **kwargs)
        self.active.add(id(module))
        rate, drops = getattr(module, "dropout_rate", None), isinstance(module, tuple(CALLS))
        if drops:  # which is not judged; modules of linen are frozen
            object.__setattr__(module, "dropout_rate", 0.0)
        try:
            return self.tell(paths(), module, run, args, kwargs)
        finally:
            self.active.discard(id(module))
            if drops:
                object.__setattr__(module, "dropout_rate", rate)

    def tell(self, paths: list[str], module: Any, run: Any, args: Any, kwargs: Any) -> Any:
        """Run a call, and tell of it if its numbers are known."""
        if len(paths) > 1 or _has_tracers((args, kwargs)):
            self.traced |= {path: self.traced.get(path) for path in paths}
            self.inside.extend(paths)
            try:
                return run(*args, **kwargs)
            finally:
                del self.inside[len(self.inside) - len(paths) :]
        (path,), kind = paths, kind_in(module, CALLS)
        self.seen.add(path)
        self.listener.enter(path, module, args, kwargs)
        # A class that inherits the framework's call has no other one inside, also while it is watched.
        if kind is not None and inspect.unwrap(type(module).__call__) is inspect.unwrap(kind.__call__):
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

    def kernel(self, run: Any, read: Any, *args: Any, **kwargs: Any) -> Any:
        """Tell of a call of a kernel of attention, as a softmax if its numbers are not known."""
        if self.copied or _has_tracers((args, kwargs)):
            return self.note_pooling(run.__name__, run, *args, **kwargs)
        return listen_to_kernel(run, read, self.listener)(*args, **kwargs)

    def finish(self) -> None:
        """Tell of the modules whose numbers were never known."""
        left = {path: type(module) for path, module in self.modules.items() if path not in self.seen}
        for path, kind in left.items():
            if path in self.traced or kind in self.copies:
                self.listener.note_no_numbers(path, TRACED)
                if found := self.traced.get(path) or self.copies.get(kind):
                    self.listener.note_pooling(*found, path)


def _has_tracers(tree: Any) -> bool:
    """Whether an array in a tree has no numbers, since it is inside a transformation."""
    return any(isinstance(X, jax.core.Tracer) for X in jax.tree.leaves(tree))


def _ids(module: Any) -> tuple[Any, ...]:
    """Return the class and the arrays' ids of a module of nnx, also of its copies in nnx.jit."""
    return type(module), *(id(X) for X in jax.tree.leaves(nnx.state(module, nnx.Param)))
