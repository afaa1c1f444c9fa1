"""Convert Keras's own layers, and the book's in TensorFlow.

keras.layers.MultiHeadAttention and GroupQueryAttention have kernels with an axis for the heads.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mha.core.options.config import Config
from mha.core.options.names import SchemeName
from mha.weights import foreign, schemes

KIND, GROUPED = "keras.layers.MultiHeadAttention", "keras.layers.GroupQueryAttention"
DENSE = ("Dense",)  # the class of the book's projections
FIRST = "call it once, so that its parts are built"
# Options that have a counterpart, or that concern neither what is computed nor its gradients.
KNOWN = {"num_heads", "key_dim", "value_dim", "dropout", "use_bias", "use_gate", "output_shape", "dtype"}
KNOWN |= {"head_dim", "num_query_heads", "num_key_value_heads"}  # of grouped queries
KNOWN |= {"name", "trainable", "kernel_initializer", "bias_initializer", "seed"}


def take(layer: Any) -> tuple[Config, dict[str, np.ndarray]]:
    """Return the configuration and canonical weights of a layer that has been built."""
    grouped = isinstance(layer, keras.layers.GroupQueryAttention)
    kind = GROUPED if grouped else KIND
    if not layer.built:
        raise ValueError(f"the {kind} has no weights yet, expected one that was called or built")
    options = layer.get_config()
    if len(layer.get_build_config()["shapes_dict"]["query_shape"]) == 3 and options.get("attention_axes") == (1,):
        del options["attention_axes"]  # the only one of a sequence
    unknown = {name: value for name, value in options.items() if name not in KNOWN}
    shape = options.get("output_shape")
    foreign.refuse(
        kind, unknown | {"output_shape": shape if len(shape or ()) > 1 else None, "dtype": _dtype_policy(layer)}
    )
    arrays = {_name(X): X for X in layer.weights}
    num_heads = options["num_query_heads" if grouped else "num_heads"]
    return foreign.canonical(arrays, "keras", "", num_heads, dropout=options["dropout"])


def make(kind: str, config: Config, weights: dict[str, np.ndarray]) -> Any:
    """Make a built layer with these canonical weights."""
    H, G, d = config.num_heads, config.num_key_value_heads, config.key_dim
    needed: dict[str, Any] = {"pooling": "dot"}
    gated: dict[str, Any] = {}  # older Keras has no gate
    if config.output_gate:
        needed, gated = needed | {"output_gate": "element"}, {"use_gate": True}
    if kind == GROUPED:
        same = {"num_hiddens": config.query_size, "value_dim": d, "num_key_value_heads": G}
        foreign.require(kind, config, same | needed)
        layer = keras.layers.GroupQueryAttention(d, H, G, config.dropout, config.bias, **gated, dtype=config.dtype)
    else:
        foreign.require(kind, config, needed)
        sizes = {"value_dim": config.value_dim, "output_shape": config.num_hiddens}
        layer = keras.layers.MultiHeadAttention(
            H, d, dropout=config.dropout, use_bias=config.bias, **sizes, **gated, dtype=config.dtype
        )
    layer.build(*((None, None, size) for size in (config.query_size, config.value_size, config.key_size)))
    arrays = schemes.from_canonical(config, weights, "keras")
    for X in layer.weights:
        X.assign(arrays[_name(X)])
    return layer


def attend(
    layer: Any, inputs: dict[str, Any], padding: Any, pairs: Any, causal: bool, cotangent: Any
) -> tuple[Any, Any, dict[str, Any], SchemeName]:
    """Call the layer in its own manner; see `mha.weights.foreign`."""
    queries, keys, values = inputs.values()
    if pairs is not None:
        mask = pairs if padding is None else pairs & padding[:, None, None]  # (B, 1 or H, Q, K)
        mask = mask[:, 0] if mask.shape[1] == 1 else mask  # (B, Q, K) or (B, H, Q, K)
    else:
        mask = padding if padding is None else tf.repeat(padding[:, None], queries.shape[1], 1)  # (B, Q, K)
    hiding = {} if mask is None else {"attention_mask": mask}
    hiding |= {"use_causal_mask": True} if causal else {}

    def call(**options: Any) -> tuple[Any, ...]:
        result = layer(queries, values, keys, **hiding, **foreign.select_options(layer.call, **options, training=False))
        return result if isinstance(result, tuple) else (result, None)

    _, weights = call(return_attention_scores=True)
    parameters = {_name(X): X.value for X in layer.trainable_variables}
    with tf.GradientTape() as tape:
        tape.watch(list(inputs.values()))
        output, _ = call()
    by = inputs | parameters
    pulled = tape.gradient(output, list(by.values()), cotangent, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return output, weights, dict(zip(by, pulled, strict=True)), "keras"


def is_ready(layer: Any) -> bool:
    """Whether a layer of the book has its weights."""
    return all(getattr(layer, name).built for name in schemes.PROJECTIONS)


def book_arrays(layer: Any) -> tuple[str, dict[str, Any]]:
    """Return the naming scheme and the arrays of a layer as the book prints it."""
    parts = {f"activation of {name}": getattr(layer, name).activation for name in schemes.PROJECTIONS}
    names = {name: getattr(activation, "__name__", activation) for name, activation in parts.items()}
    foreign.refuse("layer", {name: activation for name, activation in names.items() if activation != "linear"})
    foreign.refuse("layer", {"dtype": _dtype_policy(layer)})
    return "mha", foreign.arrays_by_part(layer, "kernel", layer.weights)


def allocate(layer: Any) -> Any:
    """Return a layer of the book with room for its weights."""
    return layer


def children(module: Any) -> list[tuple[str, Any]]:
    """Return the parts of a module, each with the text to write after the module for it."""
    if not isinstance(module, keras.layers.Layer):
        return []
    held = [(f".{name}", X) for name, X in vars(module).items() if not name.startswith("_")]
    held += [(".layers", list(getattr(module, "layers", ())))]  # of a model
    held += [(f"{name}[{i}]", X) for name, several in held if isinstance(several, list) for i, X in enumerate(several)]
    return [(name, X) for name, X in held if isinstance(X, keras.layers.Layer)]


def _name(X: Any) -> str:
    """Return the name of an array inside its layer: "query.kernel"."""
    return ".".join(X.path.split("/")[-2:])


def _dtype_policy(layer: Any) -> str | None:
    """Return the dtype policy of a layer that computes in another dtype than its weights have, or None."""
    return None if layer.compute_dtype == layer.variable_dtype else layer.dtype_policy.name
