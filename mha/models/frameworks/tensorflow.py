"""Adapt models of Keras: tell a listener of the arrays that enter and leave their layers.

A layer is watched by an attribute `call` of its own, which hides that of its class; Keras, which tracks attributes,
does not see it.
"""

import contextlib
import functools
import operator
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from mha.arrays import to_numpy
from mha.models.audit.calls.kernel_call import hide_or_add
from mha.models.audit.calls.listener import (
    Listener,
    arguments_by_name,
    listen_to_bases,
    listen_to_call,
    listen_to_kernel,
    listen_to_pooling,
    replace_attribute,
    why_not_plain,
)
from mha.models.audit.calls.own_layers import Arguments

# Functions that make attention weights, by the modules that have them; Keras asks TensorFlow for its softmax.
SOFTMAX = ((tf.nn, "softmax"),)
KERNELS = ((keras.ops, "dot_product_attention"), (keras.ops.nn, "dot_product_attention"))
DROPOUT = ("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "AlphaDropout", "GaussianDropout",
           "GaussianNoise")  # fmt: skip
FUNCTIONS = ((tf.nn, "dropout"), (keras.random, "dropout"))  # of which the first argument goes through
PLAIN = "kernel", "bias"  # all that a projection has
HIDING = {"query_mask": (..., None), "key_mask": (..., None, slice(None)), "value_mask": (..., None, slice(None))}
READ = Arguments(
    ("query", "value", "key", *HIDING, "attention_mask", "use_causal_mask"), ("return_attention_scores", "training")
)
CALLS = {keras.layers.MultiHeadAttention: READ, keras.layers.GroupQueryAttention: READ}


