"""TensorFlow, compiled by tf.function and eager: our layer beside Keras', which has another class for groups."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import mha
from mha.bench import steps
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step

from ..arrays import tensor


def implementations(attention: mha.MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations by name, ours first.

    In training, a step gives the output too, but `attention.gradients(...)` does not.
    """
    layer: Any = attention.layer
    step = _training if kind == "training" else _inference
    name: Any = "keras.layers.GroupQueryAttention" if shape.G else "keras.layers.MultiHeadAttention"

    def ours(X: Any, lengths: Any = None) -> Any:
        return layer(X, X, X, lengths, causal=shape.causal)

    def readable(X: Any, lengths: Any = None) -> Any:
        return layer(X, X, X, lengths, causal=shape.causal, return_weights=True)[0]

    def native(run: Callable) -> Step:
        theirs = steps.without_window(attention).to_native(name)
        visible = shape.visible(tf.range(shape.T))[None] if shape.window else None  # (1, T, T)

        def call(X: Any, lengths: Any = None) -> Any:
            seen = visible if lengths is None else tf.sequence_mask(lengths, shape.T)[:, None]  # (B, 1, T)
            return theirs(X, X, X, attention_mask=seen, use_causal_mask=shape.causal and shape.window is None)

        return step(theirs, call, shape, run)

    made = {
        "attention.layer": Implementation("layer", functools.partial(step, layer, ours, shape, _compiled)),
        "attention.layer, eager": Implementation("eager layer", functools.partial(step, layer, ours, shape, _eager)),
        "readable": Implementation("readable", functools.partial(step, layer, readable, shape, _compiled)),
        name: Implementation("native", functools.partial(native, _compiled)),
        f"{name}, eager": Implementation("eager native", functools.partial(native, _eager)),
    }
    return made | steps.user_calls(attention, shape, kind, tensor, _called, _called)


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


def _called(step: Step) -> Step:
    """A step of a user's call, whose first call is over: it may trace."""
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
