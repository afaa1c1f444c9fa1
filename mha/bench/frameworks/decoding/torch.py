"""PyTorch, one token: our layer with a cache, beside a static cache by hand with the fused kernel; also compiled.

Where `transformers` is installed, also beside its own layer and static cache.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from mha.backends.torch.arrays import tensor
from mha.bench import decoding
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step
from mha.layer import MultiHeadAttention


def implementations(attention: MultiHeadAttention, shape: Shape) -> dict[str, Implementation]:
    """The implementations by name, ours first; gradients are not recorded."""
    layer: Any = attention.layer
    x = tensor(shape.inputs())

    def ours(layer: Any) -> Step:
        return _no_gradients(decoding.decoder(attention, shape, lambda cache: layer(x, x, x, causal=True, cache=cache)))

    def by_hand(compiled: bool) -> Step:
        keys, values = map(tensor, decoding.heads(shape))  # (B, G, S, d)
        place, slots = decoding.places(), torch.arange(keys.shape[2])

        def split() -> list[Any]:
            projected = (W(x).view(shape.B, 1, -1, shape.D // shape.H) for W in (layer.W_q, layer.W_k, layer.W_v))
            return [X.transpose(1, 2) for X in projected]  # (B, H or G, 1, d)

        def merge(pooled: Any) -> Any:
            return layer.W_o(pooled.transpose(1, 2).reshape(shape.B, 1, shape.D))  # (B, 1, D)

        def eager(t: int) -> Any:
            q, k, v = split()
            keys[:, :, t : t + 1], values[:, :, t : t + 1] = k, v
            seen = keys[:, :, : t + 1], values[:, :, : t + 1]
            return merge(functional.scaled_dot_product_attention(q, *seen, enable_gqa=shape.G is not None))

        @torch.compile(fullgraph=True, dynamic=False)
        def once(t: Any) -> Any:
            q, k, v = split()
            keys.index_copy_(2, t, k)
            values.index_copy_(2, t, v)
            seen = (slots <= t)[None, None, None]  # (1, 1, 1, S)
            grouped = shape.G is not None
            return merge(functional.scaled_dot_product_attention(q, keys, values, seen, enable_gqa=grouped))

        def step() -> Results:
            t = shape.T + next(place)
            return Results(once(torch.tensor([t])) if compiled else eager(t))

        return _no_gradients(step)

    def theirs(compiled: bool) -> Step:
        module, cache = _of_transformers(layer, shape)
        module = torch.compile(module, fullgraph=True) if compiled else module
        place, slots, turned = decoding.places(), torch.arange(shape.T + decoding.MORE), shape.D // shape.H
        unturned = torch.ones((1, 1, turned)), torch.zeros((1, 1, turned))  # cosines and sines

        def step() -> Results:
            t = shape.T + next(place)
            cache.layers[0].cumulative_length.fill_(t)
            seen = (slots <= t)[None, None, None]  # (1, 1, 1, S)
            return Results(module(x, position_embeddings=unturned, attention_mask=seen, past_key_values=cache)[0])

        return _no_gradients(step)

    made: dict[str, Callable[[], Step]] = {
        "attention.layer": lambda: ours(layer),
        "attention.layer, compiled": lambda: ours(torch.compile(layer, fullgraph=True)),
        "static cache by hand": lambda: by_hand(False),
        "static cache by hand, compiled": lambda: by_hand(True),
    }
    roles = "layer", "compiled layer", "kernel", "compiled kernel"
    found = {name: Implementation(role, make) for role, (name, make) in zip(roles, made.items(), strict=True)}
    if importlib.util.find_spec("transformers") is not None:
        found["transformers, StaticCache"] = Implementation("native", lambda: theirs(False))
        found["transformers, StaticCache, compiled"] = Implementation("compiled native", lambda: theirs(True))
    return found | decoding.user_calls(attention, shape, tensor, _no_gradients)


def _of_transformers(layer: Any, shape: Shape) -> tuple[Any, Any]:
    """The attention of Llama with a layer's weights, and its static cache after T tokens."""
    import transformers
    from transformers.models.llama.modeling_llama import LlamaAttention

    sizes = {"hidden_size": shape.D, "num_attention_heads": shape.H, "num_key_value_heads": shape.G or shape.H}
    options: Any = {"num_hidden_layers": 1, "attn_implementation": "sdpa"} | sizes
    config = transformers.LlamaConfig(**options)
    module: Any = LlamaAttention(config, 0)
    for own, theirs in (("W_q", "q_proj"), ("W_k", "k_proj"), ("W_v", "v_proj"), ("W_o", "o_proj")):
        setattr(module, theirs, getattr(layer, own))
    cache: Any = transformers.StaticCache(config, shape.T + decoding.MORE)
    cache.update(*map(tensor, decoding.heads(shape)), 0)
    return module.eval(), cache


def _no_gradients(step: Step) -> Step:
    step = torch.no_grad()(step)
    step()  # which may compile
    return step
