"""TensorFlow, compiled by tf.function and eager: our layer beside Keras', which has another class for groups.

One token has a cache by hand as KerasHub keeps it, (B, 2, S, H, d); where KerasHub is installed, also its own layer.
"""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from mha.backends.tensorflow.arrays import tensor
from mha.bench import decoding, steps
from mha.bench.cases import Shape
from mha.bench.steps import REFERENCE, Implementation, Results, Step
from mha.layer import MultiHeadAttention


def passes(attention: MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations of inference or training by name, ours first.

    In training, a step gives the output too, but `attention.gradients(...)` does not.
    """
    layer: Any = attention.layer
    step = _training if kind == "training" else _inference
    hiding = shape.call()
    name: Any = "keras.layers.GroupQueryAttention" if shape.G else "keras.layers.MultiHeadAttention"

    def ours(X: Any, lengths: Any = None, **options: Any) -> Any:
        return layer(X, X, X, lengths, **hiding, **options)

    def native(run: Callable) -> Step:
        theirs = steps.without_window(attention).to_native(name)
        in_order = shape.causal and shape.window is None  # which it knows without a mask

        def call(X: Any, seen: Any = None) -> Any:
            return theirs(X, X, X, attention_mask=seen, use_causal_mask=in_order)

        return step(theirs, shape, None if in_order else shape.mask(), run, call)

    compiled, eager = (functools.partial(step, layer, shape, shape.lengths(), run) for run in (_compile, _eager))
    made = steps.of_layer(ours, compiled)
    made = {
        REFERENCE: made[REFERENCE],
        f"{REFERENCE}, eager": Implementation("eager layer", functools.partial(eager, ours)),
        "readable": made["readable"],
        name: Implementation("native", functools.partial(native, _compile)),
        f"{name}, eager": Implementation("eager native", functools.partial(native, _eager)),
    }
    return made | steps.user_calls(attention, shape, kind, tensor, _warm_up, _warm_up)


def tokens(attention: MultiHeadAttention, shape: Shape) -> dict[str, Implementation]:
    """The implementations of decoding by name, ours first; compiled: by tf.function."""
    layer: Any = attention.layer
    x = tensor(shape.inputs())

    def ours() -> Step:
        call = tf.function(lambda x, cache: layer(x, x, x, causal=True, cache=cache))
        return _warm_up(decoding.decoder(attention, shape, lambda cache: call(x, cache)))

    def with_cache(call: Callable) -> Step:
        """A step of a function of x, the cache and the position t, which returns the output and the next cache."""
        cache, place = tensor(np.stack([X.swapaxes(1, 2) for X in decoding.heads(shape)], 1)), decoding.places()

        def step() -> Results:
            nonlocal cache
            output, cache = call(x, cache, tf.constant(shape.T + next(place)))
            return Results(output)

        return _warm_up(step)

    def by_hand(x: Any, cache: Any, t: Any) -> Any:
        split, S = (shape.B, 1, -1, shape.D // shape.H), cache.shape[2]
        q, k, v = (tf.reshape(W(x), split) for W in (layer.W_q, layer.W_k, layer.W_v))  # (B, 1, H or G, d)
        start = tf.stack([0, t, 0, 0])
        kept = zip((k, v), (cache[:, 0], cache[:, 1]), strict=True)
        keys, values = (ops.slice_update(X, start, new) for new, X in kept)  # (B, S, G, d)
        cache = tf.stack([keys, values], 1)  # (B, 2, S, G, d)
        times = shape.H // (shape.G or shape.H)
        q = tf.reshape(q, (shape.B, -1, times, q.shape[3])) / q.shape[3] ** 0.5  # (B, G, H/G, d)
        scores = tf.einsum("bgrd,bsgd->bgrs", q, keys)  # (B, G, H/G, S)
        weights = tf.nn.softmax(tf.where(tf.range(S) <= t, scores, -np.inf))
        pooled = tf.einsum("bgrs,bsgd->bgrd", weights, values)  # (B, G, H/G, d)
        return layer.W_o(tf.reshape(pooled, (shape.B, 1, shape.D))), cache  # (B, 1, D)

    def theirs() -> Step:
        module = _of_keras_hub(attention, shape)

        def call(x: Any, cache: Any, t: Any) -> Any:
            seen = tf.broadcast_to(tf.range(cache.shape[2]) <= t, (shape.B, 1, cache.shape[2]))
            return module(x, x, attention_mask=seen, cache=cache, cache_update_index=t)

        return with_cache(tf.function(call))

    made = {
        REFERENCE: Implementation("layer", ours),
        "cache as of KerasHub": Implementation("native", lambda: with_cache(tf.function(by_hand))),
        "cache as of KerasHub, eager": Implementation("eager native", lambda: with_cache(by_hand)),
    }
    if shape.G is None and importlib.util.find_spec("keras_hub") is not None:
        made["KerasHub"] = Implementation("library", theirs)
    return made | decoding.user_calls(attention, shape, tensor, _warm_up)


def _of_keras_hub(attention: MultiHeadAttention, shape: Shape) -> Any:
    """The layer of KerasHub that takes a cache, with a layer's weights; it knows no groups."""
    from keras_hub.layers import CachedMultiHeadAttention

    plain = attention.to_native("keras.layers.MultiHeadAttention")
    module = CachedMultiHeadAttention(shape.H, shape.D // shape.H, use_bias=False)
    module.build((shape.B, 1, shape.D), (shape.B, 1, shape.D))
    module.set_weights(plain.get_weights())
    return module


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    return _compile(lambda A: A @ A, A)


def _inference(layer: Any, shape: Shape, lengths: Any, run: Callable, call: Callable) -> Step:
    """A forward pass; lengths: or a mask, ready-made, or None."""
    return run(lambda X, *lengths: Results(call(X, *lengths)), shape.inputs(), lengths)


def _training(layer: Any, shape: Shape, lengths: Any, run: Callable, call: Callable) -> Step:
    def step(X: Any, cotangent: Any, *lengths: Any) -> Results:
        variables = [X, *(W.value for W in layer.trainable_weights)]
        with tf.GradientTape() as tape:
            tape.watch(X)
            output = call(X, *lengths)
        by_input, *by_weights = tape.gradient(output, variables, cotangent)
        return Results(output, (by_input,), tuple(by_weights))

    return run(step, shape.inputs(), shape.cotangent(), lengths)


def _warm_up(step: Step) -> Step:
    """Run a step once, which may trace it, and return it."""
    step()
    return step


def _eager(function: Callable, *arrays: Any) -> Step:
    """A step of a function on arrays, without those that are None."""
    tensors = [tensor(array) for array in arrays if array is not None]
    return lambda: function(*tensors)


def _compile(function: Callable, *arrays: Any) -> Step:
    """A step of a function on arrays, without those that are None, traced before its first call."""
    tensors = [tensor(array) for array in arrays if array is not None]
    compiled = tf.function(function)
    compiled.get_concrete_function(*tensors)  # the graph, which TensorFlow optimises in the first call, for a few MiB
    return lambda: compiled(*tensors)
