"""PyTorch, eager: our layer beside torch.nn.MultiheadAttention, which has no groups, and the fused kernel."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import mha
from mha.bench import steps
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step

from ..arrays import tensor


def implementations(attention: mha.MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations by name, ours first.

    In training, a step gives the output too, but `attention.gradients(...)` does not.
    """
    layer: Any = attention.layer
    step = _training if kind == "training" else _inference
    visible = shape.visible(torch.arange(shape.T)) if shape.lengths() is None else None  # (T, T), True = attend
    in_order = shape.causal and shape.window is None  # which both know without a mask
    grouped = {"enable_gqa": True} if shape.G else {}  # which PyTorch 2.4 lacks

    def ours(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, lengths, causal=shape.causal)

    def readable(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, lengths, causal=shape.causal, return_weights=True)[0]

    def native() -> Step:
        theirs = steps.without_window(attention).to_native("torch.nn.MultiheadAttention")
        outside = None if visible is None else ~visible  # here True = hide
        options: Any = {"need_weights": False, "attn_mask": outside, "is_causal": in_order}

        def call(X: Any, lengths: Any) -> Any:
            hidden = None if lengths is None else ~_seen(lengths, shape.T)
            return theirs(X, X, X, key_padding_mask=hidden, **options)[0]

        return step(theirs, call, shape)

    def fused(X: Any, lengths: Any) -> Any:
        split = (shape.B, shape.T, -1, shape.D // shape.H)
        q, k, v = (W(X).view(split).transpose(1, 2) for W in (layer.W_q, layer.W_k, layer.W_v))  # (B, H or G, T, d)
        seen = None if in_order else visible  # here True = attend
        if lengths is not None:
            seen = _seen(lengths, shape.T)[:, None, None]  # (B, 1, 1, T)
        pooled = functional.scaled_dot_product_attention(q, k, v, seen, is_causal=in_order, **grouped)  # (B, H, T, d)
        return layer.W_o(pooled.transpose(1, 2).reshape(shape.B, shape.T, shape.D))  # (B, T, D)

    made = {
        "attention.layer": Implementation("layer", functools.partial(step, layer, ours, shape)),
        "readable": Implementation("readable", functools.partial(step, layer, readable, shape)),
    }
    if shape.G is None:
        made["nn.MultiheadAttention"] = Implementation("native", native)
    fused_step = functools.partial(step, layer, fused, shape)
    made["F.scaled_dot_product_attention"] = Implementation("kernel", fused_step)
    # As the layer's step; who calls with NumPy arrays would not think of it.
    modes = [] if kind == "training" else [torch.inference_mode()]
    return made | steps.user_calls(attention, shape, kind, tensor, *modes)


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    A = torch.tensor(A)
    return lambda: A @ A


def _inference(layer: Any, call: Callable, shape: Shape) -> Step:
    X, lengths = _arrays(shape.inputs(), shape.lengths())

    @torch.inference_mode()
    def step() -> Results:
        return Results(call(X, lengths))

    layer.eval()
    return step


def _training(layer: Any, call: Callable, shape: Shape) -> Step:
    X, lengths, cotangent = _arrays(shape.inputs(), shape.lengths(), shape.cotangent())
    variables = [X.requires_grad_(), *layer.parameters()]

    def step() -> Results:
        output = call(X, lengths)
        by_input, *by_weights = torch.autograd.grad(output, variables, cotangent)
        return Results(output.detach(), (by_input,), tuple(by_weights))

    layer.train()
    return step


def _arrays(*arrays: Any) -> list[Any]:
    return [None if array is None else tensor(array) for array in arrays]


def _seen(lengths: Any, T: int) -> Any:
    return torch.arange(T) < lengths[:, None]  # (B, T)
