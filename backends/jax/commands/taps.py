"""What enters and leaves the modules of a model of Flax while it is called, by their paths.

`mha.parity.whole` says what a `Sink` does with it. A module of linen has its arrays outside, among the arguments of a
call, and its parts only while it is called: so a call without numbers shows them first.
"""

import contextlib
import copy
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from flax import linen, nnx
from jax import numpy as jnp

import mha
from mha.parity.whole.calls.sinks import Sink, by_name
from mha.weights import native

from .linen_models import Shown
from .watcher import OWN, Watcher

# Functions that make attention weights, by the modules that have them; Flax asks JAX for its softmax.
SOFTMAX = ((jax.nn, "softmax"), (linen, "softmax"), (jax.nn, "dot_product_attention"))
CHECKPOINTS = ((jax, "checkpoint"), (jax, "remat"))  # which compute something twice, but nothing else
PLAIN = "kernel", "bias"  # all that a projection has


def shown(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The model with its modules and arrays, which a call with these arguments may have to show."""
    if not isinstance(model, linen.Module):
        return model
    if model.scope is None and not (args and isinstance(args[0], Mapping)):
        raise TypeError(
            f"model is a {type(model).__name__} of linen, which has no arrays; call audit(model, variables, x), or "
            "audit(model.bind(variables), x)"
        )
    if not (args or kwargs):
        raise TypeError(
            f"model is a {type(model).__name__} of linen, whose parts only a call shows; call audit(model, variables, "
            "x) instead of watch"
        )
    found = Shown(model, args[0] if model.scope is None else model.variables)
    with linen.intercept_methods(found.note):
        try:
            jax.eval_shape(lambda: jax.tree.leaves(call(model, *args, **kwargs)))
        except jax.errors.JAXTypeError:  # it looks at numbers
            call(model, *args, **kwargs)
    found.finish()
    return found


def modules(model: Any) -> dict[str, Any]:
    """The modules of a model by their paths, that of the model itself "", those that are shared by each of them."""
    if isinstance(model, Shown):
        return model.modules
    if isinstance(model, linen.Module):
        return {"": model}
    return {path: _undropped(module) for path, module in _parts(model).items()}


def arrays(model: Any) -> dict[str, Any]:
    """The parameters and buffers of a model by their names."""
    if isinstance(model, Shown):
        return model.arrays()
    if isinstance(model, linen.Module):
        if model.scope is None:
            raise ValueError(f"a {type(model).__name__} of linen has no arrays by itself; give its variables instead")
        return native.named(linen.meta.unbox(model.variables).get("params", {}))
    return native.named(nnx.to_pure_dict(nnx.state(model, nnx.Param)))


def odd(module: Any) -> str:
    """Why the weights of a projection are not plain arrays, in words; "" if they are."""
    own = arrays(module)
    if any("lora" in name.lower() for name in own) or "lora" in type(module).__name__.lower():
        return "adapted"
    if not own or not all(jnp.issubdtype(X.dtype, jnp.floating) and X.dtype.itemsize > 1 for X in own.values()):
        return "quantised"
    if others := [name for name in own if name not in PLAIN]:
        return f"adapted: it has {', '.join(others[:3])}, too"
    return ""


def call(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a model as its users do, without gradients."""
    if isinstance(model, linen.Module) and model.scope is None:
        return model.apply(*args, **kwargs)
    if isinstance(model, linen.Module) and args and isinstance(args[0], Mapping) and "params" in args[0]:
        args = args[1:]  # those of another one that is not bound
        kwargs = {name: X for name, X in kwargs.items() if name not in ("rngs", "mutable")}
    return model(*args, **kwargs)


def arguments(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of a module by name."""
    return by_name(functools.partial(type(module).__call__, module), args, kwargs)


@contextlib.contextmanager
def watching(model: Any, sink: Sink) -> Iterator[None]:
    """Tell a sink of each call of each module inside; without dropout, compilers and fast paths, which are set back."""
    one = Watcher(model, modules(model) if isinstance(model, Shown) else _parts(model), sink)
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.disable_jit())
        for module, name in SOFTMAX:
            run = functools.partial(one.pooled, name, getattr(module, name))
            stack.enter_context(_set(module, name, run))
        for module, name in CHECKPOINTS:
            stack.enter_context(_set(module, name, _not_twice))
        if isinstance(model, Shown):
            stack.enter_context(linen.intercept_methods(one.linen))
        else:
            for kind in {type(module) for module in one.modules.values() if callable(module)}:
                stack.enter_context(_set(kind, "__call__", _told(kind.__call__, one)))
        yield
        one.finish()


def _told(run: Any, one: Watcher) -> Any:
    return functools.wraps(run)(lambda self, *args, **kwargs: one.nnx(self, run, args, kwargs))


def _parts(model: Any) -> dict[str, Any]:
    """The modules of a model of nnx by their paths."""
    left = [("", model)]
    for path, parent in left:  # the loop appends to it
        parts = nnx.iter_children(parent)
        left += [(f"{path}.{name}".removeprefix("."), part) for name, part in parts if isinstance(part, nnx.Pytree)]
    return {path: part for path, part in left if isinstance(part, nnx.Module)}


def _undropped(module: Any) -> Any:
    """The module, or where it may drop weights another one with its arrays that does not: dropout is not judged."""
    if not isinstance(module, OWN) or not module.dropout_rate:
        return module
    module = copy.copy(module)
    module.dropout_rate = 0.0
    return module


def _not_twice(run: Any = None, **options: Any) -> Any:
    return _not_twice if run is None else run


@contextlib.contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute meanwhile; one that was inherited is inherited again."""
    kept = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name) if kept is None else setattr(owner, name, kept)


def attention(module: Any, given: dict[str, Any], output: Any) -> tuple[dict[str, Any], Any]:
    """A call of one of the framework's own layers, by our names; and what makes its output of ours, (B, Q, D)."""
    result, *rest = output if isinstance(output, tuple) else (output,)

    def back(X: Any) -> Any:
        X = alike(X, result)
        return (X, *rest) if isinstance(output, tuple) else X

    if not isinstance(module, OWN):
        return given | {"output": result}, back
    queries = given["inputs_q"]
    if queries.ndim != 3:
        raise ValueError(f"inputs_q has {queries.ndim} axes, expected 3 for a batch")
    both = given.get("inputs_kv")
    keys = next((X for X in (given.get("inputs_k"), both) if X is not None), queries)
    values = next((X for X in (given.get("inputs_v"), both) if X is not None), keys)
    found = {"queries": queries, "keys": keys, "values": values, "output": result}
    if given.get("mask") is not None:
        mask = mha.to_numpy(given["mask"]) != 0
        found["mask"] = mask[(None,) * (4 - mask.ndim)]  # (B or 1, H or 1, Q, K)
    return found, back


def alike(X: Any, output: Any) -> Any:
    """An array of NumPy as one of JAX, of the shape, the dtype and at the device of another one."""
    return jnp.asarray(X, output.dtype, device=output.device).reshape(output.shape)  # (B, Q, D), as it was
