"""JAX's operations for planning a call."""

from jax import numpy as jnp

from mha.engine.operations import Operations

from ..heads import repeat_heads
from ..hiding import four_axes, signed, visible_keys

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
)
