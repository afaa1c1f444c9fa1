"""MXNet's arrays in and out: to and from NumPy, whose they are, where they lie."""

import contextlib

import mxnet as mx
from mxnet import autograd, np, npx

npx.set_np()  # Gluon's blocks then take and give `mx.np` arrays, in this thread: see `context` for the others


def tensor(array, place=None):
    """A NumPy array as this framework's own, with the same dtype, at the given place."""
    return np.array(array, dtype=array.dtype)  # in MXNet's current context: 1.9 and 2.0 name a layer's differently


def to_numpy(X):
    """This framework's array as a NumPy array, with the same dtype."""
    return X.asnumpy()


def is_own(X):
    """Whether X is an array that the layers here take: dense, and of this framework."""
    return isinstance(X, np.ndarray)


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
    arrays = [X.copy() for X in arrays]
    for X in arrays:
        X.attach_grad()
    with autograd.record():
        found = function(*arrays)
    if isinstance(found, tuple):
        return found
    if not is_own(found):
        return found, (None,) * len(arrays)
    found.backward(cotangent)  # `autograd.grad` refuses arrays that the value does not depend on
    return found, tuple(X.grad for X in arrays)


@contextlib.contextmanager
def context(dtype, tracked=True):
    """The context for a computation in this dtype; tracked: whether somebody may ask for its gradients later."""
    with mx.util.np_shape(True), mx.util.np_array(True):  # set_np holds in one thread alone
        yield


def place(layer, array=None):
    """Where the weights of a layer, or else an array, lie; None where the framework moves arrays by itself."""
    return None


def device(place=None):
    """A device in words, and whether float32 products may be in TF32 there; place None = where layers are made."""
    current = getattr(mx, "current_device", None) or mx.current_context  # the name in 2.0, and that in 1.9
    return str(current())
