"""JAX's arrays in and out: to and from NumPy, whose they are, where they lie."""

import contextlib

import jax
import numpy as np
from jax import numpy as jnp

from mha.core.cache import Cache
from mha.core.devices import device_in_words, no_device
from mha.core.options import checks

IN_FLOAT32 = "highest", "float32", "F32_F32_F32"  # settings of the precision of float32 products
_PLAIN = contextlib.nullcontext()
jax.tree_util.register_pytree_node(Cache, lambda cache: (cache.arrays(), (cache.config, cache.frozen)), Cache.of_arrays)


def tensor(array, place=None):
    """A NumPy array as this framework's own, with the same dtype, at the given place."""
    return jnp.asarray(array)


def to_numpy(X):
    """This framework's array as a NumPy array, with the same dtype."""
    if not getattr(X, "is_fully_addressable", True):
        raise RuntimeError(
            f"{jax.process_count()} processes have parts of this array; on all of them call mha.parallel.gather, "
            "mha.parallel.save or mha.parallel.load, for a layer"
        )
    return np.array(X)  # a copy: JAX's own cannot be written to


def is_own(X):
    """Whether X is an array that the layers here take: dense, and of this framework."""
    return checks.is_numpy(X) or isinstance(X, jax.Array)


def is_known(X):
    """Whether X has its values by now, and does not stand for those that a compiler will know only later."""
    return not isinstance(X, jax.core.Tracer)


def is_far(X):
    """Whether to read the values of X is to wait for a device that computes beside the processor."""
    return isinstance(X, jax.Array) and is_known(X) and any(device.platform == "gpu" for device in X.devices())


def value_of(X):
    """X as a NumPy array; None if it stands for values that a compiler will know only later."""
    return to_numpy(X) if is_known(X) else None


def clone(X):
    """X in memory of its own, as this framework's array: what becomes of X does not change it."""
    return jnp.array(X)


def value_and_gradients(function, arrays, cotangent=None):
    """The value of a function of arrays, and the gradients of sum(value * cotangent) by them; cotangent None = ones.

    The function may give both itself, as it must with NumPy. None for a gradient where it does not use the array.
    """
    found, pull_back = jax.vjp(function, *map(jnp.asarray, arrays))
    if isinstance(found, tuple):
        return found
    if not is_own(found):
        return found, (None,) * len(arrays)
    return found, pull_back(jnp.ones_like(found) if cotangent is None else cotangent)


def context(dtype, tracked=True):
    """The context for a computation in this dtype; tracked: whether somebody may ask for its gradients later."""
    return jax.enable_x64(True) if dtype == "float64" else _PLAIN


def place(layer, array=None):
    """Where the weights of a layer, or else an array, lie; None where the framework moves arrays by itself."""
    return None


def device(place=None):
    """A device in words, and whether float32 products may be in TF32 there; place None = where layers are made."""
    (found,) = jnp.zeros(()).devices()
    if found.platform == "cpu":
        return "cpu"
    tf32 = jax.config.jax_default_matmul_precision not in IN_FLOAT32 if found.platform == "gpu" else None
    return device_in_words(found.platform, found.device_kind, tf32)


def use_device(name):
    """Compute at a device, by the name of its platform, from now on; ValueError if JAX has none."""
    try:
        jax.config.update("jax_default_device", jax.devices(name)[0])
    except RuntimeError as error:
        raise no_device("JAX", name, error) from error


def refuse_to_narrow(dtype):
    """Refuse float64 where JAX would make float32 of it, with no more than a warning."""
    if dtype == "float64" and jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError("dtype is float64, expected it inside `with jax.enable_x64(True)`")
