"""Rows in zigzag, as `mha.parallel.rows` says: sent there from consecutive ones, and back.

The rows of N devices make 2N pieces. Of consecutive ones, device r has pieces 2r and 2r + 1; in zigzag, r and
2N - 1 - r. All even pieces go to different devices, and so do all odd ones.
"""

import jax
from jax import numpy as jnp


def there(X, axis, dim):
    """X with its consecutive rows, along `dim`, exchanged into zigzag over the devices of an axis of the mesh."""
    ways, (first, second) = _ways(axis), jnp.split(X, 2, dim)
    even, odd = (jax.lax.ppermute(X, axis, way) for X, way in zip((first, second), ways, strict=True))
    return jnp.concatenate(_swap_on_odd(even, odd, axis), dim)


def back(X, axis, dim):
    """X with consecutive rows again: the inverse of `there`."""
    ways, pieces = _ways(axis), _swap_on_odd(*jnp.split(X, 2, dim), axis)
    pieces = (
        jax.lax.ppermute(X, axis, [(came, went) for went, came in way]) for X, way in zip(pieces, ways, strict=True)
    )
    return jnp.concatenate([*pieces], dim)


def _ways(axis):
    """The pairs (from, to) of devices for the even pieces, and those for the odd ones."""
    N = jax.lax.axis_size(axis)
    homes = [min(piece, 2 * N - 1 - piece) for piece in range(2 * N)]
    return [*enumerate(homes[::2])], [*enumerate(homes[1::2])]


def _swap_on_odd(X, Y, axis):
    """X and Y in this order on an even device, else swapped: the first piece of an odd device is odd."""
    is_even = jax.lax.axis_index(axis) % 2 == 0
    return jnp.where(is_even, X, Y), jnp.where(is_even, Y, X)
