"""PyTorch, eager: our layer beside torch.nn.MultiheadAttention, which has no groups, and the fused kernels.

Of one token, the kernel has a static cache by hand, and ways are also compiled; where `transformers` is installed,
its own layer and static cache stand beside.
"""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from mha.backends.torch.arrays import tensor
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
    in_order = shape.causal and shape.window is None  # in order, which both know without a mask
    padded = shape.lengths() is not None
    seen = None if mask is None or in_order else mask[:, None]  # (B or 1, 1, 1 or T, T)

    def ours(X: Any, lengths: Any, **options: Any) -> Any:
        return layer(X, X, X, lengths, **hiding, **options)

    def native(step: Callable) -> Step:
        theirs = steps.without_window(attention).to_native("torch.nn.MultiheadAttention")
        hidden = None if mask is None else ~mask[:, 0] if padded else ~mask[0]  # (B, T) or (T, T), True = hide

        def call(X: Any, hidden: Any) -> Any:
            masks: Any = {"key_padding_mask": hidden} if padded else {"attn_mask": hidden, "is_causal": in_order}
            return theirs(X, X, X, need_weights=False, **masks)[0]

        return step(theirs, shape, hidden, call)

    def fused(X: Any, seen: Any) -> Any:
        known = {"attn_mask": seen, "is_causal": in_order, "enable_gqa": bool(shape.G)}
        return _around(functools.partial(functional.scaled_dot_product_attention, **known), layer, X, shape)

    def flexible() -> Step:
        """The kernel that torch.compile makes with a C++ compiler; on the CPU it has no gradients."""
        from torch.nn.attention import flex_attention

        texts = tensor(shape.segment_numbers())
        kernel: Any = torch.compile(flex_attention.flex_attention, fullgraph=True)
        blocks = flex_attention.create_block_mask(
            lambda b, h, q, k: texts[b, q] == texts[b, k], shape.B, None, shape.T, shape.T, device="cpu"
        )
        pool = functools.partial(kernel, block_mask=blocks)
        step = _inference(layer, shape, None, lambda X, _: _around(pool, layer, X, shape))
        step()  # compiles
        return step

    made = steps.of_layer(ours, functools.partial(step, layer, shape, shape.lengths()))
    if shape.G is None:
        made["nn.MultiheadAttention"] = Implementation("native", functools.partial(native, step))
    fused_step = functools.partial(step, layer, shape, seen, fused)
    made["F.scaled_dot_product_attention"] = Implementation("kernel", fused_step)
    if shape.segment_numbers() is not None and kind == "inference":
        made["flex_attention, compiled"] = Implementation("second kernel", flexible)
    if kind == "training":
        return made | steps.user_calls(attention, shape, kind, tensor)
    if shape.G is None:
        made["nn.MultiheadAttention, recorded"] = Implementation("recorded native", functools.partial(native, _forward))
    recorded = Implementation("recorded call", lambda: steps.call(attention, shape, tensor))
    made["attention(...), own arrays, recorded"] = recorded
    # As the layer's step; who calls with NumPy arrays would not think of it.
    return made | steps.user_calls(attention, shape, kind, tensor, torch.inference_mode())


def tokens(attention: MultiHeadAttention, shape: Shape) -> dict[str, Implementation]:
    """The implementations of decoding by name, ours first; gradients are not recorded."""
    layer: Any = attention.layer
    x = tensor(shape.inputs())

    def ours(layer: Any) -> Step:
        return _no_gradients(decoding.decoder(attention, shape, lambda cache: layer(x, x, x, causal=True, cache=cache)))

    def by_hand(compiled: bool) -> Step:
        keys, values = map(tensor, decoding.heads(shape))  # (B, G, S, d)
        place, slots = decoding.places(), torch.arange(keys.shape[2])
        attend = functools.partial(functional.scaled_dot_product_attention, enable_gqa=shape.G is not None)

        def eager(t: int) -> Any:
            def pool(q: Any, k: Any, v: Any) -> Any:
                keys[:, :, t : t + 1], values[:, :, t : t + 1] = k, v
                return attend(q, keys[:, :, : t + 1], values[:, :, : t + 1])

            return _around(pool, layer, x, shape)

        @torch.compile(fullgraph=True, dynamic=False)
        def once(t: Any) -> Any:
            def pool(q: Any, k: Any, v: Any) -> Any:
                keys.index_copy_(2, t, k)
                values.index_copy_(2, t, v)
                return attend(q, keys, values, (slots <= t)[None, None, None])  # (1, 1, 1, S)

            return _around(pool, layer, x, shape)

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

    made = {
        REFERENCE: Implementation("layer", lambda: ours(layer)),
        f"{REFERENCE}, compiled": Implementation("compiled layer", lambda: ours(torch.compile(layer, fullgraph=True))),
        "static cache by hand": Implementation("kernel", lambda: by_hand(False)),
        "static cache by hand, compiled": Implementation("compiled kernel", lambda: by_hand(True)),
    }
    if importlib.util.find_spec("transformers") is not None:
        made["transformers, StaticCache"] = Implementation("native", lambda: theirs(False))
        made["transformers, StaticCache, compiled"] = Implementation("compiled native", lambda: theirs(True))
    return made | decoding.user_calls(attention, shape, tensor, _no_gradients)


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


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    A = torch.tensor(A)
    return lambda: A @ A


def _around(pool: Callable, layer: Any, X: Any, shape: Shape) -> Any:
    """The output (B, T, D) for X (B, T, D): a pooling of heads between the layer's projections."""
    split = (*X.shape[:2], -1, shape.D // shape.H)
    q, k, v = (W(X).view(split).transpose(1, 2) for W in (layer.W_q, layer.W_k, layer.W_v))  # (B, H or G, T, d)
    return layer.W_o(pool(q, k, v).transpose(1, 2).reshape(X.shape))  # (B, T, D)


def _inference(layer: Any, shape: Shape, lengths: Any, call: Callable) -> Step:
    return torch.inference_mode()(_forward(layer, shape, lengths, call))


def _forward(layer: Any, shape: Shape, lengths: Any, call: Callable) -> Step:
    """A forward pass that PyTorch records for gradients; lengths: or a ready-made mask, or None."""
    X, lengths = steps.tensors(tensor, shape.inputs(), lengths)
    layer.eval()
    return lambda: Results(call(X, lengths))


def _training(layer: Any, shape: Shape, lengths: Any, call: Callable) -> Step:
    X, lengths, cotangent = steps.tensors(tensor, shape.inputs(), lengths, shape.cotangent())
    variables = [X.requires_grad_(), *layer.parameters()]

    def step() -> Results:
        output = call(X, lengths)
        by_input, *by_weights = torch.autograd.grad(output, variables, cotangent)
        return Results(output.detach(), (by_input,), tuple(by_weights))

    layer.train()
    return step


def _no_gradients(step: Step) -> Step:
    step = torch.no_grad()(step)
    step()  # which may compile
    return step
