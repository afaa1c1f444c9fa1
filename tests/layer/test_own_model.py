"""A model of the user's own takes `attention.layer`: its weights are the model's, which the `mha` object's are not."""

import adapters
import numpy as np
import pytest

import mha

X = np.ones((1, 3, 8), "float32")


@pytest.mark.needs("automatic differentiation")  # as a framework of models has
def test_the_layer_brings_its_weights_into_a_model(backend):
    layer = mha.MultiHeadAttention(8, 2, bias=True, backend=backend).layer
    assert adapters.of(backend).weights_of_model(layer, X) == 8


@pytest.mark.needs("automatic differentiation", "layers that change")  # Flax computes, and initialises nothing
def test_the_mha_object_does_not(backend):
    attention = mha.MultiHeadAttention(8, 2, bias=True, backend=backend)
    assert adapters.of(backend).weights_of_model(attention, X) == 0
