"""Collect, save and load the weights of a layer whose variables are split over devices.

`orbax.checkpoint`, which comes with Flax, saves and restores such variables as they are: they are a tree of arrays.
"""

import jax
import numpy as np
from jax.experimental import multihost_utils

from mha.backends.jax.arrays import to_numpy
from mha.backends.jax.layer import MultiHeadAttention
from mha.backends.jax.weights import parameters, set_weights
from mha.core.options import checks
from mha.core.options.config import shapes
from mha.parallel import whole


def gather(layer):
    """See `mha.parallel.gather`."""
    _check(layer)
    named = {}
    for name, X in parameters(layer).items():
        here = getattr(X, "is_fully_addressable", True)
        named[name] = to_numpy(X) if here else np.array(multihost_utils.process_allgather(X, tiled=True))
    return checks.weights(shapes(layer.config), layer.config.dtype, named)


def save(layer, path):
    """See `mha.parallel.save`."""
    arrays = gather(layer)
    problem = whole.write(path, layer.config, arrays) if jax.process_index() == 0 else None
    if jax.process_count() > 1:
        sent = multihost_utils.broadcast_one_to_all(whole.error_bytes(problem))
        problem = problem or whole.error_of_rank(0, np.asarray(sent, np.uint8))
    if problem:
        raise problem


def load(layer, path):
    """See `mha.parallel.load`."""
    _check(layer)
    arrays, old = whole.read(path, layer.config), parameters(layer)
    new = {name: _place_like(array, old[name]) for name, array in arrays.items()}
    return set_weights(layer, new)


def _place_like(array, like):
    """Make an array of JAX from a NumPy array, on the devices of another one; each process makes its own part."""
    sharding = getattr(like, "sharding", None)
    return array if sharding is None else jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])


def _check(layer):
    if not isinstance(layer, MultiHeadAttention) or layer.scope is None:
        raise TypeError(
            f"layer is a {type(layer).__name__}, expected a layer with its variables: module.bind(variables)"
        )
