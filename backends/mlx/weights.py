"""Chapter 6: weights in and out, in MLX, which stores a kernel as (out, in)."""

import functools

import mlx.core as mx
from mlx import nn

from mha.core.options.config import shapes

from .arrays import evaluate, tensor, to_numpy


def dense(in_size, out_size, bias, dtype):
    """A dense layer from in_size to out_size features; the framework's own where it has one."""
    return Dense(in_size, out_size, bias, dtype)


def build(config, weights, seed, kind):
    """A layer of this class with the given canonical weights; seed draws dropout where the layer owns it."""
    return set_weights(kind(config), weights)


def get_weights(layer):
    """The layer's weights as canonical NumPy arrays, kernels (in, out)."""
    return {name: to_numpy(canonical(X)) for name, X in parameters(layer).items()}


def set_weights(layer, weights):
    """The layer with these canonical weights, which must fit it."""
    for name in parameters(layer):
        put(layer, name, evaluate(canonical(tensor(weights[name]))))  # a view of (in, out), for fast products
    return layer


def parameters(layer):
    """The layer's own parameters by canonical name, in canonical order."""
    own = {name: name.replace("kernel", "weight").split(".") for name in shapes(layer.config)}
    return {name: functools.reduce(getattr, path, layer) for name, path in own.items()}


def canonical(X):
    """A parameter, or its gradient, of this framework as a view in the canonical layout: kernels (in, out)."""
    return X.T if X.ndim == 2 else X


class Dense(nn.Linear):
    """MLX's dense layer, from zeros, and with fast products on a CPU."""

    def __init__(self, in_size, out_size, bias, dtype):
        nn.Module.__init__(self)  # `nn.Linear` draws numbers: a process whose threads did that may abort at its end
        self.weight = evaluate(mx.zeros((out_size, in_size), getattr(mx, dtype)))
        if bias:
            self.bias = evaluate(mx.zeros(out_size, getattr(mx, dtype)))

    def __call__(self, X):
        """X (..., in) as (..., out)."""
        if X.size < 64 * X.shape[-1] or mx.default_device() != mx.cpu:
            found = X @ self.weight.T  # (..., out)
        else:
            rows = X.reshape(X.size // X.shape[-1], X.shape[-1])  # (rows, in)
            found = product(rows, self.weight).reshape(*X.shape[:-1], len(self.weight))  # (..., out)
        return found + self.bias if "bias" in self else found  # rounded twice, however many rows there are


@mx.custom_function
def product(X, Y):
    """X (..., n, k) times the transpose of Y (..., m, k), and gradients, as the BLAS in Linux' wheel is fastest."""
    return X @ mx.contiguous(Y.swapaxes(-1, -2))  # (..., n, m)


@product.vjp
def _product_vjp(primals, cotangent, output):
    X, Y = primals
    return cotangent @ mx.contiguous(Y), cotangent.swapaxes(-1, -2) @ X  # (..., n, k), (..., m, k)


def twin(module):
    """A module with the same arrays; to give one of the two others does not change the other."""
    made = type(module).__new__(type(module))
    vars(made).update(vars(module))
    for name, X in module.items():
        made[name] = twin(X) if isinstance(X, nn.Module) else X
    return made


def put(layer, name, X):
    """Let a parameter of this canonical name be X: an array that is assigned to a module is its parameter."""
    *path, own = name.replace("kernel", "weight").split(".")
    setattr(functools.reduce(getattr, path, layer), own, X)
