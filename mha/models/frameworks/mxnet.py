"""Adapt models of Gluon: tell a listener of the arrays that enter and leave their blocks.

A block is watched by an attribute `forward` of its own, which hides that of its class: Gluon's hooks cannot give
another output.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import mxnet
from mxnet import autograd, np, npx

from mha.models.audit.calls.listener import (
    Listener,
    arguments_by_name,
    listen_to_call,
    listen_to_pooling,
    replace_attribute,
    why_not_plain,
)
from mha.weights.frameworks.mxnet import children

PLACES = (npx, mxnet.nd.npx, mxnet.nd)  # the modules of functions, of which blocks are given one of the last two
SOFTMAX = ("softmax", "SoftmaxActivation")  # functions that make attention weights
DROPOUT = ("dropout", "Dropout")
PLAIN = "weight", "bias"  # all that a projection has


def prepare(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the model, after a call if its arrays have no shapes yet."""
    if any(min(X.shape or (0,)) < 1 for X in model.collect_params().values()):  # learnt in the first call
        call(model, *args, **kwargs)
    return model


def modules(model: Any) -> dict[str, Any]:
    """Return the modules of a model by path."""
    found, left = {"": model}, [("", model)]
    for path, parent in left:  # the loop appends to it
        for name, part in children(parent):
            own = (path + name).replace("[", ".").replace("]", "")
            found[own.removeprefix(".")] = part
            left.append((own, part))
    return found


def arrays(model: Any) -> dict[str, Any]:
    """Return the parameters and buffers of a model by their names."""
    found = {}
    for path, module in modules(model).items():
        for name, X in module._reg_params.items():
            if X is not None:
                found[f"{path}.{name}" if path else name] = X.data()
    return found


def odd(module: Any) -> str:
    """Say why the weights of a projection are not plain arrays; "" if they are."""
    return why_not_plain(arrays(module), lambda X: X.dtype in (np.float16, np.float32, np.float64), PLAIN)


def call(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a model as its users do, without gradients."""
    with autograd.pause():
        return model(*args, **kwargs)


def arguments(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of a module by name."""
    return arguments_by_name(module.forward, args, kwargs)


@contextlib.contextmanager
def watching(model: Any, listener: Listener) -> Iterator[None]:
    """Tell a listener of each call of each module meanwhile."""
    with contextlib.ExitStack() as stack:
        for module, path in {module: path for path, module in reversed(modules(model).items())}.items():
            if hasattr(module, "_active"):  # as `hybridize` leaves it, with what is compiled
                stack.enter_context(replace_attribute(module, "_active", False))
            forward = listen_to_call(module.forward, path, module, listener)
            stack.enter_context(replace_attribute(module, "forward", forward))
        for owner in PLACES:
            for name in vars(owner).keys() & {*SOFTMAX, *DROPOUT}:
                instead = _through if name in DROPOUT else listen_to_pooling(getattr(owner, name), name, listener)
                stack.enter_context(replace_attribute(owner, name, instead))
        yield


def _through(X: Any, *args: Any, **kwargs: Any) -> Any:
    return X


def alike(X: Any, output: Any) -> Any:
    """Convert an array of NumPy to one of MXNet that is like another one."""
    return np.array(X, dtype=output.dtype, ctx=output.ctx).reshape(output.shape)  # (B, Q, D), as it was
