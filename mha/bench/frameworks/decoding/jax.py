"""JAX, one token, compiled by jax.jit: our layer with a cache, beside Flax's with decode=True; all give it away."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from mha.bench import decoding
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step
from mha.core.cache import Cache
from mha.layer import MultiHeadAttention


def implementations(attention: MultiHeadAttention, shape: Shape) -> dict[str, Implementation]:
    """The implementations by name, ours first."""
    x = jnp.asarray(shape.inputs())

    def ours() -> Step:
        module, variables = attention.layer.unbind()

        def call(variables: Any, x: Any, cache: Cache) -> Any:
            return module.apply(variables, x, x, x, causal=True, cache=cache)

        compiled = jax.jit(call, donate_argnums=2)
        return _waiting_step(decoding.decoder(attention, shape, lambda cache: compiled(variables, x, cache)))

    def native() -> Step:
        theirs, variables = attention.to_native("flax.linen.MultiHeadDotProductAttention").unbind()
        theirs = theirs.clone(decode=True)

        def call(variables: Any, cache: Any, x: Any) -> Any:
            return theirs.apply({**variables, "cache": cache}, x, deterministic=True, mutable=["cache"])

        compiled, place = jax.jit(call, donate_argnums=1), decoding.places()
        cache: Any = dict(zip(("cached_key", "cached_value"), _theirs(shape), strict=True))

        def step() -> Results:
            nonlocal cache
            if next(place) == 0:
                cache = cache | {"cache_index": jnp.array(shape.T, "int32")}
            output, changed = compiled(variables, cache, x)
            cache = dict(changed["cache"])
            return Results(output)

        return _waiting_step(step)

    def newer() -> Step:
        theirs: Any = attention.to_native("flax.nnx.MultiHeadAttention")
        theirs.init_cache((shape.B, shape.T + decoding.MORE, shape.D))
        theirs.cached_key[...], theirs.cached_value[...] = _theirs(shape)
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

        return _waiting_step(step)

    made = {"attention.layer": Implementation("layer", ours)}
    if shape.G is None:
        made["linen.MultiHeadDotProductAttention"] = Implementation("native", native)
    made["nnx.MultiHeadAttention"] = Implementation("second native", newer)
    return made | decoding.user_calls(attention, shape, jnp.asarray, _waiting_step)


def _theirs(shape: Shape) -> list[Any]:
    """Keys and values in Flax's layout, (B, S, H, d)."""
    return [jnp.asarray(X.swapaxes(1, 2).copy()) for X in decoding.heads(shape)]


def _waiting_step(step: Step) -> Step:
    """A step that waits for its result, after a first call that compiles it."""
    step()
    return lambda: jax.block_until_ready(step())
