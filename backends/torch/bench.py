"""PyTorch, eager: our layer beside torch.nn.MultiheadAttention and a plain use of the fused kernel."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import mha
from mha.bench import steps
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step

from .arrays import tensor


def implementations(attention: mha.MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations by name, ours first.

    In training, a step gives the output too, but `attention.gradients(...)` does not.
    """
    layer: Any = attention.layer
    theirs = attention.to_native("torch.nn.MultiheadAttention")
    later = torch.ones(shape.T, shape.T, dtype=torch.bool).triu(1) if shape.causal else None  # (T, T)

    def ours(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, lengths, causal=shape.causal)

    def readable(X: Any, lengths: Any) -> Any:
        return layer(X, X, X, lengths, causal=shape.causal, return_weights=True)[0]

    def native(X: Any, lengths: Any) -> Any:
        hidden = None if lengths is None else ~_seen(lengths, shape.T)  # here True = hide
        options = {"need_weights": False, "attn_mask": later, "is_causal": shape.causal}
        return theirs(X, X, X, key_padding_mask=hidden, **options)[0]

    def fused(X: Any, lengths: Any) -> Any:
        split = (shape.B, shape.T, shape.H, shape.D // shape.H)
        q, k, v = (W(X).view(split).transpose(1, 2) for W in (layer.W_q, layer.W_k, layer.W_v))  # (B, H, T, d)
        seen = None if lengths is None else _seen(lengths, shape.T)[:, None, None]  # (B, 1, 1, T), here True = attend
        pooled = functional.scaled_dot_product_attention(q, k, v, seen, is_causal=shape.causal)  # (B, H, T, d)
        return layer.W_o(pooled.transpose(1, 2).reshape(shape.B, shape.T, shape.D))  # (B, T, D)

    step = _training if kind == "training" else _inference
    made = {
        "attention.layer": Implementation("layer", functools.partial(step, layer, ours, shape)),
        "readable": Implementation("readable", functools.partial(step, layer, readable, shape)),
        "nn.MultiheadAttention": Implementation("native", functools.partial(step, theirs, native, shape)),
        "F.scaled_dot_product_attention": Implementation("kernel", functools.partial(step, layer, fused, shape)),
    }
    if kind == "training":
        called = functools.partial(steps.gradients, attention, shape, tensor)
        return made | {"attention.gradients(...), own arrays": Implementation("call", called)}
    called = functools.partial(_called, attention, shape)
    return made | {
        "attention(...), own arrays": Implementation("call", called),
        "attention(...), NumPy arrays": Implementation("NumPy call", functools.partial(steps.call, attention, shape)),
    }


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


def _called(attention: mha.MultiHeadAttention, shape: Shape) -> Step:
    """A step of a user's call in inference mode, as the layer's; who calls with NumPy arrays would not think of it."""
    return torch.inference_mode()(steps.call(attention, shape, tensor))


def _arrays(*arrays: Any) -> list[Any]:
    return [None if array is None else tensor(array) for array in arrays]


def _seen(lengths: Any, T: int) -> Any:
    return torch.arange(T) < lengths[:, None]  # (B, T)
