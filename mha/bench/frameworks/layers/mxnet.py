"""MXNet, imperative: our layer alone, since Gluon has no attention of its own."""

import functools
from collections.abc import Callable
from typing import Any

from mxnet import autograd, np

from mha.backends.mxnet.arrays import tensor
from mha.bench import steps
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step
from mha.core.call import GIVEN, Call
from mha.layer import MultiHeadAttention


def implementations(attention: MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations by name, ours first.

    In training, a step gives the output too, but `attention.gradients(...)` does not.
    """
    layer: Any = attention.layer
    hiding = shape.call()

    def ours(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, *Call(lengths, **hiding)[GIVEN])

    def readable(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, *Call(lengths, **hiding, return_weights=True)[GIVEN])[0]

    step = _training if kind == "training" else _inference
    made = {
        "attention.layer": Implementation("layer", functools.partial(step, layer, ours, shape)),
        "readable": Implementation("readable", functools.partial(step, layer, readable, shape)),
    }
    return made | steps.user_calls(attention, shape, kind, tensor, lambda step: lambda: _wait(step()))


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    A = tensor(A)
    return lambda: _wait(Results(np.dot(A, A)))


def _inference(layer: Any, call: Callable, shape: Shape) -> Step:
    X, lengths = _arrays(shape.inputs(), shape.lengths())
    return lambda: _wait(Results(call(X, lengths)))


def _training(layer: Any, call: Callable, shape: Shape) -> Step:
    X, lengths, cotangent = _arrays(shape.inputs(), shape.lengths(), shape.cotangent())
    X.attach_grad()
    variables = [X, *(W.data() for W in layer.collect_params().values())]

    def step() -> Results:
        with autograd.record():
            output = call(X, lengths)
        gradients = autograd.grad([output], variables, [cotangent])  # arrays of MXNet's older kind
        by_input, *by_weights = (X.as_np_ndarray() for X in gradients)
        return _wait(Results(output, (by_input,), tuple(by_weights)))

    return step


def _arrays(*arrays: Any) -> list[Any]:
    return [None if array is None else tensor(array) for array in arrays]


def _wait(results: Results) -> Results:
    """Wait for results, which MXNet computes in its own threads."""
    for X in (results.output, *results.by_input, *results.by_weights):
        if X is not None:
            X.wait_to_read()
    return results
