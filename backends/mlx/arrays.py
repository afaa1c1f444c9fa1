"""MLX's arrays in and out: to and from NumPy, whose they are, where they lie."""

import contextlib
import os

import ml_dtypes
import mlx.core as mx
import numpy as np

from mha.core.devices import device_in_words

NOTHING = contextlib.nullcontext()


def tensor(array, place=None):
    """A NumPy array as this framework's own, with the same dtype, at the given place."""
    if array.dtype == ml_dtypes.bfloat16:
        return evaluate(mx.array(array.view(np.uint16)).view(mx.bfloat16))
    # Unless it is told the dtype, MLX makes float32 of float64, and of a transposed array one that is slow to multiply.
    return mx.array(np.asarray(array, order="C"), getattr(mx, "bool_" if array.dtype == bool else array.dtype.name))


def to_numpy(X):
    """This framework's array as a NumPy array, with the same dtype."""
    if X.dtype == mx.bfloat16:
        return np.array(X.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(X)  # of `asarray`, memory would be shared


def is_own(X):
    """Whether X is an array that the layers here take: dense, and of this framework."""
    return isinstance(X, mx.array)


def is_known(X):
    """Whether X has its values by now, and does not stand for those that a compiler will know only later."""
    try:
        mx.eval(X)
    except ValueError:  # inside `mx.compile` or `mx.vmap`
        return False
    return True


def is_far(X):
    """Whether to read the values of X is to wait for a device that computes beside the processor."""
    return False


def value_of(X):
    """X as a NumPy array; None if it stands for values that a compiler will know only later."""
    return to_numpy(X) if is_known(X) else None


def clone(X):
    """X in memory of its own, as this framework's array: what becomes of X does not change it."""
    array = value_of(X)
    return mx.array(X) if array is None else tensor(array)


def value_and_gradients(function, arrays, cotangent=None):
    """The value of a function of arrays, and the gradients of sum(value * cotangent) by them; cotangent None = ones.

    The function may give both itself, as it must with NumPy. None for a gradient where it does not use the array.
    """
    found = []

    def value(*arrays):
        found.append(function(*arrays))
        number = found[0] if is_own(found[0]) else arrays[0]
        return mx.sum(number if cotangent is None else number * cotangent)

    _, gradients = mx.value_and_grad(value, tuple(range(len(arrays))))(*arrays)
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)  # of one array, it is no tuple
    if isinstance(found[0], tuple):
        return found[0]
    return (found[0], tuple(map(evaluate, gradients))) if is_own(found[0]) else (found[0], (None,) * len(arrays))


def context(dtype, tracked=True):
    """The context for a computation in this dtype; tracked: whether somebody may ask for its gradients later."""
    if dtype == "float64" and mx.default_device() != mx.cpu:  # a GPU has none
        return mx.stream(mx.cpu)
    return NOTHING


def place(layer, array=None):
    """Where the weights of a layer, or else an array, lie; None where the framework moves arrays by itself."""
    return None


def device(place=None):
    """A device in words, and whether float32 products may be in TF32 there; place None = where layers are made."""
    if mx.default_device() == mx.cpu:
        return "cpu"
    return device_in_words("gpu", tf32=os.environ.get("MLX_ENABLE_TF32") != "0")


def evaluate(X):
    """An array, or a list or dict of arrays, evaluated where it is made: no other thread could do that.

    Inside of a compiler, as it is.
    """
    is_known(X)
    return X
