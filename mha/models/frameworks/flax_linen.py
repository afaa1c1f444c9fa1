"""Find the modules and arrays of a model of Flax's linen, which only a call shows.

Layers of a stack, as nn.scan makes it, have a path each, with their number: "layers.0.attention".
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import linen

from mha.weights import foreign


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
