"""JAX, compiled by jax.jit: our layer beside those of Flax, of which linen's has no groups, and jax.nn's function."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from mha.bench import steps
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step
from mha.layer import MultiHeadAttention


def implementations(attention: MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations by name, ours first.

    In training, a step gives the output too, but `attention.gradients(...)` does not.
    """
    module, variables = attention.layer.unbind()
    plain = steps.without_window(attention)
    step = _training if kind == "training" else _inference
    lengths, mask, hiding = shape.lengths(), shape.mask(), shape.call()
    packed = shape.segment_numbers()
    seen = None if mask is None else mask[:, None]  # (B or 1, 1, 1 or T, T), ready-made

    def ours(variables: Any, X: Any, lengths: Any) -> Any:
        return module.apply(variables, X, X, X, lengths, **hiding)

    def readable(variables: Any, X: Any, lengths: Any) -> Any:
        return module.apply(variables, X, X, X, lengths, **hiding, return_weights=True)[0]

    def native() -> Step:
        theirs, variables = plain.to_native("flax.linen.MultiHeadDotProductAttention").unbind()

        def call(variables: Any, X: Any, seen: Any) -> Any:
            return theirs.apply(variables, X, mask=seen, deterministic=True)

        return step(variables, call, shape, seen)

    def newer() -> Step:
        parts: Any = nnx.split(plain.to_native("flax.nnx.MultiHeadAttention"), nnx.Param, ...)
        graph, state, others = parts

        def call(state: Any, X: Any, seen: Any) -> Any:
            return nnx.merge(graph, state, others)(X, mask=seen, deterministic=True)

        return step(state, call, shape, seen)

    def fused(variables: Any, X: Any, lengths: Any) -> Any:
        kernels = {name: W["kernel"] for name, W in variables["params"].items()}
        split = (shape.B, shape.T, -1, shape.D // shape.H)
        q, k, v = ((X @ kernels[name]).reshape(split) for name in ("W_q", "W_k", "W_v"))  # (B, T, H or G, d)
        options = {"key_value_seq_lengths": lengths, "is_causal": shape.causal, "local_window_size": shape.window}
        options = options if packed is None else {"mask": lengths}  # in the place of the lengths
        pooled = jax.nn.dot_product_attention(q, k, v, **options)  # (B, T, H, d)
        return pooled.reshape(shape.B, shape.T, shape.D) @ kernels["W_o"]  # (B, T, D)

    made = {
        "attention.layer": Implementation("layer", functools.partial(step, variables, ours, shape, lengths)),
        "readable": Implementation("readable", functools.partial(step, variables, readable, shape, lengths)),
    }
    if shape.G is None:
        made["linen.MultiHeadDotProductAttention"] = Implementation("native", native)
    made["nnx.MultiHeadAttention"] = Implementation("second native", newer)
    fused_step = functools.partial(step, variables, fused, shape, lengths if packed is None else seen)
    made["jax.nn.dot_product_attention"] = Implementation("kernel", fused_step)
    return made | steps.user_calls(attention, shape, kind, jnp.asarray, _warm_up, _warm_up)


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    return _compile(lambda A: A @ A, A)


def _inference(variables: Any, call: Callable, shape: Shape, lengths: Any) -> Step:
    """A forward pass; lengths: or a mask, or None."""

    def step(variables: Any, X: Any, lengths: Any) -> Results:
        return Results(call(variables, X, lengths))

    return _compile(step, variables, shape.inputs(), lengths)


def _training(variables: Any, call: Callable, shape: Shape, lengths: Any) -> Step:
    def step(variables: Any, X: Any, lengths: Any, cotangent: Any) -> Results:
        output, pull_back = jax.vjp(lambda variables, X: call(variables, X, lengths), variables, X)
        by_variables, by_input = pull_back(cotangent)
        return Results(output, (by_input,), tuple(jax.tree.leaves(by_variables)))

    return _compile(step, variables, shape.inputs(), lengths, shape.cotangent())


def _warm_up(step: Step) -> Step:
    """Run a step once, which compiles it, and return it."""
    step()
    return lambda: jax.block_until_ready(step())


def _compile(function: Callable, *arrays: Any) -> Step:
    """A step of a function on trees of arrays, compiled before its first call."""
    arrays = jax.tree.map(jnp.asarray, arrays)
    compiled = jax.jit(function).lower(*arrays).compile()
    return lambda: jax.block_until_ready(compiled(*arrays))
