"""Adapt models of Flax: tell a listener of the arrays that enter and leave their modules.

A module of linen has its arrays outside, among the arguments of a call, and its parts only while it is called: so a
call without numbers shows them first.
"""

import contextlib
import copy
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import flax
import jax
import numpy as np
from flax import core, linen, nnx
from jax import numpy as jnp

from mha.arrays import to_numpy
from mha.models.audit.calls.kernel_call import hide_or_add
from mha.models.audit.calls.listener import Listener, arguments_by_name, replace_attribute, why_not_plain
from mha.models.audit.calls.own_layers import kind_in
from mha.models.frameworks.flax_modules import CALLS, LinenModel, Watcher, params_of
from mha.weights import foreign

# Functions that make attention weights, by the modules that have them; Flax asks JAX for its softmax.
SOFTMAX = ((jax.nn, "softmax"), (linen, "softmax"))
KERNEL = jax.nn, "dot_product_attention"
CHECKPOINTS = ((jax, "checkpoint"), (jax, "remat"))  # which compute something twice, but nothing else
PLAIN = "kernel", "bias"  # all that a projection has
SLOTS = "cached_key", "cached_value", "cache_index"
# What is_causal shows beside a cache; later, Flax leaves it out.
FIRST_SLOT_ALONE = tuple(map(int, re.findall(r"\d+", flax.__version__)[:3])) < (0, 12, 11)


