"""Adapt models of MLX: tell a listener of the arrays that enter and leave their modules.

A module is watched by a class of its own: it has no hooks, and an attribute that is set on it may become a parameter.
Arrays are lazy: reading one computes it.
"""

import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten

from mha import arrays as of_any
from mha.backends.mlx.arrays import is_known
from mha.models.audit.calls.kernel_call import LOW, hide_or_add
from mha.models.audit.calls.listener import (
    Listener,
    arguments_by_name,
    listen_to_bases,
    listen_to_kernel,
    replace_attribute,
    why_not_plain,
)
from mha.models.audit.calls.own_layers import Arguments
from mha.parity.rule.kernel_call import LOWER_RIGHT

# Functions that make attention weights, and the kernel of attention; what MLX compiles calls them, too.
SOFTMAX = mx, "softmax"
KERNEL = mx.fast, "scaled_dot_product_attention"
DROPOUT = (nn.Dropout, nn.Dropout2d, nn.Dropout3d)
SHARDED = (
    nn.AllToShardedLinear, nn.ShardedToAllLinear, nn.QuantizedAllToShardedLinear, nn.QuantizedShardedToAllLinear,
)  # fmt: skip
PLAIN = "weight", "bias"  # all that a projection has
CALLS = {nn.MultiHeadAttention: Arguments(("queries", "keys", "values", "mask"))}
TRACED = "it is called inside a transformation of MLX, such as vmap, where numbers are not known"


def prepare(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the model as it is: its modules and arrays are there without a call."""
    return model


def modules(model: Any) -> dict[str, Any]:
    """Return the modules of a model by path."""
    found, left = {"": model}, [("", model)]
    for path, parent in left:  # the loop appends to it
        parts: Any = tree_flatten(parent.children(), is_leaf=nn.Module.is_module)
        for name, part in parts:
            if isinstance(part, nn.Module):
                own = f"{path}.{name}".removeprefix(".")
                found[own] = part
                left.append((own, part))
    return found


def arrays(model: Any) -> dict[str, Any]:
    """Return the parameters and buffers of a model by their names."""
    return dict(tree_flatten(model.parameters()))


def odd(module: Any) -> str:
    """Say why the weights of a projection are not plain arrays; "" if they are."""
    own = arrays(module)
    if not own:
        return "without weights"
    if isinstance(module, SHARDED):
        return "sharded over devices"
    return why_not_plain(own, lambda X: mx.issubdtype(X.dtype, mx.floating), PLAIN)


def call(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a model as its users do, without gradients."""
    return model(*args, **kwargs)


def arguments(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of a module by name."""
    return arguments_by_name(functools.partial(type(module).__call__, module), args, kwargs)


@contextlib.contextmanager
def watching(model: Any, listener: Listener) -> Iterator[None]:
    """Tell a listener of each call of each module meanwhile."""
    watcher = _Watcher(listener)
    first = {id(module): (path, module) for path, module in reversed(modules(model).items())}
    with contextlib.ExitStack() as stack:
        if _compiles():
            mx.disable_compile()
            stack.callback(mx.enable_compile)
        stack.enter_context(listen_to_bases(CALLS, "__call__", [module for _, module in first.values()], listener))
        for path, module in first.values():
            if callable(module):
                stack.enter_context(_of_class(module, watcher.listening_call(path, type(module))))
        for owner, name in (SOFTMAX, KERNEL):
            run = getattr(owner, name)
            # Modules have it under other names, too, as `from mlx.core import softmax` makes. Lists are copies, since
            # another thread may import.
            loaded = [one for one in list(sys.modules.values()) if hasattr(one, "__dict__")]
            for place, called in [(one, key) for one in loaded for key, X in list(vars(one).items()) if X is run]:
                stack.enter_context(replace_attribute(place, called, watcher.pooling(name, run)))
        yield


class _Watcher:
    """The source of a listener's calls, as far as their numbers are known."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.inside: list[str] = []  # the paths of modules that are called without numbers

    def listening_call(self, path: str, kind: Any) -> Any:
        """Return a class's method that is called, which tells of it."""
        run = _through if issubclass(kind, DROPOUT) else kind.__call__

        @functools.wraps(run)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_known((args, kwargs)):
                self.listener.note_no_numbers(path, TRACED)
                self.inside.append(path)
                try:
                    return run(module, *args, **kwargs)
                finally:
                    self.inside.pop()
            self.listener.enter(path, module, args, kwargs)
            output, known = None, False
            try:
                output = run(module, *args, **kwargs)
                known = is_known(output)
            finally:
                instead = self.listener.leave(path, output if known else None)
            if not known:
                self.listener.note_no_numbers(path, TRACED)
            return output if instead is None else instead

        return call

    def pooling(self, name: str, run: Any) -> Any:
        """Wrap a function that makes attention weights, so that it tells of each call."""

        @functools.wraps(run)
        def pooling(*args: Any, **kwargs: Any) -> Any:
            if name == KERNEL[1] and is_known((args, kwargs)):
                return kernel(*args, **kwargs)
            X = args[0] if args else next(iter(kwargs.values()))
            self.listener.note_pooling(name, X.ndim, *self.inside[-1:])
            return run(*args, **kwargs)

        kernel = listen_to_kernel(run, _read_kernel, self.listener)
        return pooling


def _read_kernel(q: Any, k: Any, v: Any, *, scale: float, mask: Any = None, sinks: Any = None, **idle: Any) -> Any:
    """Read a call of MLX's kernel of attention, of heads (B, H, T, d)."""
    given = {"q": q, "k": k, "v": v, "scale": scale, "sinks": sinks}
    return given | ({"causal": LOWER_RIGHT} if isinstance(mask, str) else hide_or_add(mask))


def _through(module: Any, X: Any) -> Any:
    return X


def _compiles() -> bool:
    """Whether MLX compiles functions: only then an array inside one has no numbers."""
    known: list[bool] = []

    def look(X: Any) -> Any:
        known.append(is_known(X))
        return X

    mx.compile(look)(mx.zeros(1))
    return not known[0]


@contextlib.contextmanager
def _of_class(module: Any, run: Any) -> Iterator[None]:
    """Give a module a class of its own meanwhile, which runs `run` when it is called."""
    kind = type(module)
    said = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    module.__class__ = type(kind.__name__, (kind,), said | {"__call__": run})
    try:
        yield
    finally:
        module.__class__ = kind


def attention(module: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return a call of a framework's own layer by our names."""
    found = {name: given[name] for name in ("queries", "keys", "values")}
    mask, Q, K = given.get("mask"), given["queries"].shape[1], given["keys"].shape[1]
    if isinstance(mask, str):  # "causal": the last query sees all keys
        found["mask"] = np.tri(Q, K, K - Q, dtype=bool)
    elif mask is not None:
        pairs = of_any.to_numpy(mask)
        pairs = pairs[(None,) * (4 - pairs.ndim)]  # (B or 1, H or 1, Q or 1, K or 1)
        if pairs.dtype != bool:  # it is added
            pairs = pairs.astype(np.float64)
            found["score_bias"] = np.where(pairs > LOW, pairs, 0)
            pairs = pairs > LOW
        found["mask"] = pairs
    return found


def alike(X: Any, output: Any) -> Any:
    """Convert an array of NumPy to one of MLX, of the shape and the dtype of another one."""
    return mx.array(X, output.dtype).reshape(output.shape)  # (B, Q, D), as it was
