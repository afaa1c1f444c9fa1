"""Attention as people write it in TensorFlow, in steps, and by Keras's layers."""

import numpy as np
import tensorflow as tf
from draws import ABILITIES

import mha
from mha.parity.rule.layouts import OF_INPUTS

tf.get_logger().setLevel("ERROR")  # it warns of functions that are traced again, as each trial's is


def own(X):
    """A NumPy array as TensorFlow's own."""
    return mha.tensor(X, backend="tensorflow")


def attend(trial, weights):
    """Attend in steps, all of them in the dtype of the layer; weights: inputs, too."""
    config, (x, y, z), (i, j) = trial.config, (weights[name] for name in OF_INPUTS), trial.positions

    def linear(name, X):
        X = tf.matmul(X, weights[f"{name}.kernel"])
        return tf.nn.bias_add(X, weights[f"{name}.bias"]) if config.bias else X

    def heads(name, X):
        X = linear(name, X)
        return tf.transpose(tf.reshape(X, (*X.shape[:2], -1, config.key_dim)), (0, 2, 1, 3))  # (B, H, T, d)

    def norm(name, X):
        """Norm as the layers of Keras: in float32, rounded, and then multiplied."""
        if config.qk_norm is None:
            return X
        wide = tf.cast(X, tf.float32)
        if config.qk_norm.kind == "layer":
            wide = wide - tf.reduce_mean(wide, -1, keepdims=True)
        wide = wide * tf.math.rsqrt(tf.reduce_mean(tf.square(wide), -1, keepdims=True) + config.qk_norm.eps)
        return tf.cast(wide, X.dtype) * weights[f"{name}.scale"]

    def turn(X, places):
        if (rotary := config.rotary) is None:
            return X
        angles = tf.constant(trial.angles(places))  # (T, n)
        cos, sin = tf.cast(tf.cos(angles), X.dtype), tf.cast(tf.sin(angles), X.dtype)
        turning, rest = X[..., : rotary.dim], X[..., rotary.dim :]
        if rotary.interleaved:
            one, other = turning[..., ::2], turning[..., 1::2]
            turned = tf.stack([one * cos - other * sin, other * cos + one * sin], -1)
            turned = tf.reshape(turned, turning.shape)  # (B, H, T, 2n)
        else:
            one, other = tf.split(turning, 2, -1)
            turned = tf.concat([one * cos - other * sin, other * cos + one * sin], -1)
        return tf.concat([turned, rest], -1)

    q, k, v = heads("W_q", x), heads("W_k", y), heads("W_v", z)
    q, k = turn(norm("q_norm", q), i), turn(norm("k_norm", k), j)
    k, v = (tf.repeat(X, trial.share, 1) for X in (k, v))  # (B, H, K, d)
    scores = tf.matmul(q, k, transpose_b=True) * tf.cast(trial.scale, q.dtype)  # (B, H, Q, K)
    if config.softcap:
        cap = tf.cast(config.softcap, q.dtype)
        scores = tf.tanh(scores / cap) * cap
    if trial.bias is not None:
        scores = scores + own(trial.bias)
    if trial.seen is not None:
        scores = tf.where(own(trial.seen), scores, scores.dtype.min)
    K = scores.shape[-1]
    if config.sinks:
        sinks = tf.broadcast_to(weights["sinks"][:, None, None], (*scores.shape[:3], 1))  # (B, H, Q, 1)
        scores = tf.concat([scores, sinks], -1)
    pooled = tf.matmul(tf.nn.softmax(scores)[..., :K], v)
    pooled = tf.transpose(pooled, (0, 2, 1, 3))  # (B, Q, H, d)
    if config.output_gate:
        gates = linear("W_g", x)
        pooled = pooled * tf.sigmoid(tf.reshape(gates, (*gates.shape[:2], config.num_heads, -1)))  # (B, Q, H, d or 1)
    return linear("W_o", tf.reshape(pooled, (*pooled.shape[:2], -1)))  # (B, Q, D)


def steps(trial, **compiling):
    """In steps; compiling: options of `tf.function`, none = without it."""

    def whole(arrays):
        return attend(trial, arrays)

    return (tf.function(whole, autograph=False, **compiling) if compiling else whole)(trial.arrays(own))


def steps_graph(trial):
    """In steps, in a graph."""
    return steps(trial, jit_compile=False)


def steps_xla(trial):
    """In steps, compiled by XLA."""
    return steps(trial, jit_compile=True)


def keras(kind, **options):
    """A port that is a layer of Keras, whose dtype policy is the dtype of the trial."""

    def call(trial):
        layer, arrays = trial.layer.to_native(kind), trial.arrays(own)
        x, y, z = (arrays[name] for name in OF_INPUTS)
        hiding = {"use_causal_mask": True} if trial.only_causal else {}
        if trial.seen is not None and not trial.only_causal:
            sizes = len(x), trial.seen.shape[1], x.shape[1], y.shape[1]
            hiding = {"attention_mask": own(np.broadcast_to(trial.seen, sizes).copy())}  # (B, 1 or H, Q, K)
        if trial.given is None:
            result = layer(x, z, y, **hiding, **options)
        else:
            variables = [X.value for X in layer.non_trainable_variables]
            result, _ = layer.stateless_call(parameters(layer, arrays), variables, x, z, y, **hiding, **options)
        return result[0] if options else result

    return call


def parameters(layer, arrays):
    """The parameters of Keras's layers, in their order."""
    roles = {"query": "W_q", "key": "W_k", "value": "W_v", "attention_output": "W_o", "gate": "W_g"}
    found = []
    for variable in layer.trainable_variables:
        module, part = variable.path.split("/")[-2:]
        found.append(tf.reshape(arrays[f"{roles[module]}.{part}"], variable.shape))  # (in, H, d), (H, d, out), (H, d)
    return found


def gradients(port, trial, cotangent):
    """The gradients of sum(output * cotangent) by all inputs and weights of a port."""
    leaves = trial.leaves(own)
    with tf.GradientTape() as tape:
        tape.watch([*leaves.values()])
        output = port(trial.with_leaves(leaves))
    return tape.gradient(output, leaves, own(cotangent))


LAYER, GROUPED = "keras.layers.MultiHeadAttention", "keras.layers.GroupQueryAttention"
PORTS = {
    "steps": (steps, ABILITIES), "steps_graph": (steps_graph, ABILITIES), "steps_xla": (steps_xla, ABILITIES),
    "keras": (keras(LAYER), {"bias"}), "keras_weights": (keras(LAYER, return_attention_scores=True), {"bias"}),
    "keras_grouped": (keras(GROUPED), {"bias", "groups", "element"}),
    "keras_grouped_weights": (keras(GROUPED, return_attention_scores=True), {"bias", "groups", "element"}),
}  # fmt: skip
