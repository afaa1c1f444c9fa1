"""PyTorch, eager: our layer beside torch.nn.MultiheadAttention, which has no groups, and the fused kernels."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from mha.backends.torch.arrays import tensor
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
    in_order = shape.causal and shape.window is None  # in order, which both know without a mask
    padded = shape.lengths() is not None
    grouped: Any = {"enable_gqa": True} if shape.G else {}  # which PyTorch 2.4 lacks

    def ours(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, lengths, **hiding)

    def readable(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, lengths, **hiding, return_weights=True)[0]

    def native(step: Callable) -> Step:
        theirs = steps.without_window(attention).to_native("torch.nn.MultiheadAttention")
        hidden = None if mask is None else ~mask[:, 0] if padded else ~mask[0]  # (B, T) or (T, T), True = hide

        def call(X: Any, hidden: Any) -> Any:
            masks: Any = {"key_padding_mask": hidden} if padded else {"attn_mask": hidden, "is_causal": in_order}
            return theirs(X, X, X, need_weights=False, **masks)[0]

        return step(theirs, call, shape, hidden)

    def around(pool: Callable, X: Any) -> Any:
        split = (shape.B, shape.T, -1, shape.D // shape.H)
        q, k, v = (W(X).view(split).transpose(1, 2) for W in (layer.W_q, layer.W_k, layer.W_v))  # (B, H or G, T, d)
        return layer.W_o(pool(q, k, v).transpose(1, 2).reshape(shape.B, shape.T, shape.D))  # (B, T, D)

    def fused(X: Any, seen: Any) -> Any:
        pool = functional.scaled_dot_product_attention
        return around(functools.partial(pool, attn_mask=seen, is_causal=in_order, **grouped), X)

    def flexible() -> Step:
        """The kernel that torch.compile makes with a C++ compiler; on the CPU it has no gradients."""
        from torch.nn.attention import flex_attention  # which PyTorch 2.4 lacks

        (texts,) = _arrays(shape.segment_numbers())
        kernel: Any = torch.compile(flex_attention.flex_attention, fullgraph=True)
        blocks = flex_attention.create_block_mask(
            lambda b, h, q, k: texts[b, q] == texts[b, k], shape.B, None, shape.T, shape.T, device="cpu"
        )
        step = _inference(layer, lambda X, _: around(functools.partial(kernel, block_mask=blocks), X), shape, None)
        step()  # compiles
        return step

    lengths, seen = shape.lengths(), None if mask is None or in_order else mask[:, None]  # (B or 1, 1, 1 or T, T)
    made = {
        "attention.layer": Implementation("layer", functools.partial(step, layer, ours, shape, lengths)),
        "readable": Implementation("readable", functools.partial(step, layer, readable, shape, lengths)),
    }
    if shape.G is None:
        made["nn.MultiheadAttention"] = Implementation("native", functools.partial(native, step))
    fused_step = functools.partial(step, layer, fused, shape, seen)
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


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    A = torch.tensor(A)
    return lambda: A @ A


def _inference(layer: Any, call: Callable, shape: Shape, lengths: Any) -> Step:
    return torch.inference_mode()(_forward(layer, call, shape, lengths))


def _forward(layer: Any, call: Callable, shape: Shape, lengths: Any) -> Step:
    """A forward pass that PyTorch records for gradients; lengths: or a ready-made mask, or None."""
    X, lengths = _arrays(shape.inputs(), lengths)
    layer.eval()
    return lambda: Results(call(X, lengths))


def _training(layer: Any, call: Callable, shape: Shape, lengths: Any) -> Step:
    X, lengths, cotangent = _arrays(shape.inputs(), lengths, shape.cotangent())
    variables = [X.requires_grad_(), *layer.parameters()]

    def step() -> Results:
        output = call(X, lengths)
        by_input, *by_weights = torch.autograd.grad(output, variables, cotangent)
        return Results(output.detach(), (by_input,), tuple(by_weights))

    layer.train()
    return step


def _arrays(*arrays: Any) -> list[Any]:
    return [None if array is None else tensor(array) for array in arrays]
