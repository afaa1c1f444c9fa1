"""Chapter 6: weights in and out, in NumPy, whose dense layer is written here."""

import functools

import numpy as np

from mha.core.options.config import shapes

from .hiding import widen


def dense(in_size, out_size, bias, dtype):
    """A dense layer from in_size to out_size features; the framework's own where it has one."""
    return Dense(in_size, out_size, bias, dtype)


def build(config, weights, seed, kind):
    """A layer of this class with the given canonical weights; seed draws dropout where the layer owns it."""
    layer = kind(config)
    layer.attention.random = np.random.default_rng(seed)
    return set_weights(layer, weights)


def get_weights(layer):
    """The layer's weights as canonical NumPy arrays, kernels (in, out)."""
    return {name: parameter.copy() for name, parameter in parameters(layer).items()}


def set_weights(layer, weights):
    """The layer with these canonical weights, which must fit it."""
    for name, parameter in parameters(layer).items():
        parameter[...] = weights[name]
    return layer


def parameters(layer):
    """The layer's own parameters by canonical name, in canonical order."""
    return {name: functools.reduce(getattr, name.split("."), layer) for name in shapes(layer.config)}


class Dense:
    """A dense layer: x @ kernel + bias, with kernel (in, out)."""

    def __init__(self, in_size, out_size, bias, dtype):
        self.kernel = np.zeros((in_size, out_size), dtype)
        self.bias = np.zeros((out_size,), dtype) if bias else None

    def __call__(self, X):
        """X (..., in) as (..., out)."""
        X = matmul(X, self.kernel)  # (..., out)
        return X if self.bias is None else X + self.bias


def matmul(A, B):
    """A @ B in A's dtype, multiplied in float32 at least: NumPy's own half-precision product is slow and loses bits."""
    return np.matmul(widen(A), widen(B)).astype(A.dtype, copy=False)
