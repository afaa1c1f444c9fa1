"""Chapter 6: weights in and out, in MLX, which stores a kernel as (out, in)."""

import functools

import mlx.core as mx
from mlx import nn

from mha.config import shapes

from .arrays import evaluated, tensor, to_numpy


def dense(in_size, out_size, bias, dtype):
    """A dense layer from in_size to out_size features; the framework's own where it has one."""
    layer = nn.Linear(in_size, out_size, bias)
    layer.set_dtype(getattr(mx, dtype))
    return evaluated(layer)


def build(config, weights, seed, kind):
    """A layer of this class with the given canonical weights; seed draws dropout where the layer owns it."""
    return set_weights(kind(config), weights)


def get_weights(layer):
    """The layer's weights as canonical NumPy arrays, kernels (in, out)."""
    return {name: to_numpy(canonical(X)) for name, X in parameters(layer).items()}


def set_weights(layer, weights):
    """The layer with these canonical weights, which must fit it."""
    for name in parameters(layer):
        put(layer, name, tensor(canonical(weights[name])))
    return layer


def parameters(layer):
    """The layer's own parameters by canonical name, in canonical order."""
    own = {name: name.replace("kernel", "weight").split(".") for name in shapes(layer.config)}
    return {name: functools.reduce(getattr, path, layer) for name, path in own.items()}


def put(layer, name, X):
    """Let a parameter of this canonical name be X: an array that is assigned to a module is its parameter."""
    *path, own = name.replace("kernel", "weight").split(".")
    setattr(functools.reduce(getattr, path, layer), own, X)


def canonical(X):
    """A parameter, or its gradient, of this framework as a view in the canonical layout: kernels (in, out)."""
    return X.T if X.ndim == 2 else X
