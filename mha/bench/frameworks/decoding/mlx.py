"""MLX, one token: our layer with a cache, beside a static cache by hand with the framework's own kernel."""

import math
from typing import Any

import mlx.core as mx

from mha.backends.mlx.arrays import tensor
from mha.bench import decoding
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step
from mha.layer import MultiHeadAttention


def implementations(attention: MultiHeadAttention, shape: Shape) -> dict[str, Implementation]:
    """The implementations by name, ours first."""
    layer: Any = attention.layer
    x = tensor(shape.inputs())

    def ours() -> Step:
        return _waiting_step(decoding.decoder(attention, shape, lambda cache: layer(x, x, x, causal=True, cache=cache)))

    def by_hand() -> Step:
        keys, values = map(tensor, decoding.heads(shape))  # (B, G, S, d)
        place, scale = decoding.places(), 1 / math.sqrt(shape.D // shape.H)

        def step() -> Results:
            t = shape.T + next(place)
            split = shape.B, 1, -1, shape.D // shape.H
            projected = (W(x).reshape(split) for W in (layer.W_q, layer.W_k, layer.W_v))  # (B, 1, H or G, d)
            q, k, v = (X.transpose(0, 2, 1, 3) for X in projected)  # (B, H or G, 1, d)
            keys[:, :, t : t + 1], values[:, :, t : t + 1] = k, v
            seen = keys[:, :, : t + 1], values[:, :, : t + 1]  # (B, G, t + 1, d)
            pooled = mx.fast.scaled_dot_product_attention(q, *seen, scale=scale)  # (B, H, 1, d)
            return Results(layer.W_o(pooled.transpose(0, 2, 1, 3).reshape(shape.B, 1, shape.D)))  # (B, 1, D)

        return _waiting_step(step)

    return {
        "attention.layer": Implementation("layer", ours),
        "static cache by hand": Implementation("kernel", by_hand),
    } | decoding.user_calls(attention, shape, tensor, _waiting_step)


def _waiting_step(step: Step) -> Step:
    """A step that evaluates its result, which MLX computes on demand."""

    def run() -> Results:
        results = step()
        mx.eval(results.output)
        return results

    return run
