"""NumPy: our layer alone, whose gradients are a backward pass by hand."""

import functools
from collections.abc import Callable
from typing import Any

from mha.backends.numpy import arrays
from mha.backends.numpy.gradients import vjp
from mha.bench import steps
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step
from mha.core.call import Call, check
from mha.layer import MultiHeadAttention


def implementations(attention: MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations by name, ours first.

    In training, a step gives no output: the backward pass keeps none.
    """
    layer: Any = attention.layer
    hiding = shape.call()

    def ours(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, lengths, **hiding)

    def readable(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, lengths, **hiding, return_weights=True)[0]

    if kind == "training":  # the backward pass has no weights to return, and gives no output
        made = {"attention.layer": Implementation("layer", functools.partial(_training, layer, shape))}
    else:
        made = {
            "attention.layer": Implementation("layer", functools.partial(_inference, ours, shape)),
            "readable": Implementation("readable", functools.partial(_inference, readable, shape)),
        }
    return made | steps.user_calls(attention, shape, kind)


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    return lambda: A @ A


def _inference(call: Callable, shape: Shape) -> Step:
    X, lengths = shape.inputs(), shape.lengths()
    return lambda: Results(call(X, lengths))


def _training(layer: Any, shape: Shape) -> Step:
    X, lengths, cotangent, hiding = shape.inputs(), shape.lengths(), shape.cotangent(), shape.call()

    def step() -> Results:
        call = check(arrays, layer, X, X, X, Call(lengths, **hiding))
        gradients = vjp(layer, X, X, X, call)[1](cotangent)
        by_input = tuple(gradients.pop(name) for name in ("queries", "keys", "values"))
        return Results(None, by_input, tuple(gradients.values()))

    return step
