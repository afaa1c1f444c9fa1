"""TensorFlow, compiled by tf.function and eager: our layer beside Keras', which has another class for groups."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from mha.backends.tensorflow.arrays import tensor
from mha.bench import steps
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step
from mha.layer import MultiHeadAttention


def implementations(attention: MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations by name, ours first.

    In training, a step gives the output too, but `attention.gradients(...)` does not.
    """
    layer: Any = attention.layer
    step = _training if kind == "training" else _inference
    lengths, hiding = shape.lengths(), shape.call()
    name: Any = "keras.layers.GroupQueryAttention" if shape.G else "keras.layers.MultiHeadAttention"

    def ours(X: Any, lengths: Any = None) -> Any:
        return layer(X, X, X, lengths, **hiding)

    def readable(X: Any, lengths: Any = None) -> Any:
        return layer(X, X, X, lengths, **hiding, return_weights=True)[0]

    def native(run: Callable) -> Step:
        theirs = steps.without_window(attention).to_native(name)
        in_order = shape.causal and shape.window is None  # which it knows without a mask

        def call(X: Any, seen: Any = None) -> Any:
            return theirs(X, X, X, attention_mask=seen, use_causal_mask=in_order)

        return step(theirs, call, shape, None if in_order else shape.mask(), run)

    our_step = functools.partial(step, layer, ours, shape, lengths)
    made = {
        "attention.layer": Implementation("layer", functools.partial(our_step, _compile)),
        "attention.layer, eager": Implementation("eager layer", functools.partial(our_step, _eager)),
        "readable": Implementation("readable", functools.partial(step, layer, readable, shape, lengths, _compile)),
        name: Implementation("native", functools.partial(native, _compile)),
        f"{name}, eager": Implementation("eager native", functools.partial(native, _eager)),
    }
    return made | steps.user_calls(attention, shape, kind, tensor, _warm_up, _warm_up)


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    return _compile(lambda A: A @ A, A)


def _inference(layer: Any, call: Callable, shape: Shape, lengths: Any, run: Callable) -> Step:
    """A forward pass; lengths: or a mask, ready-made, or None."""
    return run(lambda X, *lengths: Results(call(X, *lengths)), shape.inputs(), lengths)


def _training(layer: Any, call: Callable, shape: Shape, lengths: Any, run: Callable) -> Step:
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
