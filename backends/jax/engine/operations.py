"""JAX's operations for planning a call."""

import dataclasses

import jax
from jax import numpy as jnp

from mha.core.engine.operations import Operations

from ..heads import repeat_heads
from ..hiding import four_axes, signed, visible_keys


def either(same, these, those):
    """The results of one of two functions, by whether two arrays are the same, which may be known."""
    if type(same) is bool:
        return these() if same else those()
    sizes = [X.shape for X in jax.eval_shape(lambda: [X | Y for X, Y in zip(these(), those(), strict=True)])]

    def whole(function):
        return lambda: [jnp.broadcast_to(X, size) for X, size in zip(function(), sizes, strict=True)]

    return jax.lax.cond(same, whole(these), whole(those))


OPERATIONS = Operations(
    any=jnp.any,
    min=jnp.min,
    max=jnp.max,
    minimum=jnp.minimum,
    maximum=jnp.maximum,
    where=jnp.where,
    broadcast_to=jnp.broadcast_to,
    reshape=jnp.reshape,
    arange=lambda size, like: jnp.arange(size),
    tensor=lambda array, like: jnp.asarray(array),
    zeros=lambda shape, like: jnp.zeros(shape, like.dtype),
    signed=signed,
    visible_keys=visible_keys,
    repeat_heads=repeat_heads,
    four_axes=four_axes,
    same=lambda X, Y: X is Y or (X.shape == Y.shape and jnp.array_equal(X, Y)),
    either=either,
)
WITHOUT_BRANCHES = dataclasses.replace(OPERATIONS, same=None, either=None)


def operations_at(call):
    """The operations for planning a call where it runs: on a GPU none that branches, as a branch waits for it."""
    return OPERATIONS if call.plan.room is None else WITHOUT_BRANCHES
