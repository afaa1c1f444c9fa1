"""Chapter 6: weights in and out, in PyTorch, which stores a kernel as (out, in)."""

import functools

import torch
from torch import nn

from mha.core.options.config import shapes

from .arrays import USUAL, place, tensor, to_numpy


def dense(in_size, out_size, bias, dtype):
    """A dense layer from in_size to out_size features; the framework's own where it has one."""
    if in_size is None:
        return nn.LazyLinear(out_size, bias=bias, dtype=getattr(torch, dtype))
    return nn.Linear(in_size, out_size, bias=bias, dtype=getattr(torch, dtype))


def build(config, weights, seed, kind):
    """A layer of this class with the given canonical weights; seed draws dropout where the layer owns it."""
    return set_weights(kind(config).to(USUAL.get()), weights)


def get_weights(layer):
    """The layer's weights as canonical NumPy arrays, kernels (in, out)."""
    return {name: to_numpy(canonical(X)).copy() for name, X in parameters(layer).items()}


def set_weights(layer, weights):
    """The layer with these canonical weights, which must fit it."""
    with torch.no_grad():
        for name, parameter in parameters(layer).items():
            canonical(parameter).copy_(tensor(weights[name], place(layer)))
    return layer


def parameters(layer):
    """The layer's own parameters by canonical name, in canonical order."""
    own = {name: name.replace("kernel", "weight").split(".") for name in shapes(layer.config)}
    return {name: functools.reduce(getattr, path, layer) for name, path in own.items()}


def canonical(X):
    """A parameter, or its gradient, of this framework as a view in the canonical layout: kernels (in, out)."""
    return X.T if X.ndim == 2 else X