def prepare(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the model, after a call if it is not built yet."""
    if not model.built:
        call(model, *args, **kwargs)
    return model


def modules(model: Any) -> dict[str, Any]:
    """Return the modules of a model by path."""
    found, left = {"": model}, [("", model, {id(model)})]
    for path, parent, outer in left:  # the loop appends to it
        seen = set(outer)
        for name, part in _parts(parent):
            if id(part) not in seen:
                seen.add(id(part))
                own = f"{path}.{name}" if path else name
                while own in found:  # names of Keras need not be unique
                    own += "_"
                found[own] = part
                left.append((own, part, {*outer, id(part)}))
    return found


def arrays(model: Any) -> dict[str, Any]:
    """Return the parameters and buffers of a model by their names."""
    found = {}
    for path, module in modules(model).items():
        for X in (*module._trainable_variables, *module._non_trainable_variables):
            found[f"{path}.{X.name}" if path else X.name] = X.value
    return found


def odd(module: Any) -> str:
    """Say why the weights of a projection are not plain arrays; "" if they are."""
    return why_not_plain(arrays(module), lambda X: X.dtype.is_floating and X.dtype.size > 1, PLAIN)


def call(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a model as its users do, without gradients."""
    return model(*args, **kwargs)


def arguments(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of a module by name."""
    bound = arguments_by_name(module.call, args, kwargs)
    given = bound.get("inputs")
    if isinstance(given, (list, tuple)) and len(given) == len(getattr(module, "inputs", None) or ()):
        given = {X.name: part for X, part in zip(module.inputs, given, strict=True)}
    if isinstance(given, Mapping):
        bound |= given
    return bound


@contextlib.contextmanager
def watching(model: Any, listener: Listener) -> Iterator[None]:
    """Tell a listener of each call of each module meanwhile."""
    eager = tf.config.functions_run_eagerly()
    with contextlib.ExitStack() as stack:
        stack.callback(tf.config.run_functions_eagerly, eager)
        tf.config.run_functions_eagerly(True)
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", ".*does not apply to tf.data functions")  # which take batches apart
        stack.enter_context(listen_to_bases(CALLS, "call", [*modules(model).values()], listener))
        for module, path in {module: path for path, module in reversed(modules(model).items())}.items():
            dropping = isinstance(module, tuple(getattr(keras.layers, name) for name in DROPOUT))
            run = module.call
            instead = _through(run) if dropping else listen_to_call(run, path, module, listener)
            stack.enter_context(replace_attribute(module, "call", instead))
        for owner, name in FUNCTIONS:
            stack.enter_context(replace_attribute(owner, name, _through(getattr(owner, name))))
        for owner, name in SOFTMAX:
            stack.enter_context(replace_attribute(owner, name, listen_to_pooling(getattr(owner, name), name, listener)))
        for owner, name in KERNELS:
            run = listen_to_kernel(getattr(owner, name), _read_kernel, listener)
            stack.enter_context(replace_attribute(owner, name, run))
        yield


def _read_kernel(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    scale: float | None = None,
    is_causal: bool = False,
    flash_attention: bool | None = None,
    attn_logits_soft_cap: float | None = None,
) -> dict[str, Any]:
    """Read a call of Keras's kernel of attention, of heads (B, T, H, d)."""
    given = {"q": query, "k": key, "v": value, "layout": "BTHD", "causal": bool(is_causal), "scale": scale}
    pairs = None if mask is None else to_numpy(mask) != 0
    return given | {"softcap": attn_logits_soft_cap} | hide_or_add(pairs, bias)


def _through(run: Any) -> Any:
    return functools.wraps(run)(lambda X, *args, **kwargs: X)


def _parts(module: Any) -> list[tuple[str, Any]]:
    """Return the layers in a layer, of a graph by their names, others by the attribute."""
    named = [(X.name, X) for X in getattr(module, "layers", ())]
    if isinstance(module, keras.Sequential):  # which has a graph of its layers, too
        return named
    found = named if isinstance(module, _functional()) else []
    for name, held in vars(module).items():
        if name.startswith("_"):
            found += [(X.name, X) for X in [held] if isinstance(X, keras.layers.Layer)]
        else:
            found += list(_in(name, held))
    return found + [(X.name, X) for X in module._layers]


def _in(name: str, held: Any) -> Iterator[tuple[str, Any]]:
    """Return the layers in an attribute, each with its name, and its place in a list or dict."""
    if isinstance(held, keras.layers.Layer):
        yield name, held
    elif isinstance(held, (list, tuple)):
        for at, part in enumerate(held):
            yield from _in(f"{name}.{at}", part)
    elif isinstance(held, Mapping):
        for key, part in held.items():
            yield from _in(f"{name}.{key}", part)


def _functional() -> type:
    """Return the class of models of a graph of layers, which has no public name."""
    X = keras.Input((1,))
    return next(kind for kind in type(keras.Model(X, X)).__mro__ if kind.__name__ == "Functional")


def attention(module: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return a call of a framework's own layer by our names."""
    queries, values = given["query"], given["value"]
    keys = values if given.get("key") is None else given["key"]
    if len(queries.shape) != 3:
        raise ValueError(f"query has {len(queries.shape)} axes, expected 3 for a batch")
    found = {"queries": queries, "keys": keys, "values": values, "causal": bool(given.get("use_causal_mask"))}
    masks = [  # (B or 1, H or 1, Q or 1, K or 1) each
        (to_numpy(given[name]) != 0)[place][:, None] for name, place in HIDING.items() if given.get(name) is not None
    ]
    if given.get("attention_mask") is not None:
        pairs = to_numpy(given["attention_mask"]) != 0
        masks.append(pairs[(slice(None),) * (pairs.ndim - 2) + (None,) * (4 - pairs.ndim)])  # (B, 1 or H, Q, K)
    return found | ({"mask": functools.reduce(operator.and_, masks)} if masks else {})


def alike(X: Any, output: Any) -> Any:
    """Convert an array of NumPy to one of TensorFlow that is like another one."""
    with tf.device(output.device):
        return tf.reshape(tf.constant(X, output.dtype), tf.shape(output))  # (B, Q, D), as it was
