"""JAX, compiled by jax.jit: our layer beside those of Flax, of which linen's has no groups, and jax.nn's function.

Of one token, Flax's layers have decode=True; all give their cache away.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from mha.bench import decoding, steps
from mha.bench.cases import Shape
from mha.bench.steps import REFERENCE, Implementation, Results, Step
from mha.core.cache import Cache
from mha.layer import MultiHeadAttention


def passes(attention: MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations of inference or training by name, ours first.

    In training, a step gives the output too, but `attention.gradients(...)` does not.
    """
    module, variables = attention.layer.unbind()
    plain = steps.without_window(attention)
    step = _training if kind == "training" else _inference
    lengths, mask, hiding = shape.lengths(), shape.mask(), shape.call()
    packed = shape.segment_numbers()
    seen = None if mask is None else mask[:, None]  # (B or 1, 1, 1 or T, T), ready-made

    def ours(variables: Any, X: Any, lengths: Any, **options: Any) -> Any:
        return module.apply(variables, X, X, X, lengths, **hiding, **options)

    def native() -> Step:
        theirs, variables = plain.to_native("flax.linen.MultiHeadDotProductAttention").unbind()

        def call(variables: Any, X: Any, seen: Any) -> Any:
            return theirs.apply(variables, X, mask=seen, deterministic=True)

        return step(variables, shape, seen, call)

    def newer() -> Step:
        parts: Any = nnx.split(plain.to_native("flax.nnx.MultiHeadAttention"), nnx.Param, ...)
        graph, state, others = parts

        def call(state: Any, X: Any, seen: Any) -> Any:
            return nnx.merge(graph, state, others)(X, mask=seen, deterministic=True)

        return step(state, shape, seen, call)

    def fused(variables: Any, X: Any, lengths: Any) -> Any:
        kernels = {name: W["kernel"] for name, W in variables["params"].items()}
        split = (shape.B, shape.T, -1, shape.D // shape.H)
        q, k, v = ((X @ kernels[name]).reshape(split) for name in ("W_q", "W_k", "W_v"))  # (B, T, H or G, d)
        options = {"key_value_seq_lengths": lengths, "is_causal": shape.causal, "local_window_size": shape.window}
        options = options if packed is None else {"mask": lengths}  # in the place of the lengths
        pooled = jax.nn.dot_product_attention(q, k, v, **options)  # (B, T, H, d)
        return pooled.reshape(shape.B, shape.T, shape.D) @ kernels["W_o"]  # (B, T, D)

    made = steps.of_layer(ours, functools.partial(step, variables, shape, lengths))
    if shape.G is None:
        made["linen.MultiHeadDotProductAttention"] = Implementation("native", native)
    made["nnx.MultiHeadAttention"] = Implementation("second native", newer)
    fused_step = functools.partial(step, variables, shape, lengths if packed is None else seen, fused)
    made["jax.nn.dot_product_attention"] = Implementation("kernel", fused_step)
    return made | steps.user_calls(attention, shape, kind, jnp.asarray, _warm_up, _warm_up)


def tokens(attention: MultiHeadAttention, shape: Shape) -> dict[str, Implementation]:
    """The implementations of decoding by name, ours first."""
    x = jnp.asarray(shape.inputs())

    def ours() -> Step:
        module, variables = attention.layer.unbind()

        def call(variables: Any, x: Any, cache: Cache) -> Any:
            return module.apply(variables, x, x, x, causal=True, cache=cache)

        compiled = jax.jit(call, donate_argnums=2)
        return _warm_up(decoding.decoder(attention, shape, lambda cache: compiled(variables, x, cache)))

    def native() -> Step:
        theirs, variables = attention.to_native("flax.linen.MultiHeadDotProductAttention").unbind()
        theirs = theirs.clone(decode=True)

        def call(variables: Any, cache: Any, x: Any) -> Any:
            return theirs.apply({**variables, "cache": cache}, x, deterministic=True, mutable=["cache"])

        compiled, place = jax.jit(call, donate_argnums=1), decoding.places()
        cache: Any = dict(zip(("cached_key", "cached_value"), _heads(shape), strict=True))

        def step() -> Results:
            nonlocal cache
            if next(place) == 0:
                cache = cache | {"cache_index": jnp.array(shape.T, "int32")}
            output, changed = compiled(variables, cache, x)
            cache = dict(changed["cache"])
            return Results(output)

        return _warm_up(step)

    def newer() -> Step:
        theirs: Any = attention.to_native("flax.nnx.MultiHeadAttention")
        theirs.init_cache((shape.B, shape.T + decoding.MORE, shape.D))
        theirs.cached_key[...], theirs.cached_value[...] = _heads(shape)
        parts: Any = nnx.split(theirs, nnx.Param, nnx.Cache, ...)
        graph, state, cache, others = parts

        def call(state: Any, cache: Any, x: Any) -> Any:
            layer = nnx.merge(graph, state, cache, others)
            output = layer(x, deterministic=True, decode=True)
            return output, nnx.state(layer, nnx.Cache)

        compiled, place = jax.jit(call, donate_argnums=1), decoding.places()

        def step() -> Results:
            nonlocal cache
            if next(place) == 0:
                cache["cache_index"][...] = jnp.array(shape.T, "int32")
            output, cache = compiled(state, cache, x)
            return Results(output)

        return _warm_up(step)

    made = {REFERENCE: Implementation("layer", ours)}
    if shape.G is None:
        made["linen.MultiHeadDotProductAttention"] = Implementation("native", native)
    made["nnx.MultiHeadAttention"] = Implementation("second native", newer)
    return made | decoding.user_calls(attention, shape, jnp.asarray, _warm_up)


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    return _compile(lambda A: A @ A, A)


def _heads(shape: Shape) -> list[Any]:
    """Keys and values in Flax's layout, (B, S, H, d)."""
    return [jnp.asarray(X.swapaxes(1, 2).copy()) for X in decoding.heads(shape)]


def _inference(variables: Any, shape: Shape, lengths: Any, call: Callable) -> Step:
    """A forward pass; lengths: or a mask, or None."""

    def step(variables: Any, X: Any, lengths: Any) -> Results:
        return Results(call(variables, X, lengths))

    return _compile(step, variables, shape.inputs(), lengths)


def _training(variables: Any, shape: Shape, lengths: Any, call: Callable) -> Step:
    def step(variables: Any, X: Any, lengths: Any, cotangent: Any) -> Results:
        output, pull_back = jax.vjp(lambda variables, X: call(variables, X, lengths), variables, X)
        by_variables, by_input = pull_back(cotangent)
        return Results(output, (by_input,), tuple(jax.tree.leaves(by_variables)))

    return _compile(step, variables, shape.inputs(), lengths, shape.cotangent())


def _warm_up(step: Step) -> Step:
    """Run a step once, which compiles it; return a step that waits for its result."""
    step()
    return lambda: jax.block_until_ready(step())


def _compile(function: Callable, *arrays: Any) -> Step:
    """A step of a function on trees of arrays, compiled before its first call."""
    arrays = jax.tree.map(jnp.asarray, arrays)
    compiled = jax.jit(function).lower(*arrays).compile()
    return lambda: jax.block_until_ready(compiled(*arrays))
