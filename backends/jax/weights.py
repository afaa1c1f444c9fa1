"""Chapter 6: weights in and out, in JAX, whose modules have them outside, in a dict; a kernel is (in, out)."""

import functools
import operator

import flax
import jax
from flax import linen as nn

from mha.core.options.config import shapes

from .arrays import tensor, to_numpy


def dense(in_size, out_size, bias, dtype):
    """A dense layer from in_size to out_size features; the framework's own where it has one."""
    return nn.Dense(out_size, use_bias=bias, dtype=dtype, param_dtype=dtype)


def build(config, weights, seed, kind):
    """A layer of this class with the given canonical weights; seed draws dropout where the layer owns it."""
    return kind(config).bind(_variables(weights), rngs={"dropout": jax.random.key(seed)})


def get_weights(layer):
    """The layer's weights as canonical NumPy arrays, kernels (in, out)."""
    return {name: to_numpy(X) for name, X in parameters(layer).items()}


def set_weights(layer, weights):
    """The layer with these canonical weights, which must fit it."""
    return layer.unbind()[0].bind(_variables(weights), rngs=layer.scope.rngs)


def parameters(layer):
    """The layer's own parameters by canonical name, in canonical order."""
    own = layer.variables["params"]
    return {name: functools.reduce(operator.getitem, name.split("."), own) for name in shapes(layer.config)}


def _variables(weights):
    """Canonical weights as the variables of a module: {"params": {"W_q": {"kernel": ...}}}."""
    named = {tuple(name.split(".")): tensor(array) for name, array in weights.items()}
    return {"params": flax.traverse_util.unflatten_dict(named)}
