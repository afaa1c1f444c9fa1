"""TensorFlow, one token: our layer with a cache, beside one by hand as KerasHub keeps it, (B, 2, S, H, d).

Where KerasHub is installed, also beside its own layer, which knows no groups.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from mha.backends.tensorflow.arrays import tensor
from mha.bench import decoding
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step
from mha.layer import MultiHeadAttention


def implementations(attention: MultiHeadAttention, shape: Shape) -> dict[str, Implementation]:
    """The implementations by name, ours first; compiled: by tf.function."""
    layer: Any = attention.layer
    x = tensor(shape.inputs())

    def ours() -> Step:
        call = tf.function(lambda x, cache: layer(x, x, x, causal=True, cache=cache))
        return _warm_up(decoding.decoder(attention, shape, lambda cache: call(x, cache)))

    def by_hand(compile: Callable) -> Step:
        cache, place = tensor(np.stack([X.swapaxes(1, 2) for X in decoding.heads(shape)], 1)), decoding.places()
        S, times = cache.shape[2], shape.H // (shape.G or shape.H)

        def call(x: Any, cache: Any, t: Any) -> Any:
            split = (shape.B, 1, -1, shape.D // shape.H)
            q, k, v = (tf.reshape(W(x), split) for W in (layer.W_q, layer.W_k, layer.W_v))  # (B, 1, H or G, d)
            start = tf.stack([0, t, 0, 0])
            kept = zip((k, v), (cache[:, 0], cache[:, 1]), strict=True)
            keys, values = (ops.slice_update(X, start, new) for new, X in kept)  # (B, S, G, d)
            cache = tf.stack([keys, values], 1)  # (B, 2, S, G, d)
            q = tf.reshape(q, (shape.B, -1, times, q.shape[3])) / q.shape[3] ** 0.5  # (B, G, H/G, d)
            scores = tf.einsum("bgrd,bsgd->bgrs", q, keys)  # (B, G, H/G, S)
            weights = tf.nn.softmax(tf.where(tf.range(S) <= t, scores, -np.inf))
            pooled = tf.einsum("bgrs,bsgd->bgrd", weights, values)  # (B, G, H/G, d)
            return layer.W_o(tf.reshape(pooled, (shape.B, 1, shape.D))), cache  # (B, 1, D)

        compiled = compile(call)

        def step() -> Results:
            nonlocal cache
            output, cache = compiled(x, cache, tf.constant(shape.T + next(place)))
            return Results(output)

        return _warm_up(step)

    def theirs() -> Step:
        module, place = _of_keras_hub(attention, shape), decoding.places()
        cache = tensor(np.stack([X.swapaxes(1, 2) for X in decoding.heads(shape)], 1))  # (B, 2, S, H, d)
        S = cache.shape[2]

        @tf.function
        def call(x: Any, cache: Any, t: Any) -> Any:
            seen = tf.broadcast_to(tf.range(S) <= t, (shape.B, 1, S))
            return module(x, x, attention_mask=seen, cache=cache, cache_update_index=t)

        def step() -> Results:
            nonlocal cache
            output, cache = call(x, cache, tf.constant(shape.T + next(place)))
            return Results(output)

        return _warm_up(step)

    found = {
        "attention.layer": Implementation("layer", ours),
        "cache as of KerasHub": Implementation("native", lambda: by_hand(tf.function)),
        "cache as of KerasHub, eager": Implementation("eager native", lambda: by_hand(lambda call: call)),
    }
    if shape.G is None and importlib.util.find_spec("keras_hub") is not None:
        found["KerasHub"] = Implementation("library", theirs)
    return found | decoding.user_calls(attention, shape, tensor, _warm_up)


def _of_keras_hub(attention: MultiHeadAttention, shape: Shape) -> Any:
    """The layer of KerasHub that takes a cache, with a layer's weights."""
    from keras_hub.layers import CachedMultiHeadAttention

    plain = attention.to_native("keras.layers.MultiHeadAttention")
    module = CachedMultiHeadAttention(shape.H, shape.D // shape.H, use_bias=False)
    module.build((shape.B, 1, shape.D), (shape.B, 1, shape.D))
    module.set_weights(plain.get_weights())
    return module


def _warm_up(step: Step) -> Step:
    """Run a step once, which traces it, and return it."""
    step()
    return step
