"""Inputs that are odd and right: lengths and masks in any form, any dtype, and any number where nobody looks."""

import adapters
import numpy as np
import pytest
from calls import SHAPES, B, H, K, Q, draw, draw_by_name, make, own

import mha
from mha import parity
from mha.core import dispatch

from .paths import PATHS, on, refuses, taken

# Lengths and masks

LENGTHS = pytest.mark.parametrize(
    "lengths", [[3, 0], [[3, 0, 7, 1, 2], [7, 7, 0, 0, 5]]], ids=["per sample", "per query"]
)


def kinds_of_lengths(backend, lengths):
    lengths = np.array(lengths)
    yield lengths.tolist()
    yield tuple(map(tuple, lengths.tolist())) if lengths.ndim == 2 else tuple(lengths.tolist())
    for dtype in ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        yield lengths.astype(dtype)
    yield own(backend, lengths)
    yield np.asfortranarray(lengths)
    yield lengths.astype(lengths.dtype.newbyteorder())
    yield list(lengths)


@on(*PATHS)
@LENGTHS
def test_lengths_in_any_form_are_the_same(backend, rng, path, lengths):
    call, arguments = PATHS[path](backend), draw(rng)
    expected = taken(call(*arguments, np.array(lengths)))
    for kind in kinds_of_lengths(backend, lengths):
        assert np.array_equal(taken(call(*arguments, kind)), expected), repr(kind)


@on(*PATHS)
def test_lengths_above_all_keys_hide_nothing(backend, rng, path):
    call, arguments = PATHS[path](backend), draw(rng)
    expected = taken(call(*arguments))
    for lengths in ([K, K + 1], [2**31, 2**32], [2**40, 2**62], np.array([2**31 + 1, 2**32 - 1], "uint32"),
                    np.array([2**63 + 1, 2**64 - 1], "uint64"), np.array([127, 100], "int8")):  # fmt: skip
        assert np.array_equal(taken(call(*arguments, lengths)), expected)


@on(*PATHS)
def test_masks_in_any_form_are_the_same(backend, rng, path):
    call, arguments = PATHS[path](backend), draw(rng)
    mask = rng.random((B, 1, Q, K)) < 0.5
    expected = taken(call(*arguments, mask=mask))
    kinds = [mask.tolist(), mask[:, 0], mask[:, 0].tolist(), np.asfortranarray(mask), np.repeat(mask, H, 1)]
    for kind in (*kinds, own(backend, mask)):
        assert np.array_equal(taken(call(*arguments, mask=kind)), expected)


@pytest.mark.all_backends
@on("mha", "layer")
@LENGTHS
def test_lengths_and_masks_of_another_framework_are_the_same(backend, rng, path, lengths):
    call, arguments, lengths = PATHS[path](backend), draw(rng), np.array(lengths)
    mask = np.arange(K) < lengths.reshape(B, 1, -1, 1)  # (B, 1, 1 or Q, K)
    expected = taken(call(*arguments, lengths))
    for other in dispatch.FRAMEWORKS.keys() - {backend}:
        assert np.array_equal(taken(call(*arguments, own(other, lengths))), expected), other
    expected = taken(call(*arguments, mask=mask))
    for other in dispatch.FRAMEWORKS.keys() - {backend}:
        assert np.array_equal(taken(call(*arguments, mask=own(other, mask))), expected), other


# Dtypes


@pytest.mark.needs("64 bits everywhere")
def test_dtypes_that_the_framework_hides_are_not_lost(backend, rng):
    attention, arguments = make(backend, dtype="float64"), draw(rng, "float64")
    with dispatch.load(backend).context("float64"):
        given = [own(backend, X) for X in arguments]
        expected = mha.to_numpy(attention.layer(*given))
    result = mha.to_numpy(attention.layer(*given))
    assert result.dtype == np.float64
    assert np.array_equal(result, expected)


@pytest.mark.backends("jax")
def test_jax_refuses_to_narrow_float64(rng):
    """Outside its context, JAX would make float32 of the inputs and the weights."""
    attention = make("jax", dtype="float64")
    with dispatch.load("jax").context("float64"):
        given = [own("jax", X) for X in draw(rng, "float64")]
        attention.layer(*given)
    with refuses(ValueError, "dtype is float64, expected it inside `with jax.enable_x64(True)`"):
        attention.layer(*given)


# Numbers

FILLINGS = {"NaN": np.nan, "-Inf": -np.inf}


@on(*PATHS)
@pytest.mark.parametrize("filling", FILLINGS)
def test_what_padding_holds_does_not_matter(backend, rng, path, filling):
    call, arguments = PATHS[path](backend), draw_by_name(rng)
    lengths = np.array([[3, 0, 5, 1, 2], [0, 0, 0, 0, 0]])
    expected = taken(call(*arguments.values(), lengths))
    assert np.isfinite(expected).all()
    arguments["keys"][0, 5:] = arguments["values"][0, 5:] = FILLINGS[filling]
    arguments["keys"][1] = arguments["values"][1] = FILLINGS[filling]
    arguments["queries"][0, 1] = arguments["queries"][1] = FILLINGS[filling]
    assert np.array_equal(taken(call(*arguments.values(), lengths)), expected)


