"""TensorFlow, compiled by tf.function and eager: our layer beside keras.layers.MultiHeadAttention."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import mha
from mha.bench import steps
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step

from .arrays import tensor


def implementations(attention: mha.MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations by name, ours first.

    In training, a step gives the output too, but `attention.gradients(...)` does not.
    """
    layer: Any = attention.layer
    theirs = attention.to_native("keras.layers.MultiHeadAttention")

    def ours(X: Any, lengths: Any = None) -> Any:
        return layer(X, X, X, lengths, causal=shape.causal)

    def readable(X: Any, lengths: Any = None) -> Any:
        return layer(X, X, X, lengths, causal=shape.causal, return_weights=True)[0]

    def native(X: Any, lengths: Any = None) -> Any:
        seen = None if lengths is None else tf.sequence_mask(lengths, shape.T)[:, None]  # (B, 1, T)
        return theirs(X, X, X, attention_mask=seen, use_causal_mask=shape.causal)

    step = _training if kind == "training" else _inference
    made = {
        "attention.layer": Implementation("layer", functools.partial(step, layer, ours, shape, _compiled)),
        "attention.layer, eager": Implementation("eager layer", functools.partial(step, layer, ours, shape, _eager)),
        "readable": Implementation("readable", functools.partial(step, layer, readable, shape, _compiled)),
        "keras.layers.MultiHeadAttention": Implementation(
            "native", functools.partial(step, theirs, native, shape, _compiled)
        ),
        "keras.layers.MultiHeadAttention, eager": Implementation(
            "eager native", functools.partial(step, theirs, native, shape, _eager)
        ),
    }
    if kind == "training":
        called = functools.partial(_called, steps.gradients, attention, shape, tensor)
        return made | {"attention.gradients(...), own arrays": Implementation("call", called)}
    called = functools.partial(_called, steps.call, attention, shape, tensor)
    from_numpy = functools.partial(_called, steps.call, attention, shape)
    return made | {
        "attention(...), own arrays": Implementation("call", called),
        "attention(...), NumPy arrays": Implementation("NumPy call", from_numpy),
    }


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    return _compiled(lambda A: A @ A, A)


def _inference(layer: Any, call: Callable, shape: Shape, run: Callable) -> Step:
    return run(lambda X, *lengths: Results(call(X, *lengths)), shape.inputs(), shape.lengths())


def _training(layer: Any, call: Callable, shape: Shape, run: Callable) -> Step:
    def step(X: Any, cotangent: Any, *lengths: Any) -> Results:
        variables = [X, *(W.value for W in layer.trainable_weights)]
        with tf.GradientTape() as tape:
            tape.watch(X)
            output = call(X, *lengths)
        by_input, *by_weights = tape.gradient(output, variables, cotangent)
        return Results(output, (by_input,), tuple(by_weights))

    return run(step, shape.inputs(), shape.cotangent(), shape.lengths())


def _called(step_of: Callable, *arguments: Any) -> Step:
    """A step of a user's call, whose first call is over: it may trace."""
    step = step_of(*arguments)
    step()
    return step


def _eager(function: Callable, *arrays: Any) -> Step:
    """A step of a function on arrays, those that are None left out."""
    tensors = [tensor(array) for array in arrays if array is not None]
    return lambda: function(*tensors)


def _compiled(function: Callable, *arrays: Any) -> Step:
    """A step of a function on arrays, those that are None left out, traced before the first call."""
    tensors = [tensor(array) for array in arrays if array is not None]
    compiled = tf.function(function)
    compiled.get_concrete_function(*tensors)  # the graph, which TensorFlow optimises in the first call, for a few MiB
    return lambda: compiled(*tensors)
