"""Gradients keep no array of all scores where nobody asks for attention weights: what they take is measured."""

import importlib
import tracemalloc

import adapters
import numpy as np
import pytest

import mha
from mha.core.call import Call
from mha.core.engine import blocks

B, H, T = 2, 3, 256  # as many queries as keys
ALL_SCORES = B * H * T * T * 4  # bytes, in float32: the least that a call in one piece keeps
PIECE = 4096  # scores at a time


def in_numpy(attention, X):
    """The most that NumPy's arrays take at a time, while gradients are computed."""
    attention.gradients(X[:, :2], X[:, :2], X[:, :2])  # imports what it needs
    tracemalloc.start()
    try:
        attention.gradients(X, X, X)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def in_torch(attention, X, **call):
    """The bytes that a call in training, with more arguments, keeps for the backward pass."""
    import torch

    kept = {}

    def keep(X):
        kept[X.untyped_storage().data_ptr()] = X.untyped_storage()
        return X

    X = torch.tensor(X, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda X: X):
        attention.layer(X, X, X, training=True, **call)
    return sum(storage.nbytes() for storage in kept.values())


def in_jax(attention, X):
    """The memory of compiled gradients beside their arguments and results, or of a call that keeps what they need."""
    calls, taken = importlib.import_module("mha.backends.jax.engine.calls"), []
    module, variables = attention.layer.unbind()
    for function, cotangent in ((calls.chapter.gradients, (None,)), (calls.chapter.vjp, ())):
        adapters.of("jax").forget_programs()
        run = calls.program(calls._by_chapter, function, module, Call())
        taken.append(run.lower(variables, {}, X, X, X, {}, *cotangent).compile().memory_analysis())
    adapters.of("jax").forget_programs()
    return max(taken[0].temp_size_in_bytes, taken[1].temp_size_in_bytes + taken[1].output_size_in_bytes)


MEASURED = {"numpy": in_numpy, "torch": in_torch, "jax": in_jax}
on_these = pytest.mark.backends(*MEASURED)
on_torch = pytest.mark.backends("torch")  # of which a kernel or a call in training may keep them
KINDS = [
    pytest.param({}, marks=on_these, id="dot"),
    pytest.param({"pooling": "additive"}, marks=on_these, id="additive"),
    pytest.param({"value_dim": 5}, marks=on_torch, id="two widths"),
    pytest.param({"dropout": 0.5}, marks=on_torch, id="dropout"),
]


@pytest.mark.parametrize("options", KINDS)
def test_gradients_keep_no_scores(backend, monkeypatch, options):
    attention = mha.MultiHeadAttention(6, H, **options, backend=backend)
    X = np.random.default_rng(0).normal(size=(B, T, 6)).astype("float32")
    monkeypatch.setattr(blocks, "SCORES", PIECE)
    assert MEASURED[backend](attention, X) < ALL_SCORES / 2


@on_torch
def test_a_bias_that_needs_a_gradient_keeps_no_scores(backend, monkeypatch):
    """Nor after a call with one that needs none, for which the kernel is right."""
    attention, bias = mha.MultiHeadAttention(6, H, backend=backend), np.zeros((1, H, 1, T), "float32")
    X, (bias,) = np.random.default_rng(0).normal(size=(B, T, 6)).astype("float32"), adapters.of(backend).own(bias)
    monkeypatch.setattr(blocks, "SCORES", PIECE)
    for needed in (False, True):
        assert in_torch(attention, X, score_bias=bias.requires_grad_(needed)) < ALL_SCORES / 2, needed


@on_these
def test_one_head_of_keys_takes_no_more_memory_than_all(backend, monkeypatch):
    """No copies of keys and values for each head of queries."""
    X = np.random.default_rng(0).normal(size=(B, T, 6)).astype("float32")
    monkeypatch.setattr(blocks, "SCORES", PIECE)
    widths = {"key_dim": 64, "value_dim": 64}
    all_heads, one_head = (
        MEASURED[backend](mha.MultiHeadAttention(6, H, num_key_value_heads=G, **widths, backend=backend), X)
        for G in (H, 1)
    )
    assert one_head <= all_heads


# Of these only a whole process can be measured, on a call whose scores are large beside all else.
PEAK = """
import re, sys
import numpy
import mha

def most():  # of this process alone: `ru_maxrss` begins with what the process had that started it
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])

def gradients(length):
    X = numpy.ones((1, length, 4), "float32")
    attention.gradients(X, X, X)

attention = mha.MultiHeadAttention(4, 2, backend=sys.argv[1])
gradients(1200)  # in pieces already, so that all code is loaded and compiled
before = most()
gradients(4096)
print(most() - before)
"""


@pytest.mark.long("tensorflow")
@pytest.mark.backends("tensorflow", "mxnet", "mlx")
def test_gradients_of_a_process_keep_no_scores(backend, python):
    assert int(python(PEAK, backend)) < 2 * 4096 * 4096 * 4 / 2
