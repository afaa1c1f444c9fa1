"""MXNet's arrays in and out: to and from NumPy, whose they are, where they lie."""

import contextlib
import copy
import threading

import mxnet as mx
from mxnet import autograd, gluon, np, npx
from mxnet.gluon import nn

npx.set_np()  # Gluon's blocks then take and give `mx.np` arrays, in this thread: see `context` for the others

DTYPES = ("float32", "float64")


def tensor(array, place=None):
    """A NumPy array as this framework's own, with the same dtype, at the given place."""
    return np.array(array, dtype=array.dtype)  # in MXNet's current context: 1.9 and 2.0 name a layer's differently


def to_numpy(X):
    """This framework's array as a NumPy array, with the same dtype."""
    return X.asnumpy()


def is_own(X):
    """Whether X is an array that the layers here take: dense, and of this framework."""
    return isinstance(X, np.ndarray)


def known(X):
    """X as a NumPy array; None if it stands for values that a compiler will know only later."""
    return to_numpy(X)


def copied(X):
    """X in memory of its own, as this framework's array: what becomes of X does not change it."""
    return X.copy()


def value_and_gradient(function, X):
    """What a function gives for an array, a number, and its gradient by the array.

    The function may give both itself, as it must with NumPy. None for a gradient where it does not use the array.
    """
    X = X.copy()
    X.attach_grad()
    with autograd.record():
        found = function(X)
    if isinstance(found, tuple):
        return found
    return found, autograd.grad([found], [X])[0].as_np_ndarray() if is_own(found) else None


@contextlib.contextmanager
def context(dtype, tracked=True):
    """What a computation in this dtype runs inside of; tracked: whether somebody may ask for its gradients later."""
    with mx.util.np_shape(True), mx.util.np_array(True):  # set_np holds in one thread alone
        yield


def place(layer, array=None):
    """Where the weights of a layer, or else an array, lie; None where the framework moves arrays by itself."""
    return None


def device():
    """What the framework computes on, in words."""
    current = getattr(mx, "current_device", None) or mx.current_context  # the name in 2.0, and that in 1.9
    return str(current())


_reading = threading.Lock()  # MXNet 2.0 writes to a parameter whenever it is read, and crashes if two threads do


class _Dense(nn.Dense):
    """Gluon's dense layer, whose weights one thread at a time reads."""

    def __call__(self, x):
        with _reading:
            return super().__call__(x)


def _data(parameter):
    """The array of a parameter, which one thread at a time reads."""
    with _reading:
        return parameter.data()


def _twin(layer):
    """A copy of a layer, of which no parameter is frozen; it has no trainer."""
    kept = {id(parameter._trainer): None for parameter in layer.collect_params().values()}  # by `copy`, not copied

    def forget(block):
        kept.update({id(getattr(block, "_cached_op", None)): None, id(getattr(block, "_cached_graph", ())): ()})

    layer.apply(forget)  # what `hybridize` compiled, which cannot be copied
    with _reading:
        twin = copy.deepcopy(layer, kept)
    _adopt(twin)
    for parameter in twin.collect_params().values():
        parameter.grad_req = "null"  # or the copy, which no gradient belongs to, takes "write" for done
        parameter.grad_req = "write"
    return twin


def _adopt(block):
    """Make the parts of a copied block its children: MXNet 2.0 refers to these weakly, and copies that."""
    for name, part in list(vars(block).items()):
        if isinstance(part, nn.Block):
            block.register_child(part, name)
            _adopt(part)


def _parameter(block, name, shape, dtype):
    """A parameter of ones for a block; in MXNet 1.9 the block's own dictionary must make it."""
    made = {"shape": shape, "dtype": dtype, "init": "ones"}
    return gluon.Parameter(name, **made) if type(block.params) is dict else block.params.get(name, **made)


def _where(condition, X, Y):
    """Where of arrays; MXNet's crashes if it broadcasts to an empty array, and sends no gradient if Y is a number."""
    return X if X.size == 0 else np.where(condition, X, Y)


def _over(X, *sizes):
    """X, or None, to be broadcast over axes of these sizes. Over an empty one, zeros of X's shape in its graph.

    MXNet's gradient of what broadcasts over an empty axis is whatever the memory held; these zeros send X none.
    """
    if X is None or 0 not in sizes:
        return X
    return _where(np.zeros(X.shape, dtype="bool"), X, np.zeros_like(X))
