"""Gradients of a layer with frozen weights: these have gradients too, and are as frozen as before, whatever happens."""

import numpy as np
import pytest

import mha

X = np.random.default_rng(0).normal(size=(2, 5, 12)).astype("float32")


def freeze_torch(layer):
    layer.W_q.requires_grad_(False)
    return lambda: [parameter.requires_grad for parameter in layer.parameters()]


def freeze_tensorflow(layer):
    layer.W_q.trainable = False
    return lambda: [variable.trainable for variable in layer.weights]


def freeze_mxnet(layer):
    layer.W_q.weight.grad_req = "null"
    layer.W_k.weight.grad_req = "add"
    return lambda: [parameter.grad_req for parameter in layer.collect_params().values()]


def freeze_mlx(layer):
    layer.W_q.freeze()
    return lambda: [part.weight.size * ("weight" in part.trainable_parameters()) for part in (layer.W_q, layer.W_k)]


FREEZE = {"torch": freeze_torch, "tensorflow": freeze_tensorflow, "mxnet": freeze_mxnet, "mlx": freeze_mlx}
on_what_freezes = pytest.mark.backends(*FREEZE)


@on_what_freezes
def test_gradients_leave_weights_frozen(backend):
    attention = mha.MultiHeadAttention(12, 3, backend=backend)
    state = FREEZE[backend](attention.layer)
    before = state()
    assert len(set(before)) > 1
    assert np.abs(attention.gradients(X, X, X)["W_q.kernel"]).max() > 0
    assert state() == before


@on_what_freezes
def test_gradients_that_fail_leave_weights_frozen(backend, monkeypatch):
    attention = mha.MultiHeadAttention(12, 4, backend=backend)  # as no other test has: TensorFlow traces what is new
    state = FREEZE[backend](attention.layer)
    before, met = state(), []

    def fail(*_):
        met.append(state())
        raise ArithmeticError("in the middle of a call")

    monkeypatch.setattr(type(attention.layer), "attend", fail)
    with pytest.raises(ArithmeticError, match="in the middle of a call"):
        attention.gradients(X, X, X)
    assert met
    assert state() == before
