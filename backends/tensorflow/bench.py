"""TensorFlow, compiled by tf.function: our layer beside keras.layers.MultiHeadAttention."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import mha
from mha.bench.cases import Implementation, Shape, Step

from .arrays import tensor


def implementations(attention: mha.MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations by name, ours first.

    A step returns the output (B, T, D), in training also the gradients by the input (B, T, D) and by every weight.
    """
    layer: Any = attention.layer
    theirs = attention.to_native("keras.layers.MultiHeadAttention")

    def fast(X: Any, lengths: Any = None) -> Any:
        return layer(X, X, X, lengths, causal=shape.causal)

    def readable(X: Any, lengths: Any = None) -> Any:
        return layer(X, X, X, lengths, causal=shape.causal, return_weights=True)[0]

    def native(X: Any, lengths: Any = None) -> Any:
        seen = None if lengths is None else tf.sequence_mask(lengths, shape.T)[:, None]  # (B, 1, T)
        return theirs(X, X, X, attention_mask=seen, use_causal_mask=shape.causal)

    step = _training if kind == "training" else _inference
    return {
        "fast": Implementation("fast", functools.partial(step, layer, fast, shape)),
        "readable": Implementation("readable", functools.partial(step, layer, readable, shape)),
        "keras.layers.MultiHeadAttention": Implementation("layer", functools.partial(step, theirs, native, shape)),
    }


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    return _compiled(lambda A: [A @ A], A)


def _inference(layer: Any, call: Callable, shape: Shape) -> Step:
    return _compiled(lambda X, *lengths: [call(X, *lengths)], shape.inputs(), shape.lengths())


def _training(layer: Any, call: Callable, shape: Shape) -> Step:
    def step(X: Any, cotangent: Any, *lengths: Any) -> list[Any]:
        variables = [X, *(W.value for W in layer.trainable_weights)]
        with tf.GradientTape() as tape:
            tape.watch(X)
            output = call(X, *lengths)
        return [output, *tape.gradient(output, variables, cotangent)]

    return _compiled(step, shape.inputs(), shape.cotangent(), shape.lengths())


def _compiled(function: Callable, *arrays: Any) -> Step:
    """A step of a function on arrays, those that are None left out, traced before the first call."""
    tensors = [tensor(array) for array in arrays if array is not None]
    compiled = tf.function(function)
    compiled.get_concrete_function(*tensors)  # the graph, which TensorFlow optimises in the first call, for a few MiB
    return lambda: compiled(*tensors)
