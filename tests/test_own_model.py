"""A model of the user's own takes `attention.layer`: its weights are the model's, which the `mha` object's are not."""

import numpy as np
import pytest

import mha

X = np.ones((1, 3, 8), "float32")


def in_torch(attention):
    """The number of weights that a torch model with this attribute has."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, X):
            return self.attention(X, X, X)

    model = Model()
    model(torch.tensor(X))
    return len(list(model.parameters()))


def in_keras(attention):
    import keras

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def call(self, X):
            return self.attention(X, X, X)

    model = Model()
    model(X)
    return len(model.weights)


def in_flax(attention):
    import jax
    from flax import linen

    class Model(linen.Module):
        attention: linen.Module

        def __call__(self, X):
            return self.attention(X, X, X)

    return len(jax.tree.leaves(Model(attention).init(jax.random.key(0), X)))


def in_gluon(attention):
    from mxnet import gluon, np

    class Model(gluon.nn.Block):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, X):
            return self.attention(X, X, X)

    model = Model()
    model(np.array(X))
    return len(list(model.collect_params().values()))


def in_mlx(attention):
    import mlx.core as mx
    from mlx import nn
    from mlx.utils import tree_flatten

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def __call__(self, X):
            return self.attention(X, X, X)

    model = Model()
    model(mx.array(X))
    return len(tree_flatten(model.parameters()))


MODELS = {"torch": in_torch, "tensorflow": in_keras, "jax": in_flax, "mxnet": in_gluon, "mlx": in_mlx}


@pytest.mark.backends(*MODELS)
def test_the_layer_brings_its_weights_into_a_model(backend):
    assert MODELS[backend](mha.MultiHeadAttention(8, 2, bias=True, backend=backend).layer) == 8


@pytest.mark.backends(*(name for name in MODELS if name != "jax"))  # Flax computes, and initialises nothing
def test_the_mha_object_does_not(backend):
    assert MODELS[backend](mha.MultiHeadAttention(8, 2, bias=True, backend=backend)) == 0
