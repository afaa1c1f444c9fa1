"""Models around a layer of the user's own, in each framework, and what an audit says of them."""

import pytest

from mha.core import dispatch

OWN = ("torch", "tensorflow", "jax", "mlx")


@pytest.fixture(autouse=True)
def context(backend):
    """What MXNet needs around its arrays."""
    with dispatch.load(backend).context("float32"):
        yield


def notes(report):
    """The verdict and the note of each layer."""
    return {row.path: (row.verdict, row.note) for row in report.layers}


def verdicts(report):
    return {row.path: row.verdict for row in report.layers}


def around(backend, make, call):
    """A model with one layer, `layer`, and a function of it and of arrays that is the model's call."""
    if backend == "torch":
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = make()

            def forward(self, *args, **kwargs):
                return call(self.layer, *args, **kwargs)
    elif backend == "tensorflow":
        import keras

        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.layer = make()

            def call(self, X, *args, **kwargs):
                return call(self.layer, X, *args, **kwargs)
    elif backend == "jax":
        from flax import nnx

        class Model(nnx.Module):
            def __init__(self):
                self.layer = make()

            def __call__(self, *args, **kwargs):
                return call(self.layer, *args, **kwargs)
    else:
        from mlx import nn

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = make()

            def __call__(self, *args, **kwargs):
                return call(self.layer, *args, **kwargs)

    return Model()


def of_framework(backend, X):
    return dispatch.load(backend).tensor(X)
