"""Chapter 6: weights in and out, in TensorFlow, which stores a kernel as (in, out)."""

import functools

import keras

from mha.core.options.config import shapes


def dense(in_size, out_size, bias, dtype):
    """A dense layer from in_size to out_size features; the framework's own where it has one."""
    layer = keras.layers.Dense(out_size, use_bias=bias, dtype=dtype, autocast=False)
    if in_size is not None:
        layer.build((None, in_size))
    return layer


def build(config, weights, seed, kind):
    """A layer of this class with the given canonical weights; seed draws dropout where the layer owns it."""
    return set_weights(kind(config), weights)


def get_weights(layer):
    """The layer's weights as canonical NumPy arrays, kernels (in, out)."""
    return {name: X.numpy().copy() for name, X in parameters(layer).items()}


def set_weights(layer, weights):
    """The layer with these canonical weights, which must fit it."""
    for name, parameter in parameters(layer).items():
        parameter.assign(weights[name])
    return layer


def parameters(layer):
    """The layer's own parameters by canonical name, in canonical order."""
    return {name: functools.reduce(getattr, name.split("."), layer) for name in shapes(layer.config)}
