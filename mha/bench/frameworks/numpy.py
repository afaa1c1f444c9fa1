"""NumPy: our layer, whose gradients are a backward pass by hand; of one token also the products that it needs."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mha.backends.numpy import arrays
from mha.backends.numpy.gradients import vjp
from mha.bench import decoding, steps
from mha.bench.cases import Shape
from mha.bench.steps import REFERENCE, Implementation, Results, Step
from mha.core.call import Call, check
from mha.layer import MultiHeadAttention


def passes(attention: MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations of inference or training by name, ours first.

    In training, a step gives no output: the backward pass keeps none.
    """
    layer: Any = attention.layer
    hiding = shape.call()

    def ours(X: Any, lengths: Any, **options: Any) -> Any:
        return layer(X, X, X, lengths, **hiding, **options)

    made = steps.of_layer(ours, functools.partial(_inference, shape))
    if kind == "training":  # the backward pass has no weights to return, and gives no output
        made = {REFERENCE: Implementation("layer", functools.partial(_training, layer, shape))}
    return made | steps.user_calls(attention, shape, kind)


def tokens(attention: MultiHeadAttention, shape: Shape) -> dict[str, Implementation]:
    """The implementations of decoding by name, ours first."""
    layer: Any = attention.layer
    x = shape.inputs()

    def ours() -> Step:
        return decoding.decoder(attention, shape, lambda cache: layer(x, x, x, causal=True, cache=cache))

    def products() -> Step:
        keys, values = (X.reshape(-1, *X.shape[2:])[:, : shape.T] for X in decoding.heads(shape))  # (B*G, T, d)
        kernels = [attention.weights[f"W_{one}.kernel"] for one in "qkvo"]
        row = x.reshape(shape.B, shape.D)  # (B, D)

        def step() -> Results:
            W_q, _, _ = (row @ kernel for kernel in kernels[:3])  # (B, H*d)
            scores = W_q.reshape(len(keys), -1, keys.shape[2]) @ keys.swapaxes(1, 2)  # (B*G, H/G, T)
            np.matmul((scores @ values).reshape(shape.B, -1), kernels[3])  # (B, D)
            return Results()

        return step

    made = {REFERENCE: Implementation("layer", ours), "the products alone": Implementation("kernel", products)}
    return made | decoding.user_calls(attention, shape, np.asarray)


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    return lambda: A @ A


def _inference(shape: Shape, call: Callable) -> Step:
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
