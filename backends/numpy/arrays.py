"""NumPy's arrays in and out: with NumPy there is little to do, and the other folders have the same names."""

import ml_dtypes  # noqa: F401  (gives NumPy its bfloat16)
import numpy as np

from mha.core.options import checks


def tensor(array, place=None):
    """A NumPy array as this framework's own, with the same dtype, at the given place."""
    return np.asarray(array)


def to_numpy(X):
    """This framework's array as a NumPy array, with the same dtype."""
    return np.asarray(X)


def is_own(X):
    """Whether X is an array that the layers here take: dense, and of this framework."""
    return checks.is_numpy(X)


def is_known(X):
    """Whether X has its values by now, and does not stand for those that a compiler will know only later."""
    return True


def is_far(X):
    """Whether to read the values of X is to wait for a device that computes beside the processor."""
    return False


def value_of(X):
    """X as a NumPy array; None if it stands for values that a compiler will know only later."""
    return to_numpy(X)


def clone(X):
    """X in memory of its own, as this framework's array: what becomes of X does not change it."""
    return X.copy()


def value_and_gradients(function, arrays, cotangent=None):
    """The value of a function of arrays, and the gradients of sum(value * cotangent) by them; cotangent None = ones.

    The function may give both itself, as it must with NumPy. None for a gradient where it does not use the array.
    """
    found = function(*arrays)
    return found if isinstance(found, tuple) else (found, (None,) * len(arrays))


def context(dtype, tracked=True):
    """The context for a computation in this dtype; tracked: whether somebody may ask for its gradients later."""
    # The other frameworks compute NaN and infinity without a word; NumPy would warn.
    return np.errstate(all="ignore")


def place(layer, array=None):
    """Where the weights of a layer, or else an array, lie; None where the framework moves arrays by itself."""
    return None


def device(place=None):
    """A device in words, and whether float32 products may be in TF32 there; place None = where layers are made."""
    return "cpu"
