"""NumPy: our layer alone, whose gradients are a backward pass by hand."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import mha
from mha.bench.cases import Implementation, Shape, Step

from . import layer as lesson


def implementations(attention: mha.MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations by name, ours first.

    A step returns the output (B, T, D), in training also the gradients by the input (B, T, D) and by every weight.
    """
    layer: Any = attention.layer

    def fast(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, lengths, causal=shape.causal)

    def readable(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, lengths, causal=shape.causal, return_weights=True)[0]

    if kind == "training":  # the backward pass has no weights to return
        return {"fast": Implementation("fast", functools.partial(_training, layer, shape))}
    return {
        "fast": Implementation("fast", functools.partial(_inference, fast, shape)),
        "readable": Implementation("readable", functools.partial(_inference, readable, shape)),
    }


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    return lambda: [A @ A]


def _inference(call: Callable, shape: Shape) -> Step:
    X, lengths = shape.inputs(), shape.lengths()
    return lambda: [call(X, lengths)]


def _training(layer: Any, shape: Shape) -> Step:
    X, lengths, cotangent = shape.inputs(), shape.lengths(), shape.cotangent()

    def step() -> list[Any]:
        gradients = lesson.gradients(layer, X, X, X, lengths, causal=shape.causal, cotangent=cotangent)
        # The backward pass keeps no output; one input got three gradients.
        by_input = sum(gradients.pop(name) for name in ("queries", "keys", "values"))
        return [np.asarray(by_input), *gradients.values()]

    return step
