"""`keras.layers.MultiHeadAttention`: values before keys, kernels (in, H, d) and (H, dv, D), masks True = may attend."""

import keras
import numpy as np
import tensorflow as tf

from mha.core import dispatch
from peers import INPUTS, PROJECTIONS, merged, own, own_inputs, renamed


def new(shapes=((2, 3, 11), (2, 5, 17), (2, 5, 13)), **options):
    """shapes: of queries, values and keys; without them the layer is not built."""
    layer = keras.layers.MultiHeadAttention(
        **{"num_heads": 3, "key_dim": 4, "bias_initializer": keras.initializers.RandomNormal(seed=5)} | options
    )
    if shapes:
        layer.build(*shapes)
    return layer


def make(options, weights, call):
    if "key_dim" not in options:
        options = options | {"key_dim": options["num_hiddens"] // options["num_heads"]}
    sizes = dict.fromkeys(("query_size", "key_size", "value_size"))  # read off the inputs
    layer = keras.layers.MultiHeadAttention(**renamed(options, num_hiddens="output_shape", bias="use_bias", **sizes))
    return with_weights(layer, weights, call)


def with_weights(layer, weights, call):
    """The layer, built for the inputs of a call if they are arrays, with these canonical weights unless None."""
    queries, keys, values = own_inputs(call, "tensorflow")
    if weights is not None and all(hasattr(X, "shape") for X in (queries, keys, values)):
        layer.build(queries.shape, values.shape, keys.shape)
        for name, parameter in parameters(layer).items():
            parameter.assign(weights[name].reshape(parameter.shape))  # (in, H or G, d), (H or G, d) and (H, dv, D)
    return layer


def run(layer, call):
    hiding = {}
    if call.own_mask:
        hiding["attention_mask"] = own("tensorflow", call.mask)
    elif call.only_causal:
        hiding["use_causal_mask"] = True
    elif (seen := call.seen()) is not None:
        sizes = *seen.shape[:2], call.queries.shape[1], call.keys.shape[1]
        hiding["attention_mask"] = tf.constant(np.broadcast_to(seen, sizes))  # (B, 1 or H, Q, K), True = may attend
    queries, keys, values = inputs = own_inputs(call, "tensorflow")
    with tf.GradientTape() as tape:
        tape.watch([X for X in inputs if isinstance(X, tf.Tensor)])
        result = layer(
            queries, values, keys, **hiding,
            return_attention_scores=call.return_weights, training=call.training,
        )  # fmt: skip
    found = dict(zip(("output", "weights"), result if call.return_weights else (result,), strict=False))
    found = {name: tf.convert_to_tensor(X) for name, X in found.items()}
    if call.cotangent is not None:
        by = dict(zip(INPUTS, inputs, strict=True)) | {name: X.value for name, X in parameters(layer).items()}
        cotangent = tf.cast(call.cotangent, found["output"].dtype)
        found |= dict(zip(by, tape.gradient(found["output"], list(by.values()), cotangent), strict=True))
    return {name: merged(name, dispatch.load("tensorflow").to_numpy(X)) for name, X in found.items()}


class Decoder:
    """The cache of keras-hub's layer, a subclass of this one: (B, 2, S, H, d), written at an index that a call says."""

    def __init__(self, attention, batch_size, size):
        self.layer, self.index = attention.to_native("keras.layers.MultiHeadAttention"), 0
        heads = attention.config.num_heads, attention.config.key_dim
        self.cache = tf.zeros((batch_size, 2, size, *heads), attention.config.dtype)

    def __call__(self, x):
        layer, x, start = self.layer, tf.constant(x), [0, self.index, 0, 0]
        new = [layer._key_dense(x), layer._value_dense(x)]
        kept = [keras.ops.slice_update(self.cache[:, i], start, X) for i, X in enumerate(new)]
        self.cache, self.index = tf.stack(kept, 1), self.index + 1
        seen = tf.range(self.cache.shape[2])[None, None] < self.index  # (1, 1, S)
        output, _ = layer._compute_attention(layer._query_dense(x), *kept, attention_mask=seen)
        return layer._output_dense(output).numpy()


def parameters(layer):
    """The parameters that the layer has, by our names."""
    own = (layer._query_dense, layer._key_dense, layer._value_dense, layer._output_dense)
    parts = dict(zip(PROJECTIONS, own, strict=True)) | {"W_g": getattr(layer, "_gate_dense", None)}
    named = {f"{name}.{kind}": getattr(part, kind, None) for name, part in parts.items() for kind in ("kernel", "bias")}
    return {name: X for name, X in named.items() if X is not None}
