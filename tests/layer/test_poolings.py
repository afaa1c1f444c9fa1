"""Attention poolings of one's own: they are used, whether or not a call asks for weights."""

import functools
import importlib

import adapters
import numpy as np
import pytest

import mha
from mha import parity
from mha.core import dispatch


def own_pooling(backend, file):
    """A pooling of one's own: a subclass of the lesson's dot products or of the faster ones, with other scores."""

    class Steeper(importlib.import_module(f"{dispatch.load(backend).__name__}.{file}").DotProductAttention):
        def scores(self, queries, keys):
            return 3 * super().scores(queries, keys)

    return Steeper


def check_own_scores(attention, hiding, rng):
    """The layer's scores are three times as large, as those of a W_q that is, whether or not weights are asked for."""
    backend = attention.backend
    queries, keys, values, cotangent = (rng.normal(size=(2, T, 12)) for T in (7, 5, 5, 7))
    oracle = attention.to("numpy")
    oracle.weights = oracle.weights | {"W_q.kernel": 3 * oracle.weights["W_q.kernel"]}
    output, weights = oracle(queries, keys, values, **hiding, return_weights=True)
    found, found_weights = attention(queries, keys, values, **hiding, return_weights=True)
    alone = attention(queries, keys, values, **hiding)
    for result, expected in ((found, output), (found_weights, weights), (alone, output)):
        assert parity.error(result, expected) <= parity.bound("float64", expected, expected)
    if not adapters.lacks(
        backend, "automatic differentiation"
    ):  # whose gradients are derived by hand, from the scores as they were
        call = {**hiding, "cotangent": cotangent}
        by, expected = (layer.gradients(queries, keys, values, **call)["values"] for layer in (attention, oracle))
        assert parity.error(by, expected) <= parity.bound("float64", expected, expected, gradient=True)


HIDING = {"nothing": {}, "lengths": {"valid_lens": [3, 5]}, "mask": {"mask": np.tri(7, 5, dtype=bool)}}


# Gluon takes in place of a part nothing but its subclasses.
TAKES_ANY = pytest.mark.backends(*(name for name in dispatch.FRAMEWORKS if name != "mxnet"))


@pytest.mark.needs("layers that change")
@pytest.mark.parametrize("hiding", HIDING)
@pytest.mark.parametrize("value_dim", [4, 5], ids=["one width", "two widths"])
@pytest.mark.parametrize("file", [pytest.param("pooling", marks=TAKES_ANY), "engine.pooling"])
def test_a_replaced_pooling_is_used(backend, rng, file, value_dim, hiding):
    attention = mha.MultiHeadAttention(12, 3, value_dim=value_dim, dtype="float64", backend=backend)
    attention.layer.attention = own_pooling(backend, file)(0.0)
    check_own_scores(attention, HIDING[hiding], rng)


@pytest.mark.parametrize("file", ["pooling", "engine.pooling"])
def test_a_subclass_chooses_its_pooling(backend, rng, file):
    module = dispatch.load(backend)
    pooling = functools.partial(
        importlib.import_module(f"{module.__name__}.engine.pooling").pooling, dot=own_pooling(backend, file)
    )
    kind = type("OwnAttention", (module.MultiHeadAttention,), {"pooling": staticmethod(pooling)})
    attention = mha.MultiHeadAttention(12, 3, dtype="float64", backend=backend)
    with module.context("float64"):
        attention.layer = module.build(attention.config, attention.weights, seed=0, kind=kind)
    check_own_scores(attention, HIDING["lengths"], rng)
