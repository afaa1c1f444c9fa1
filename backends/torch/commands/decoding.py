"""PyTorch, one token: our layer with a cache, beside a static cache by hand with the fused kernel; also compiled."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import mha
from mha.bench import decoding
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step

from ..arrays import tensor


def implementations(attention: mha.MultiHeadAttention, shape: Shape) -> dict[str, Implementation]:
    """The implementations by name, ours first; gradients are not recorded."""
    layer: Any = attention.layer
    x = tensor(shape.inputs())

    def ours(layer: Any) -> Step:
        return _unrecorded(decoding.decoder(attention, shape, lambda cache: layer(x, x, x, causal=True, cache=cache)))

    def by_hand(compiled: bool) -> Step:
        keys, values = map(tensor, decoding.heads(shape))  # (B, G, S, d)
        place, slots = decoding.places(), torch.arange(keys.shape[2])

        def split() -> list[Any]:
            projected = (W(x).view(shape.B, 1, -1, shape.D // shape.H) for W in (layer.W_q, layer.W_k, layer.W_v))
            return [X.transpose(1, 2) for X in projected]  # (B, H or G, 1, d)

        def merged(pooled: Any) -> Any:
            return layer.W_o(pooled.transpose(1, 2).reshape(shape.B, 1, shape.D))  # (B, 1, D)

        def eager(t: int) -> Any:
            q, k, v = split()
            keys[:, :, t : t + 1], values[:, :, t : t + 1] = k, v
            seen = keys[:, :, : t + 1], values[:, :, : t + 1]
            return merged(functional.scaled_dot_product_attention(q, *seen, enable_gqa=shape.G is not None))

        @torch.compile(fullgraph=True, dynamic=False)
        def once(t: Any) -> Any:
            q, k, v = split()
            keys.index_copy_(2, t, k)
            values.index_copy_(2, t, v)
            seen = (slots <= t)[None, None, None]  # (1, 1, 1, S)
            grouped = shape.G is not None
            return merged(functional.scaled_dot_product_attention(q, keys, values, seen, enable_gqa=grouped))

        def step() -> Results:
            t = shape.T + next(place)
            return Results(once(torch.tensor([t])) if compiled else eager(t))

        return _unrecorded(step)

    made: dict[str, Callable[[], Step]] = {
        "attention.layer": lambda: ours(layer),
        "attention.layer, compiled": lambda: ours(torch.compile(layer, fullgraph=True)),
        "static cache by hand": lambda: by_hand(False),
        "static cache by hand, compiled": lambda: by_hand(True),
    }
    roles = "layer", "compiled layer", "kernel", "compiled kernel"
    found = {name: Implementation(role, make) for role, (name, make) in zip(roles, made.items(), strict=True)}
    return found | decoding.user_calls(attention, shape, tensor, _unrecorded)


def _unrecorded(step: Step) -> Step:
    step = torch.no_grad()(step)
    step()  # which may compile
    return step