@on("mha", "mha-own-arrays", "trace", "layer", "d2l")
@pytest.mark.parametrize("name", SHAPES)
def test_nan_that_is_seen_stays_in_its_sample(backend, rng, path, name):
    call, arguments = PATHS[path](backend), draw_by_name(rng)
    expected = taken(call(*arguments.values(), [3, 6]))
    arguments[name][0, 1] = np.nan
    output = taken(call(*arguments.values(), [3, 6]))
    assert np.isnan(output[0]).all(-1).tolist() == [name != "queries" or i == 1 for i in range(Q)]
    assert np.array_equal(output[1], expected[1])


# What only one framework has


@pytest.mark.backends("torch")
def test_lengths_and_masks_of_torch_lie_where_the_layer_does(rng):
    import torch

    layer, arguments = make("torch").layer, [own("torch", X) for X in draw(rng)]
    with refuses(ValueError, "valid_lens is on device meta, expected cpu as the others; move it there"):
        layer(*arguments, torch.tensor([3, 2], device="meta"))
    with refuses(ValueError, "valid_lens holds -2, expected 0 or more"):
        layer(*arguments, torch._neg_view(torch.tensor([1, 2])))
    with refuses(ValueError, "mask is on device meta, expected cpu as the others; move it there"):
        layer(*arguments, None, torch.ones(Q, K, device="meta", dtype=torch.bool))


@pytest.mark.backends("torch")
def test_a_layer_that_torch_compiles_takes_lists_of_lengths(rng):
    attention, inputs = make("torch"), draw(rng)
    compiled = adapters.of("torch").compile(attention.layer)
    output = compiled(*(own("torch", X) for X in inputs), [3, 2])
    assert parity.ratio(attention, output, *inputs, [3, 2]) <= 1


@pytest.mark.backends("tensorflow")
def test_masks_of_keras_are_refused(rng):
    import keras

    queries, _, values = (own("tensorflow", X) for X in draw(rng))
    embedded = keras.layers.Embedding(4, 17, mask_zero=True)(np.array([[1, 2, 0, 3, 1, 1, 0]] * B))
    with refuses(ValueError, "keys carries a mask of Keras', expected it as mask= or valid_lens=; take it off"):
        make("tensorflow").layer(queries, embedded, values)


@pytest.mark.backends("tensorflow")
def test_sizes_that_tensorflow_learns_late_are_checked(rng):
    import tensorflow as tf

    layer, (X, Y, Z) = make("tensorflow").layer, [own("tensorflow", X) for X in draw(rng)]

    def unknown(*ranks, dtype="float32"):
        return [tf.TensorSpec([None] * rank, dtype) for rank in ranks]

    specs = [tf.TensorSpec([None, None, width], "float32") for width in (13, 17, 19)]
    call = tf.function(lambda *inputs: layer(*inputs), input_signature=[*specs, *unknown(1, dtype="int32")])
    masked = tf.function(lambda *inputs, mask: layer(*inputs, mask=mask))
    masked = masked.get_concrete_function(*specs, mask=unknown(3, dtype="bool")[0])
    call(X, Y, Z, [3, 2])
    for wrong in (
        (X, Y[:1], Z[:1], [3, 2]), (X[:1], Y, Z, [3, 2]), (X, Y, Z[:, :1], [3, 2]), (X, Y, Z, [3]),
        (X[:1], Y[:1], Z[:1], [3, 2]),
    ):  # fmt: skip
        with pytest.raises(tf.errors.InvalidArgumentError):
            call(*wrong)
    masked(X, Y, Z, mask=tf.ones((1, Q, 1), "bool"))
    for shape in ((B + 1, Q, K), (1, Q + 1, 1), (1, 1, K + 1)):
        with pytest.raises(tf.errors.InvalidArgumentError):
            masked(X[:1], Y[:1], Z[:1], mask=tf.ones(shape, "bool"))


# Additive pooling of the book, made with its widths or without, which the first call then decides


def additive(backend, d2l, arguments, given):
    return adapters.of(backend).start(d2l.AdditiveAttention(*((17, 13) if given else ()), 8, 0.0), *arguments)


@pytest.mark.parametrize("given", [True, False], ids=["widths given", "widths from the first call"])
def test_additive_pooling_of_the_book_keeps_to_its_dtype(backend, d2l, rng, given):
    attention = additive(backend, d2l, [own(backend, X) for X in draw(rng)], given)
    with dispatch.load(backend).context("float64"):
        wide = [own(backend, X) for X in draw(rng, "float64")]
        with refuses(TypeError, "queries has dtype float64, expected float32 as the weights; convert one"):
            attention(*wide)


# Flax itself refuses what does not fit the parameters of the first call.
OURS = pytest.mark.backends("torch", "tensorflow", "mxnet")


@pytest.mark.parametrize("given", [True, pytest.param(False, marks=OURS)], ids=["given", "from the first call"])
def test_additive_pooling_of_the_book_keeps_to_its_widths(backend, d2l, rng, given):
    X, Y, Z = (own(backend, X) for X in draw(rng))
    attention = additive(backend, d2l, (X, Y, Z), given)
    with refuses(ValueError, "queries has shape (2, 5, 12), expected (batch, queries, 13)"):
        attention(X[:, :, 1:], Y, Z)