def prepare(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the model, one of linen with the modules that a call shows."""
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
    found = LinenModel(model, args[0] if model.scope is None else model.variables)
    if model.scope is None:  # what a decoder writes is nothing here
        kwargs = {"mutable": core.DenyList("params"), **kwargs}
    with linen.intercept_methods(found.note):
        try:
            jax.eval_shape(lambda: jax.tree.leaves(call(model, *args, **kwargs)))
        except jax.errors.JAXTypeError:  # it looks at numbers
            call(model, *args, **kwargs)
    found.finish()
    return found


def modules(model: Any) -> dict[str, Any]:
    """Return the modules of a model by path."""
    if isinstance(model, LinenModel):
        return model.modules
    if isinstance(model, linen.Module):
        return {"": model}
    return {path: _copy_without_dropout(module) for path, module in _parts(model).items()}


def arrays(model: Any) -> dict[str, Any]:
    """Return the parameters and buffers of a model by their names."""
    if isinstance(model, LinenModel):
        return model.arrays()
    if isinstance(model, linen.Module):
        if model.scope is None:
            raise ValueError(f"a {type(model).__name__} of linen has no arrays by itself; give its variables instead")
        return foreign.flatten_names(params_of(model))
    return foreign.flatten_names(nnx.to_pure_dict(nnx.state(model, nnx.Param)))


def odd(module: Any) -> str:
    """Say why the weights of a projection are not plain arrays; "" if they are."""
    if "lora" in type(module).__name__.lower():
        return "adapted"
    return why_not_plain(
        arrays(module), lambda X: jnp.issubdtype(X.dtype, jnp.floating) and X.dtype.itemsize > 1, PLAIN
    )


def call(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a model without gradients; its caches are as they were afterwards."""
    if not isinstance(model, linen.Module):
        before = jax.tree.map(lambda X: X, nnx.state(model, nnx.Cache))
        try:
            return model(*args, **kwargs)
        finally:
            nnx.update(model, before)
    if model.scope is None:
        return model.apply(*args, **kwargs)
    if args and isinstance(args[0], Mapping) and "params" in args[0]:
        args = args[1:]  # those of another one that is not bound
        kwargs = {name: X for name, X in kwargs.items() if name not in ("rngs", "mutable")}
    # Bound to the same variables once more, it writes nothing into the first ones.
    bound: Any = model
    scope, (module, variables) = bound.scope, bound.unbind()
    own = core.Scope(core.unfreeze(variables), rngs=scope.rngs, mutable=scope.mutable, flags=scope.flags)
    return module.clone(parent=own, _deep_clone=True)(*args, **kwargs)


def arguments(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of a module by name."""
    return arguments_by_name(functools.partial(type(module).__call__, module), args, kwargs)


@contextlib.contextmanager
def watching(model: Any, listener: Listener) -> Iterator[None]:
    """Tell a listener of each call of each module meanwhile."""
    one = Watcher(model, modules(model) if isinstance(model, LinenModel) else _parts(model), listener)
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.disable_jit())
        for module, name in SOFTMAX:
            run = functools.partial(one.note_pooling, name, getattr(module, name))
            stack.enter_context(replace_attribute(module, name, run))
        kernel = getattr(*KERNEL)  # perhaps that of another watch, around this one
        told = functools.update_wrapper(functools.partial(one.kernel, kernel, _read_kernel), kernel)
        stack.enter_context(replace_attribute(*KERNEL, told))
        for module, name in CHECKPOINTS:
            stack.enter_context(replace_attribute(module, name, _not_twice))
        if isinstance(model, LinenModel):
            stack.enter_context(linen.intercept_methods(one.linen))
        else:
            kinds = {type(module) for module in one.modules.values() if callable(module)}
            for owner in kinds | {base for kind in kinds for base in kind.__mro__ if base in CALLS}:
                stack.enter_context(replace_attribute(owner, "__call__", one.listening_call(owner.__call__)))
        yield
        one.finish()


def _read_kernel(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: Any = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> dict[str, Any]:
    """Read a call of JAX's kernel of attention, of heads (B, T, H, d) or (T, H, d)."""
    if query_seq_lengths is not None:
        raise ValueError("query_seq_lengths is not read")
    window = (local_window_size,) * 2 if isinstance(local_window_size, int) else local_window_size
    given = {"q": query, "k": key, "v": value, "layout": "BTHD", "causal": bool(is_causal), "scale": scale}
    return given | {"window": window, "lengths": key_value_seq_lengths} | hide_or_add(mask, bias)


def _parts(model: Any) -> dict[str, Any]:
    """Return the modules of a model of nnx by their paths."""
    left = [("", model)]
    for path, parent in left:  # the loop appends to it
        parts = nnx.iter_children(parent)
        left += [(f"{path}.{name}".removeprefix("."), part) for name, part in parts if isinstance(part, nnx.Pytree)]
    return {path: part for path, part in left if isinstance(part, nnx.Module)}


def _copy_without_dropout(module: Any) -> Any:
    """Return the module, or a copy without dropout, which is not judged."""
    if kind_in(module, CALLS) is None or not module.dropout_rate:
        return module
    module = copy.copy(module)
    module.dropout_rate = 0.0
    return module


def _not_twice(run: Any = None, **options: Any) -> Any:
    return _not_twice if run is None else run


def attention(module: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return a call of a framework's own layer by our names."""
    queries = given["inputs_q"]
    if queries.ndim != 3:
        raise ValueError(f"inputs_q has {queries.ndim} axes, expected 3 for a batch")
    both = given.get("inputs_kv")
    keys = next((X for X in (given.get("inputs_k"), both) if X is not None), queries)
    values = next((X for X in (given.get("inputs_v"), both) if X is not None), keys)
    found = {"queries": queries, "keys": keys, "values": values}
    if given.get("mask") is not None:
        mask = to_numpy(given["mask"]) != 0
        found["mask"] = mask[(None,) * (4 - mask.ndim)]  # (B or 1, H or 1, Q, K)
    if given.get("is_causal"):
        found["causal"] = True
    if (slots := _slots(module, given)) is not None:
        if given.get("is_causal") and FIRST_SLOT_ALONE:
            raise ValueError("beside its cache, is_causal=True shows the first slot alone: leave it out")
        found |= {"cache": slots, "causal": True}
    return found


def _slots(module: Any, given: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
    """Return the cache of a layer before a call, which has put one token in; None if it had none."""
    decode = module.decode if given.get("decode") is None else given["decode"]
    if not decode:
        return None
    if isinstance(module, linen.Module):
        state = linen.meta.unbox(module.variables).get("cache", {})
    else:
        state = {name: getattr(module, name)[...] for name in SLOTS}
    keys, values, index = (to_numpy(jnp.asarray(state[name])) for name in SLOTS)
    if index == 0:  # linen has made it in this call, which attends to its own tokens
        return None
    if index > keys.shape[1]:
        raise ValueError(f"its cache has {keys.shape[1]} slots, and this is token {index}, which overwrites the last")
    return dict(zip(SLOTS, (keys, values, np.asarray(index - 1)), strict=True))


def alike(X: Any, output: Any) -> Any:
    """Convert an array of NumPy to one of JAX that is like another one."""
    return jnp.asarray(X, output.dtype, device=output.device).reshape(output.shape)  # (B, Q, D), as it was
