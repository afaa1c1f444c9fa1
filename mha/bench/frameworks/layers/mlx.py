"""MLX: our layer beside mlx.nn.MultiHeadAttention, which has no groups, and the framework's own kernel."""

import functools
import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mha.backends.mlx.arrays import tensor
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
    hiding, mask = shape.call(), shape.mask()

    def ours(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, lengths, **hiding)

    def readable(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, lengths, **hiding, return_weights=True)[0]

    def native() -> Step:
        theirs = steps.without_window(attention).to_native("mlx.nn.MultiHeadAttention")
        return step(theirs, lambda X, seen: theirs(X, X, X, seen), shape, seen)

    def fused(X: Any, seen: Any) -> Any:
        split = (shape.B, shape.T, -1, shape.D // shape.H)
        projected = (W(X).reshape(split) for W in (layer.W_q, layer.W_k, layer.W_v))  # (B, T, H or G, d)
        q, k, v = (X.transpose(0, 2, 1, 3) for X in projected)  # (B, H or G, T, d)
        scale = 1 / math.sqrt(shape.D // shape.H)
        pooled = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=seen)  # (B, H, T, d)
        return layer.W_o(pooled.transpose(0, 2, 1, 3).reshape(shape.B, shape.T, shape.D))  # (B, T, D)

    lengths, seen = shape.lengths(), None if mask is None else mask[:, None]  # (B or 1, 1, 1 or T, T)
    made = {
        "attention.layer": Implementation("layer", functools.partial(step, layer, ours, shape, lengths)),
        "readable": Implementation("readable", functools.partial(step, layer, readable, shape, lengths)),
    }
    if shape.G is None:
        made["nn.MultiHeadAttention"] = Implementation("native", native)
    fused_step = functools.partial(step, layer, fused, shape, seen)
    made["fast.scaled_dot_product_attention"] = Implementation("kernel", fused_step)
    return made | steps.user_calls(attention, shape, kind, tensor, lambda step: lambda: _wait(step()))


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    A = tensor(A)
    return lambda: _wait(Results(A @ A))


def _inference(layer: Any, call: Callable, shape: Shape, lengths: Any) -> Step:
    X, lengths = _arrays(shape.inputs(), lengths)
    layer.eval()
    return lambda: _wait(Results(call(X, lengths)))


def _training(layer: Any, call: Callable, shape: Shape, lengths: Any) -> Step:
    """A forward and a backward pass; lengths: or a mask, ready-made, or None."""
    X, lengths, cotangent = _arrays(shape.inputs(), lengths, shape.cotangent())
    layer.train()

    def loss(weights: Any, X: Any) -> Any:
        layer.update(weights)
        output = call(X, lengths)
        return (output * cotangent).sum(), output

    both, weights = mx.value_and_grad(loss, argnums=(0, 1)), layer.trainable_parameters()

    def step() -> Results:
        (_, output), (by_weights, by_input) = both(weights, X)
        layer.update(weights)
        found: Any = tree_flatten(by_weights, destination={})
        return _wait(Results(output, (by_input,), tuple(found.values())))

    return step


def _arrays(*arrays: Any) -> list[Any]:
    return [None if array is None else tensor(array) for array in arrays]


def _wait(results: Results) -> Results:
    """Wait for results: MLX computes them on demand."""
    mx.eval([X for X in (results.output, *results.by_input, *results.by_weights) if X is not None])
    return results
