"""MLX: our layer beside mlx.nn.MultiHeadAttention, which has no groups, and the framework's own kernel.

Of one token, the kernel has a static cache by hand.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mha.backends.mlx.arrays import tensor
from mha.bench import decoding, steps
from mha.bench.cases import Shape
from mha.bench.steps import REFERENCE, Implementation, Results, Step
from mha.layer import MultiHeadAttention


def passes(attention: MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations of inference or training by name, ours first.

    In training, a step gives the output too, but `attention.gradients(...)` does not.
    """
    layer: Any = attention.layer
    step = _training if kind == "training" else _inference
    hiding, mask = shape.call(), shape.mask()
    seen = None if mask is None else mask[:, None]  # (B or 1, 1, 1 or T, T)

    def ours(X: Any, lengths: Any, **options: Any) -> Any:
        return layer(X, X, X, lengths, **hiding, **options)

    def native() -> Step:
        theirs = steps.without_window(attention).to_native("mlx.nn.MultiHeadAttention")
        return step(theirs, shape, seen, lambda X, seen: theirs(X, X, X, seen))

    def fused(X: Any, seen: Any) -> Any:
        q, k, v = _split(layer, X, shape)  # (B, H or G, T, d)
        scale = 1 / math.sqrt(shape.D // shape.H)
        pooled = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=seen)  # (B, H, T, d)
        return layer.W_o(pooled.transpose(0, 2, 1, 3).reshape(X.shape))  # (B, T, D)

    made = steps.of_layer(ours, functools.partial(step, layer, shape, shape.lengths()))
    if shape.G is None:
        made["nn.MultiHeadAttention"] = Implementation("native", native)
    fused_step = functools.partial(step, layer, shape, seen, fused)
    made["fast.scaled_dot_product_attention"] = Implementation("kernel", fused_step)
    return made | steps.user_calls(attention, shape, kind, tensor, _waiting)


def tokens(attention: MultiHeadAttention, shape: Shape) -> dict[str, Implementation]:
    """The implementations of decoding by name, ours first."""
    layer: Any = attention.layer
    x = tensor(shape.inputs())

    def ours() -> Step:
        return _waiting(decoding.decoder(attention, shape, lambda cache: layer(x, x, x, causal=True, cache=cache)))

    def by_hand() -> Step:
        keys, values = map(tensor, decoding.heads(shape))  # (B, G, S, d)
        place, scale = decoding.places(), 1 / math.sqrt(shape.D // shape.H)

        def step() -> Results:
            t = shape.T + next(place)
            q, k, v = _split(layer, x, shape)  # (B, H or G, 1, d)
            keys[:, :, t : t + 1], values[:, :, t : t + 1] = k, v
            seen = keys[:, :, : t + 1], values[:, :, : t + 1]  # (B, G, t + 1, d)
            pooled = mx.fast.scaled_dot_product_attention(q, *seen, scale=scale)  # (B, H, 1, d)
            return Results(layer.W_o(pooled.transpose(0, 2, 1, 3).reshape(x.shape)))  # (B, 1, D)

        return _waiting(step)

    made = {REFERENCE: Implementation("layer", ours), "static cache by hand": Implementation("kernel", by_hand)}
    return made | decoding.user_calls(attention, shape, tensor, _waiting)


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    A = tensor(A)
    return _waiting(lambda: Results(A @ A))


def _split(layer: Any, X: Any, shape: Shape) -> list[Any]:
    """The heads of queries, keys and values, (B, H or G, T, d) each, of X (B, T, D)."""
    split = (*X.shape[:2], -1, shape.D // shape.H)
    projected = (W(X).reshape(split) for W in (layer.W_q, layer.W_k, layer.W_v))  # (B, T, H or G, d)
    return [X.transpose(0, 2, 1, 3) for X in projected]  # (B, H or G, T, d)


def _inference(layer: Any, shape: Shape, lengths: Any, call: Callable) -> Step:
    X, lengths = steps.tensors(tensor, shape.inputs(), lengths)
    layer.eval()
    return _waiting(lambda: Results(call(X, lengths)))


def _training(layer: Any, shape: Shape, lengths: Any, call: Callable) -> Step:
    """A forward and a backward pass; lengths: or a mask, ready-made, or None."""
    X, lengths, cotangent = steps.tensors(tensor, shape.inputs(), lengths, shape.cotangent())
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
        return Results(output, (by_input,), tuple(found.values()))

    return _waiting(step)


def _waiting(step: Step) -> Step:
    """A step that waits for its results: MLX computes them on demand."""

    def wait() -> Results:
        results = step()
        mx.eval([X for X in (results.output, *results.by_input, *results.by_weights) if X is not None])
        return results

    return wait
