"""A backend that multiplies float32 in TF32, as on a GPU: its outputs are NumPy's, with products of 10 bits.

Run as a Python of `mha parity --python`, it is the worker of such a backend.
"""

import json
import sys
from unittest import mock

import numpy as np

from mha.backends.numpy import pooling, weights
from mha.core import dispatch
from mha.layer import restore
from mha.parity.cases.run import worker


def cut(X):
    """Numbers with 11 bits in float32, rounded; others as they are."""
    if X.dtype != np.float32:
        return X
    fractions, exponents = np.frexp(X)
    return np.ldexp(np.round(np.ldexp(fractions, 11)), exponents - 11)


def replaced(backend):
    """The context in which a backend's outputs are in TF32; its steps and gradients are not."""
    module, product = dispatch.load(backend), weights.matmul
    right = module.attend

    def attend(layer, queries, keys, values, call):
        if layer.config.dtype != "float32":
            return right(layer, queries, keys, values, call)
        ours = restore(layer.config, module.get_weights(layer), "numpy", 0, readable=True)
        inputs = [X if isinstance(X, np.ndarray) else module.to_numpy(X) for X in (queries, keys, values)]
        rounded = mock.Mock(side_effect=lambda A, B: product(cut(A), cut(B)))
        with mock.patch.object(weights, "matmul", rounded), mock.patch.object(pooling, "matmul", rounded):
            found = dispatch.lesson("numpy").attend(ours.layer, *inputs, call.map_arrays(to_numpy))
        return tuple(map(module.tensor, found)) if call.return_weights else module.tensor(found)

    def to_numpy(X):
        return X if isinstance(X, (np.ndarray, list)) else module.to_numpy(X)

    return mock.patch.object(module, "attend", attend)


if __name__ == "__main__":
    with replaced(json.loads(sys.argv[-1])["backend"]):
        worker.main(sys.argv[-1])
