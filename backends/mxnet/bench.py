"""MXNet, imperative: our layer alone, since Gluon has no attention of its own."""

import functools
from collections.abc import Callable
from typing import Any

from mxnet import autograd, np

import mha
from mha.bench.cases import Implementation, Shape, Step

from .arrays import tensor


def implementations(attention: mha.MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations by name, ours first.

    A step returns the output (B, T, D), in training also the gradients by the input (B, T, D) and by every weight.
    """
    layer: Any = attention.layer

    def fast(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, lengths, None, shape.causal)

    def readable(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, lengths, None, shape.causal, None, True)[0]

    step = _training if kind == "training" else _inference
    return {
        "fast": Implementation("fast", functools.partial(step, layer, fast, shape)),
        "readable": Implementation("readable", functools.partial(step, layer, readable, shape)),
    }


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    A = tensor(A)
    return lambda: _ended([np.dot(A, A)])


def _inference(layer: Any, call: Callable, shape: Shape) -> Step:
    X, lengths = _arrays(shape.inputs(), shape.lengths())
    return lambda: _ended([call(X, lengths)])


def _training(layer: Any, call: Callable, shape: Shape) -> Step:
    X, lengths, cotangent = _arrays(shape.inputs(), shape.lengths(), shape.cotangent())
    X.attach_grad()
    variables = [X, *(W.data() for W in layer.collect_params().values())]

    def step() -> list[Any]:
        with autograd.record():
            output = call(X, lengths)
        return _ended([output, *autograd.grad([output], variables, [cotangent])])

    return step


def _arrays(*arrays: Any) -> list[Any]:
    return [None if array is None else tensor(array) for array in arrays]


def _ended(results: list[Any]) -> list[Any]:
    """The results, when they are there: MXNet computes them in threads of its own."""
    for X in results:
        X.wait_to_read()
    return results
