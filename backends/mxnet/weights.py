"""Chapter 6: weights in and out, in MXNet, which stores a kernel as (out, in)."""

import functools
import threading

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

from mha.core.options.config import shapes

from .arrays import tensor, to_numpy


def dense(in_size, out_size, bias, dtype):
    """A dense layer from in_size to out_size features; the framework's own where it has one."""
    return Dense(out_size, flatten=False, use_bias=bias, in_units=in_size or 0, dtype=dtype)


def build(config, weights, seed, kind):
    """A layer of this class with the given canonical weights; seed draws dropout where the layer owns it."""
    layer = kind(config)
    layer.initialize(mx.init.Zero())  # the default initialiser cannot draw float64
    return set_weights(layer, weights)


def get_weights(layer):
    """The layer's weights as canonical NumPy arrays, kernels (in, out)."""
    return {name: to_numpy(canonical(data(X))).copy() for name, X in parameters(layer).items()}


def set_weights(layer, weights):
    """The layer with these canonical weights, which must fit it."""
    for name, parameter in parameters(layer).items():
        parameter.set_data(tensor(canonical(weights[name])))
    return layer


def parameters(layer):
    """The layer's own parameters by canonical name, in canonical order."""
    own = {name: name.replace("kernel", "weight").split(".") for name in shapes(layer.config)}
    return {name: functools.reduce(getattr, path, layer) for name, path in own.items()}


def canonical(X):
    """A parameter, or its gradient, of this framework as a view in the canonical layout: kernels (in, out)."""
    return X.T if X.ndim == 2 else X


reading = threading.Lock()  # MXNet 2.0 writes to a parameter whenever it is read, and crashes if two threads do


class Dense(nn.Dense):
    """Gluon's dense layer, whose weights one thread at a time reads."""

    def __call__(self, X):
        """X (..., in) as (..., out)."""
        with reading:
            return super().__call__(X)


def data(parameter):
    """The array of a parameter, which one thread at a time reads."""
    with reading:
        return parameter.data()


def add_parameter(block, name, shape, dtype, numbers):
    """A parameter of "ones" or "zeros" for a block; in MXNet 1.9 the block's own dictionary must make it."""
    made = {"shape": shape, "dtype": dtype, "init": numbers}
    return gluon.Parameter(name, **made) if type(block.params) is dict else block.params.get(name, **made)
