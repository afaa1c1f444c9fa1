"""`attention.layer` is the framework's own: it trains, saves and differentiates as that framework does.

What compilers do with it is in test_compiled.py.
"""

import itertools

import adapters
import numpy as np
import pytest
from layers import B, D, K, Q, agrees, draw, make

import mha

# 1. Training: the framework's loop, gradients and optimiser

STEPS, RATE = 5, 1 / 16  # a rate that needs no rounding: some optimisers keep it in float32


def test_trains_in_its_own_loop_as_numpy_does(backend, rng):
    inputs, target = draw(rng), rng.normal(size=(B, Q, D))
    attention, reference = make(backend), make("numpy")
    before, framework = attention.weights, adapters.of(backend)
    losses = framework.train(attention, framework.own(*inputs), *framework.own(target), STEPS, RATE)
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))
    assert ((attention(*inputs) - target) ** 2).mean() < losses[-1]
    expected_losses = adapters.of("numpy").train(reference, inputs, target, STEPS, RATE)
    assert agrees(np.array(losses), np.array(expected_losses))
    for name, expected in reference.weights.items():
        assert agrees(attention.weights[name], expected, gradient=True)
        assert name == "W_k.bias" or (attention.weights[name] != before[name]).any()


# 2. Saving


# Keras turns its variables into NumPy arrays in a way that NumPy 2 frowns upon.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_is_saved_and_loaded_by_its_own_saver(backend, rng, tmp_path):
    attention, other = make(backend, pooling="additive"), make(backend, pooling="additive", seed=1)
    inputs = draw(rng)
    assert (attention(*inputs, [3, 0, 5]) != other(*inputs, [3, 0, 5])).any()
    adapters.of(backend).save(attention, other, tmp_path)
    assert other.weights.keys() == attention.weights.keys()
    assert all((other.weights[name] == X).all() for name, X in attention.weights.items())
    assert (attention(*inputs, [3, 0, 5]) == other(*inputs, [3, 0, 5])).all()


# 3. Differentiating by the framework's own means, through `attention(...)` with the framework's own arrays


@pytest.mark.needs("automatic differentiation")
def test_its_own_differentiation_passes_through(backend, rng):
    attention, inputs, framework = make(backend), [*draw(rng), np.array([3, 0, 9])], adapters.of(backend)
    cotangent = rng.normal(size=(B, Q, D))
    expected = make("numpy").gradients(*inputs, cotangent=cotangent)
    queries, *others, own_cotangent = framework.own(*inputs, cotangent)
    _, by_queries = framework.pull_back(lambda X: attention(X, *others), queries, own_cotangent)
    assert agrees(by_queries, expected["queries"], gradient=True)
    queries, *others = framework.own(*inputs)
    by_kernel = framework.gradient_by_kernel(attention, queries, *others, cotangent=own_cotangent)
    assert agrees(by_kernel, expected["W_q.kernel"], gradient=True)


# 4. What calls leave alone: whether a layer is training, the gradients it has gathered, and the arguments


@pytest.mark.needs("a state of training")
def test_the_frameworks_state_of_training_holds_for_the_layer_alone(backend, rng):
    attention, framework = make(backend, dtype="float32", dropout=0.9), adapters.of(backend)
    inputs = framework.own(*draw(rng, dtype="float32"))
    plain = mha.to_numpy(attention(*inputs))
    by_queries = mha.to_numpy(attention.gradients(*inputs)["queries"])
    with framework.training(attention.layer):
        assert not agrees(attention.layer(*inputs), plain)
        assert agrees(attention(*inputs), plain)
        assert agrees(attention.trace(*inputs)["output"], plain)
        assert agrees(attention.gradients(*inputs)["queries"], by_queries, gradient=True)


def test_training_in_one_call_is_forgotten_by_the_next(backend, rng):
    attention, framework = make(backend, dtype="float32", dropout=0.9), adapters.of(backend)
    inputs = framework.own(*draw(rng, dtype="float32"))
    framework.evaluate(attention.layer)
    plain = mha.to_numpy(attention(*inputs))
    assert not agrees(attention(*inputs, training=True), plain)
    assert agrees(attention.layer(*inputs), plain)


def test_gradients_leave_weights_alone(backend, rng):
    attention = make(backend)
    before = attention.weights
    attention.gradients(*draw(rng), [3, 0, 9])
    attention.gradients(*adapters.of(backend).own(*draw(rng)), [3, 0, 9])
    assert all((attention.weights[name] == X).all() for name, X in before.items())


@pytest.mark.needs("kept gradients")
def test_gradients_leave_gathered_gradients_alone(backend, rng):
    attention, framework = make(backend), adapters.of(backend)
    gathered = framework.gather(attention.layer, 7)
    attention.gradients(*draw(rng), [3, 0, 9])
    attention.gradients(*framework.own(*draw(rng)), [3, 0, 9])
    assert len(gathered()) == len(attention.weights)
    assert all((X == 7).all() for X in gathered())


@pytest.mark.parametrize("as_numpy", [True, False], ids=["numpy-arrays", "own-arrays"])
def test_arguments_are_not_changed(backend, rng, as_numpy):
    attention = make(backend, dropout=0.5)
    cotangent, valid_lens, mask = rng.normal(size=(B, Q, D)), np.array([3, 0, 9]), rng.random((Q, K)) < 0.5
    arrays = [*draw(rng), cotangent, valid_lens, mask]
    given = arrays if as_numpy else adapters.of(backend).own(*arrays)
    before = [mha.to_numpy(X).tobytes() for X in given]
    *inputs, cotangent, valid_lens, mask = given
    attention(*inputs, valid_lens, mask=mask, training=True, return_weights=True)
    attention.trace(*inputs, valid_lens, mask=mask)
    attention.gradients(*inputs, valid_lens, mask=mask, cotangent=cotangent)
    assert [mha.to_numpy(X).tobytes() for X in given] == before


@pytest.mark.needs("frozen weights")
def test_gradients_of_a_frozen_layer(backend, rng):
    attention, inputs, framework = make(backend), draw(rng), adapters.of(backend)
    expected = attention.gradients(*inputs, [3, 0, 9])

    def check():
        gradients = attention.gradients(*inputs, [3, 0, 9])
        assert all((gradients[name] == X).all() for name, X in expected.items())

    framework.freeze(attention.layer)
    check()
    for context in framework.without_gradients():
        with context:
            check()


@pytest.mark.needs("a state of precision")
def test_the_frameworks_state_of_precision_changes_nothing(backend, rng):
    inputs = draw(rng, dtype="float32")
    expected = make(backend, dtype="float32")(*inputs, [3, 0, 9])
    attention = make(backend, dtype="float32")
    for state in adapters.of(backend).precisions():
        with state:
            for layer in (attention, make(backend, dtype="float32")):
                output = layer(*inputs, [3, 0, 9])
                assert output.dtype == np.float32
                assert (output == expected).all()
