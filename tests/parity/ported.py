"""Layers, copies of them as a port would have them, and files that hold them, for the tests of comparisons."""

import numpy as np
import safetensors.numpy

import mha
from mha.core.options.config import numpy_dtype
from mha.weights.schemes import from_canonical

D, H = 12, 3


def made(seed=1, bias=True, **options):
    """A layer on NumPy, every weight of it random."""
    random = np.random.default_rng(seed)
    layer = mha.MultiHeadAttention(D, **{"num_heads": H} | options, bias=bias, seed=seed, backend="numpy")
    layer.weights = {
        name: X if X.ndim == 2 else random.normal(1, 0.5, X.shape).astype(X.dtype) for name, X in layer.weights.items()
    }
    return layer


def with_weights(layer, **changed):
    """The layer with some weights changed: W_q_kernel=..."""
    other = layer.to("numpy")
    other.weights = layer.weights | {name.replace("_kernel", ".kernel"): X for name, X in changed.items()}
    return other


def stored(layers, scheme, prefix, path, dtype=None):
    """A file with layers as a scheme stores them; prefix: with the place of the layer's number, {}."""
    arrays = {"embeddings": np.ones((2, 3), "float32")}
    for i, layer in enumerate(layers):
        for name, X in from_canonical(layer.config, layer.weights, scheme).items():
            arrays[prefix.format(i) + name] = np.ascontiguousarray(X, dtype and numpy_dtype(dtype))
    safetensors.numpy.save_file(arrays, path)
    return str(path)


def interleaved(X, heads=H):
    """The columns of a kernel component by component, for each of them all heads."""
    return X.reshape(len(X), heads, -1).swapaxes(1, 2).reshape(X.shape)  # (in, d*H)


def neighbours(X, heads):
    """The columns of a kernel with the pairs of components side by side that were halves."""
    return X.reshape(len(X), heads, 2, -1).swapaxes(2, 3).reshape(X.shape)  # (in, H*d)
