"""What must not get in does not, with the same error and words on every backend and path; what may, does no harm."""

import functools
import importlib
import re
import threading
import warnings

import numpy as np
import pytest

import mha
from mha import checks, dispatch
from mha.config import numpy_dtype

# B batch, Q queries, K key-value pairs, H heads, D num_hiddens: all sizes differ, so that a swapped axis fails.
B, Q, K, H, D = 2, 5, 7, 3, 12
SIZES = {"query_size": 13, "key_size": 17, "value_size": 19}
SHAPES = {"queries": (B, Q, 13), "keys": (B, K, 17), "values": (B, K, 19)}


def make(backend, **options):
    return mha.MultiHeadAttention(D, H, backend=backend, **(SIZES | options))


def draw(rng, dtype="float32"):
    return {name: rng.normal(size=shape).astype(numpy_dtype(dtype)) for name, shape in SHAPES.items()}


# How a value becomes an array of a framework without any help from `mha`, which would refuse some of them.
OWN = {
    "numpy": lambda X: X,
    "torch": lambda X: importlib.import_module("torch").from_numpy(X),
    "tensorflow": lambda X: importlib.import_module("tensorflow").constant(X),
    "jax": lambda X: importlib.import_module("jax").numpy.asarray(X),
    "mxnet": lambda X: importlib.import_module("mxnet").np.array(X, dtype=X.dtype),
}


def own(backend, value):
    """A NumPy array as the backend's own, where the framework has its dtype; anything else as it is."""
    if type(value) is not np.ndarray:
        return value
    try:
        with dispatch.load(backend).context("float64"):
            made = OWN[backend](value)
    except Exception:  # each framework has errors of its own for dtypes that it lacks
        return value
    return made if checks.dtype_name(made.dtype) == value.dtype.name else value


def through_own_arrays(backend, attention, *arrays, **options):
    given = [own(backend, X) for X in arrays]
    if any(isinstance(X, np.ndarray) for X in given):  # of two kinds is another matter
        given = arrays
    return attention(*given, **{name: own(backend, value) for name, value in options.items()})


def through_layer(
    backend, layer, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None, return_weights=False
):
    arrays = [own(backend, X) for X in (queries, keys, values, valid_lens, mask)]
    result = layer(*arrays, causal, training, return_weights)
    return result[0] if isinstance(result, tuple) else result


@functools.cache
def book_layer(backend):
    """A layer of the book's tab, with weights; NumPy has no tab in the book, so there it is the plain layer."""
    if backend == "numpy":
        return make("numpy").layer
    d2l = importlib.import_module(f"mha.d2l.{backend}")
    attention = d2l.MultiHeadAttention(17, 13, 19, D, H, 0.0)
    if backend == "torch":
        attention.eval()
    if backend == "mxnet":
        attention.initialize()
    if backend == "jax":
        import jax

        inputs = [np.ones(shape, "float32") for shape in SHAPES.values()]
        attention = attention.bind(attention.init(jax.random.PRNGKey(0), *inputs))
    return attention


# The ways in. Each gives a function that takes NumPy arrays, or whatever the test puts in their place.
PATHS = {
    "mha": lambda backend: make(backend),
    "mha-own-arrays": lambda backend: functools.partial(through_own_arrays, backend, make(backend)),
    "gradients": lambda backend: make(backend).gradients,
    "trace": lambda backend: make(backend).trace,
    "layer": lambda backend: functools.partial(through_layer, backend, make(backend).layer),
    "d2l": lambda backend: functools.partial(through_layer, backend, book_layer(backend)),
}


class Sneaky:
    """Looks like an array to those who ask for attributes alone."""

    shape, dtype, device = (B,), np.dtype("int64"), "cpu"


def nested(depth):
    value = [1]
    for _ in range(depth):
        value = [value]
    return value


def refuses(error, words):
    """An error of exactly this class whose text begins so; * stands for anything."""
    return pytest.RaisesExc(error, match=f"^{re.escape(words).replace(re.escape('*'), '.*')}", check=is_exact(error))


def is_exact(error):
    return lambda raised: type(raised) is error


# name -> the argument, what stands in its place (from the good one), the error's class, and how its words begin.
BAD = {
    # 8-13: shapes
    "rank 0": ("queries", lambda X: np.array(1, "float32"), ValueError, "queries has shape (), expected (batch, queri"),
    "rank 1": ("queries", lambda X: X[0, 0], ValueError, "queries has shape (13,), expected (batch, queries, 13)"),
    "rank 2": ("keys", lambda X: X[0], ValueError, "keys has shape (7, 17), expected (batch, key-value pairs, 17)"),
    "rank 4": ("values", lambda X: X[None], ValueError, "values has shape (1, 2, 7, 19), expected (batch, key-value p"),
    "batch of one": ("keys", lambda X: X[:1], ValueError, "keys has batch size 1, expected 2 as queries: nothing broa"),
    "other batch": ("values", lambda X: X.repeat(2, 0), ValueError, "values has batch size 4, expected 2 as queries"),
    "fewer values": ("values", lambda X: X[:, 1:], ValueError, "values has 6 rows a sample, expected 7: one for each"),
    "more values": ("values", lambda X: X.repeat(2, 1), ValueError, "values has 14 rows a sample, expected 7"),
    "width": ("keys", lambda X: X[:, :, 1:], ValueError, "keys has shape (2, 7, 16), expected (batch, key-value pairs"),
    "transposed": ("keys", lambda X: X.swapaxes(1, 2).copy(), ValueError, "keys has shape (2, 17, 7), expected (batch"),
    "none": ("queries", lambda X: None, TypeError, "queries is *None*, expected a"),
    "text": ("keys", lambda X: "keys", TypeError, "keys is *str*, expected a"),
    "number": ("values", lambda X: 1.5, TypeError, "values is *float*, expected a"),
    "dict": ("values", lambda X: {"values": 1}, TypeError, "values is *dict*, expected a"),
    "iterator": ("keys", lambda X: iter([1.0]), TypeError, "keys is *iterator*, expected a"),
    "looks like an array": ("queries", lambda X: Sneaky(), TypeError, "queries is *Sneaky*, expected a"),
    "masked array": ("keys", np.ma.masked_array, TypeError, "keys is *MaskedArray*, expected a"),
    # 14-17: dtypes; where the framework has no such dtype, NumPy's array is refused for what it is
    "objects": ("queries", lambda X: X.astype(object), TypeError, "queries *, expected "),
    "texts": ("queries", lambda X: X.astype(str), TypeError, "queries *, expected "),
    "integers": ("queries", lambda X: X.astype("int32"), TypeError, "queries has dtype int32, expected float32 as the"),
    "booleans": ("values", lambda X: X > 0, TypeError, "values has dtype bool, expected float32 as the layer; conve"),
    "complex": ("keys", lambda X: X.astype("complex64"), TypeError, "keys *, expected "),
    "float64": ("queries", lambda X: X.astype("float64"), TypeError, "queries *, expected "),
    "float16": ("keys", lambda X: X.astype("float16"), TypeError, "keys has dtype float16, expected float32 as the la"),
    "bfloat16": ("values", lambda X: X.astype(numpy_dtype("bfloat16")), TypeError, "values *, expected "),
    "longdouble": ("values", lambda X: X.astype("longdouble"), TypeError, "values *, expected "),
    # 20-38: lengths
    "negative": ("valid_lens", lambda X: np.array([-1, 2]), ValueError, "valid_lens holds -1, expected 0 or more: the"),
    "negative list": ("valid_lens", lambda X: [2, -3], ValueError, "valid_lens holds -3, expected 0 or more"),
    "one negative": ("valid_lens", lambda X: np.where(np.eye(B, Q), -5, 3), ValueError, "valid_lens holds -5, expecte"),
    "very negative": ("valid_lens", lambda X: [-(2**62), 1], ValueError, "valid_lens holds -4611686018427387904, expe"),
    "halves": ("valid_lens", lambda X: [2.5, 3], TypeError, "valid_lens has dtype float64, expected integers; masks g"),
    "whole floats": ("valid_lens", lambda X: [2.0, 3.0], TypeError, "valid_lens has dtype float64, expected integers"),
    "float16 as lengths": ("valid_lens", lambda X: np.float16([2.5, 3]), TypeError, "valid_lens has dtype float16, ex"),
    "not a number": ("valid_lens", lambda X: [float("nan"), 3], TypeError, "valid_lens has dtype float64, expected in"),
    "booleans as lengths": ("valid_lens", lambda X: [True, False], TypeError, "valid_lens has dtype bool, expected in"),
    "texts as lengths": ("valid_lens", lambda X: ["3", "2"], TypeError, "valid_lens has dtype str*, expected integers"),
    "none in lengths": ("valid_lens", lambda X: [3, None], TypeError, "valid_lens has dtype object, expected integers"),
    "beyond integers": ("valid_lens", lambda X: [2**70, 1], TypeError, "valid_lens has dtype object, expected integer"),
    "ragged": ("valid_lens", lambda X: [[1, 2], [3]], ValueError, "valid_lens is a nested list that is no array"),
    "nested too deep": ("valid_lens", lambda X: nested(10_000), ValueError, "valid_lens is a nested list that is no a"),
    "too many": ("valid_lens", lambda X: [1, 2, 3], ValueError, "valid_lens has shape (3,), expected (2,) or (2, 5):"),
    "just one": ("valid_lens", lambda X: [1], ValueError, "valid_lens has shape (1,), expected (2,) or (2, 5): (batch"),
    "a query more": ("valid_lens", lambda X: np.ones((B, Q + 1), int), ValueError, "valid_lens has shape (2, 6), expe"),
    "transposed lengths": ("valid_lens", lambda X: np.ones((Q, B), int), ValueError, "valid_lens *; it looks transpos"),
    "for each head": ("valid_lens", lambda X: np.ones(B * H, int), ValueError, "valid_lens has shape (6,), expected ("),
    "scalar": ("valid_lens", lambda X: 3, TypeError, "valid_lens is 3 (int), expected integers of shape (batch,) or ("),
    "scalar array": ("valid_lens", lambda X: np.array(3), ValueError, "valid_lens has shape (), expected (2,) or (2,"),
    "rank 3": ("valid_lens", lambda X: np.ones((B, Q, 1), int), ValueError, "valid_lens has shape (2, 5, 1), expected"),
    "column": ("valid_lens", lambda X: [[1], [2]], ValueError, "valid_lens has shape (2, 1), expected (2,) or (2, 5):"),
    "mask as lengths": ("valid_lens", lambda X: np.ones((B, K), bool), TypeError, "valid_lens *; masks go to mask="),
    "set": ("valid_lens", lambda X: {3, 2}, TypeError, "valid_lens is {2, 3} (set), expected integers of shape"),
    "looks like lengths": ("valid_lens", lambda X: Sneaky(), TypeError, "valid_lens is *Sneaky*, expected integers of"),
    "masked lengths": ("valid_lens", lambda X: np.ma.masked_array([3, 2]), TypeError, "valid_lens is *MaskedArray*, e"),
    "times": ("valid_lens", lambda X: np.array([3, 2], "timedelta64[s]"), TypeError, "valid_lens has dtype timedelta6"),
    # masks
    "float mask": ("mask", lambda X: np.ones((Q, K), "float32"), TypeError, "mask has dtype float32, expected boolean"),
    "integer mask": ("mask", lambda X: np.ones((Q, K), "int32"), TypeError, "mask has dtype int32, expected booleans,"),
    "numbers": ("mask", lambda X: [[1] * K] * Q, TypeError, "mask has dtype int64, expected booleans, True = may atte"),
    "transposed mask": ("mask", lambda X: np.ones((K, Q), bool), ValueError, "mask has shape (7, 5), expected (5, 7),"),
    "mask of a batch": ("mask", lambda X: np.ones((B, K), bool), ValueError, "mask has shape (2, 7), expected (5, 7),"),
    "mask of rank 1": ("mask", lambda X: np.ones((K,), bool), ValueError, "mask has shape (7,), expected (5, 7), (2,"),
    "mask of rank 5": ("mask", lambda X: np.ones((1, B, H, Q, K), bool), ValueError, "mask has shape (1, 2, 3, 5, 7),"),
    "heads in the batch": ("mask", lambda X: np.ones((B * H, Q, K), bool), ValueError, "mask has shape (6, 5, 7), exp"),
    "text as mask": ("mask", lambda X: "causal", TypeError, "mask is 'causal' (str), expected booleans, True = may at"),
    "true": ("mask", lambda X: True, TypeError, "mask is True (bool), expected booleans, True = may attend"),
    "masked mask": ("mask", lambda X: np.ma.masked_array(np.ones((Q, K), bool)), TypeError, "mask is *MaskedArray*, e"),
    # switches
    "causal 1": ("causal", lambda X: 1, TypeError, "causal is 1 (int), expected True or False"),
    "causal text": ("causal", lambda X: "yes", TypeError, "causal is 'yes' (str), expected True or False"),
    "training 1": ("training", lambda X: 1, TypeError, "training is 1 (int), expected True or False"),
    "training text": ("training", lambda X: "yes", TypeError, "training is 'yes' (str), expected True or False"),
    "weights 1": ("return_weights", lambda X: 1, TypeError, "return_weights is 1 (int), expected True or False"),
    "weights text": ("return_weights", lambda X: "no", TypeError, "return_weights is 'no' (str), expected True or Fal"),
    "causal none": ("causal", lambda X: None, TypeError, "causal is None (NoneType), expected True or False"),
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("bad", BAD)
def test_bad_inputs_are_refused(backend, rng, path, bad):
    name, change, error, words = BAD[bad]
    arguments = draw(rng)
    arguments[name] = change(arguments.get(name))
    queries, keys, values = (arguments.pop(position) for position in SHAPES)
    if name in ("training", "return_weights") and path in ("gradients", "trace"):
        error, words = TypeError, f"*unexpected keyword argument '{name}'"
    with refuses(error, words):
        PATHS[path](backend)(queries, keys, values, **arguments)


# 1-7: construction; what the book's names take comes first

BAD_BOOK_OPTIONS = {
    "heads that do not divide": ({"num_heads": 5}, ValueError, "num_hiddens is 12, expected a multiple of num_heads ="),
    "more heads than hiddens": ({"num_heads": 24}, ValueError, "num_hiddens is 12, expected a multiple of num_heads ="),
    "no heads": ({"num_heads": 0}, ValueError, "num_heads is 0, expected at least 1"),
    "negative heads": ({"num_heads": -2}, ValueError, "num_heads is -2, expected at least 1"),
    "float heads": ({"num_heads": 2.0}, TypeError, "num_heads is 2.0 (float), expected a positive int"),
    "text heads": ({"num_heads": "2"}, TypeError, "num_heads is '2' (str), expected a positive int"),
    "true heads": ({"num_heads": True}, TypeError, "num_heads is True (bool), expected a positive int"),
    "NumPy's true": ({"num_heads": np.True_}, TypeError, "num_heads is *True* (bool*), expected a positive int"),
    "no heads at all": ({"num_heads": None}, TypeError, "num_heads is None (NoneType), expected a positive int"),
    "a list of heads": ({"num_heads": [2]}, TypeError, "num_heads is [2] (list), expected a positive int"),
    "no hiddens": ({"num_hiddens": 0}, ValueError, "num_hiddens is 0, expected at least 1"),
    "infinite hiddens": ({"num_hiddens": float("inf")}, TypeError, "num_hiddens is inf (float), expected a positive i"),
    "negative size": ({"key_size": -1}, ValueError, "key_size is -1, expected at least 1"),
    "float size": ({"query_size": 13.0}, TypeError, "query_size is 13.0 (float), expected a positive int"),
    "zero size": ({"value_size": 0}, ValueError, "value_size is 0, expected at least 1"),
    "full dropout": ({"dropout": 1.0}, ValueError, "dropout is 1.0, expected a float in [0, 1)"),
    "dropout above 1": ({"dropout": 1.5}, ValueError, "dropout is 1.5, expected a float in [0, 1)"),
    "negative dropout": ({"dropout": -0.1}, ValueError, "dropout is -0.1, expected a float in [0, 1)"),
    "dropout NaN": ({"dropout": float("nan")}, ValueError, "dropout is nan, expected a float in [0, 1)"),
    "text dropout": ({"dropout": "0.1"}, TypeError, "dropout is '0.1' (str), expected a float in [0, 1)"),
    "dropout true": ({"dropout": True}, TypeError, "dropout is True (bool), expected a float in [0, 1)"),
    "dropout none": ({"dropout": None}, TypeError, "dropout is None (NoneType), expected a float in [0, 1)"),
    "bias 1": ({"bias": 1}, TypeError, "bias is 1 (int), expected True or False"),
    "bias none": ({"bias": None}, TypeError, "bias is None (NoneType), expected True or False"),
    "bias text": ({"bias": "no"}, TypeError, "bias is 'no' (str), expected True or False"),
}  # fmt: skip
BAD_OPTIONS = BAD_BOOK_OPTIONS | {
    "head width": ({"value_dim": 1.5}, TypeError, "value_dim is 1.5 (float), expected a positive int"),
    "unknown option": ({"use_bias": True}, TypeError, "*use_bias"),
    "unknown pooling": ({"pooling": "max"}, ValueError, "pooling is 'max', expected one of dot, additive"),
    "no pooling": ({"pooling": None}, TypeError, "pooling is None (NoneType), expected one of dot, additive"),
    "unknown dtype": ({"dtype": "int32"}, ValueError, "dtype is 'int32', expected one of float32, float64, float16, b"),
    "odd dtype": ({"dtype": 32}, ValueError, "dtype is '32', expected one of float32, float64, float16, bfloat16"),
    "negative seed": ({"seed": -1}, ValueError, "seed is -1, expected at least 0"),
    "float seed": ({"seed": 1.0}, TypeError, "seed is 1.0 (float), expected an int of at least 0"),
    "unknown backend": ({"backend": "keras"}, ValueError, "backend is 'keras', expected one of numpy, torch, tensorf"),
    "backend as module": ({"backend": np}, TypeError, "backend is *, expected one of numpy, torch, tensorflow, jax, m"),
}  # fmt: skip
GOOD_OPTIONS = {"num_hiddens": D, "num_heads": H, "dropout": 0.0, "bias": False, **SIZES}


@pytest.mark.parametrize("bad", BAD_OPTIONS)
def test_bad_options_are_refused(backend, bad):
    options, error, words = BAD_OPTIONS[bad]
    with refuses(error, words):
        mha.MultiHeadAttention(**({"backend": backend} | GOOD_OPTIONS | options))


@pytest.mark.parametrize("bad", BAD_BOOK_OPTIONS)
def test_the_books_names_refuse_bad_options_too(backend, bad):
    options, error, words = BAD_BOOK_OPTIONS[bad]
    options = GOOD_OPTIONS | options
    if backend == "mxnet":
        options["use_bias"] = options.pop("bias")
    make = mha.config.Config if backend == "numpy" else importlib.import_module(f"mha.d2l.{backend}").MultiHeadAttention
    with refuses(error, words):
        make(**options)


# 18-19: arrays of other kinds and places


def others_numpy(X):
    return []


def others_torch(X):
    import torch

    yield X.to_sparse()
    yield X.to_mkldnn()
    yield torch.nested.nested_tensor(list(X))
    yield torch.nested.nested_tensor(list(X), layout=torch.jagged)
    yield torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)
    yield X.to("meta")


def others_tensorflow(X):
    import tensorflow as tf

    yield tf.sparse.from_dense(X)
    yield tf.RaggedTensor.from_tensor(X)
    yield tf.IndexedSlices(X, tf.range(len(X)))


def others_jax(X):
    from jax.experimental import sparse

    yield sparse.BCOO.fromdense(X)
    yield jax_keys(X)


def jax_keys(X):
    import jax

    return jax.random.split(jax.random.key(0), X.shape)


def others_mxnet(X):
    yield X.as_nd_ndarray()
    yield X.as_nd_ndarray().reshape(len(X), -1).tostype("csr")


OTHERS = {
    "numpy": others_numpy,
    "torch": others_torch,
    "tensorflow": others_tensorflow,
    "jax": others_jax,
    "mxnet": others_mxnet,
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel")
@pytest.mark.parametrize("path", ["mha-own-arrays", "gradients", "trace", "layer", "d2l"])
@pytest.mark.parametrize("name", SHAPES)
def test_arrays_that_are_not_dense_or_lie_elsewhere_are_refused(backend, rng, path, name):
    arguments = {name: own(backend, X) for name, X in draw(rng).items()}
    for other in OTHERS[backend](arguments[name]):
        with pytest.raises((TypeError, ValueError), match=rf"^{name} (is|has) .*, expected "):
            PATHS[path](backend)(*(arguments | {name: other}).values())


@pytest.mark.parametrize("path", ["mha", "layer", "d2l"])
def test_arrays_of_another_framework_are_refused(backend, rng, path, request):
    for other in {"numpy", *request.config.backends} - {backend}:
        arguments = draw(rng)
        theirs = {name: own(other, X) for name, X in arguments.items()}
        call = PATHS[path](backend)
        if other == "numpy":  # all NumPy is fine with `mha`, and with some frameworks' own layers
            theirs = {"keys": theirs["keys"]} if path == "mha" and backend != "numpy" else {}
            arguments = {name: own(backend, X) for name, X in arguments.items()}
        for name, X in theirs.items():
            with pytest.raises(TypeError, match=r"^(queries|keys|values) is .*, expected "):
                call(*(arguments | {name: X}).values())


# 20-37: lengths that are fine, in whatever form


def kinds_of_lengths(lengths, backends):
    lengths = np.array(lengths)
    yield lengths.tolist()
    yield tuple(map(tuple, lengths.tolist())) if lengths.ndim == 2 else tuple(lengths.tolist())
    for dtype in ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        yield lengths.astype(dtype)
    for backend in backends:
        yield own(backend, lengths)
    yield np.asfortranarray(lengths)
    yield lengths.astype(lengths.dtype.newbyteorder())
    yield list(lengths)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("lengths", [[3, 0], [[3, 0, 7, 1, 2], [7, 7, 0, 0, 5]]], ids=["per sample", "per query"])
def test_lengths_in_any_form_are_the_same(backend, rng, path, lengths, request):
    call, arguments = PATHS[path](backend), draw(rng)
    expected = taken(call(*arguments.values(), np.array(lengths)))
    for kind in kinds_of_lengths(lengths, request.config.backends):
        assert np.array_equal(taken(call(*arguments.values(), kind)), expected), repr(kind)


@pytest.mark.parametrize("path", PATHS)
def test_lengths_above_all_keys_hide_nothing(backend, rng, path):
    call, arguments = PATHS[path](backend), draw(rng)
    expected = taken(call(*arguments.values()))
    for lengths in ([K, K + 1], [2**31, 2**32], [2**40, 2**62], np.array([2**31 + 1, 2**32 - 1], "uint32"),
                    np.array([2**63 + 1, 2**64 - 1], "uint64"), np.array([127, 100], "int8")):  # fmt: skip
        assert np.array_equal(taken(call(*arguments.values(), lengths)), expected)


@pytest.mark.parametrize("path", PATHS)
def test_masks_in_any_form_are_the_same(backend, rng, path, request):
    call, arguments = PATHS[path](backend), draw(rng)
    mask = rng.random((B, 1, Q, K)) < 0.5
    expected = taken(call(*arguments.values(), mask=mask))
    kinds = [mask.tolist(), mask[:, 0], mask[:, 0].tolist(), np.asfortranarray(mask), np.repeat(mask, H, 1)]
    for kind in (*kinds, *(own(backend, mask) for backend in request.config.backends)):
        assert np.array_equal(taken(call(*arguments.values(), mask=kind)), expected)


def taken(result):
    """The output, or of gradients and steps one that depends on all that came before, as a NumPy array."""
    if isinstance(result, dict):
        result = result["output" if "output" in result else "W_v.kernel"]
    return mha.to_numpy(result)


def test_dtypes_that_the_framework_hides_are_not_lost(backend, rng):
    attention, arguments = make(backend, dtype="float64"), draw(rng, "float64")
    with dispatch.load(backend).context("float64"):
        given = [own(backend, X) for X in arguments.values()]
        expected = mha.to_numpy(attention.layer(*given))
    if backend == "jax":  # outside its context, JAX would make float32 of the inputs and the weights
        with refuses(ValueError, "dtype is float64, expected it inside `with jax.enable_x64(True)`"):
            attention.layer(*given)
    else:
        result = mha.to_numpy(attention.layer(*given))
        assert result.dtype == np.float64
        assert np.array_equal(result, expected)


def test_a_list_of_numbers_that_the_dtype_cannot_hold_is_refused(backend, rng):
    arguments = {name: X.tolist() for name, X in draw(rng).items()}
    arguments["keys"][0][0][0] = -1e60
    with pytest.raises(ValueError, match=r"keys holds -1e.60, expected numbers that float32 can hold"):
        make(backend)(*arguments.values())
    arguments["keys"][0][0][0] = float("inf")
    assert not np.isfinite(make(backend)(*arguments.values())[0]).all()
    arguments["keys"][0][0][0] = None
    with refuses(TypeError, "keys holds object values, expected numbers"):
        make(backend)(*arguments.values())


# 44-54: values

FILLINGS = {"NaN": np.nan, "Inf": np.inf, "-Inf": -np.inf, "1e30": 1e30}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("scale", [1, 1e4])
def test_what_padding_holds_does_not_matter(backend, rng, path, filling, scale):
    call, arguments = PATHS[path](backend), draw(rng)
    for X in arguments.values():
        X *= scale
    lengths = np.array([[3, 0, 5, 1, 2], [0, 0, 0, 0, 0]])
    expected = taken(call(*arguments.values(), lengths))
    assert np.isfinite(expected).all()
    arguments["keys"][0, 5:] = arguments["values"][0, 5:] = FILLINGS[filling]
    arguments["keys"][1] = arguments["values"][1] = FILLINGS[filling]
    arguments["queries"][0, 1] = arguments["queries"][1] = FILLINGS[filling]
    assert np.array_equal(taken(call(*arguments.values(), lengths)), expected)


@pytest.mark.parametrize("path", ["mha", "mha-own-arrays", "trace", "layer", "d2l"])
@pytest.mark.parametrize("name", SHAPES)
def test_nan_that_is_seen_stays_in_its_sample(backend, rng, path, name):
    call, arguments = PATHS[path](backend), draw(rng)
    expected = taken(call(*arguments.values(), [3, 6]))
    arguments[name][0, 1] = np.nan
    output = taken(call(*arguments.values(), [3, 6]))
    assert np.isnan(output[0]).all(-1).tolist() == [name != "queries" or i == 1 for i in range(Q)]
    assert np.array_equal(output[1], expected[1])


def test_large_scores_and_half_precision_stay_finite(backend, rng):
    for dtype in dispatch.load(backend).DTYPES:
        attention, arguments = make(backend, dtype=dtype, bias=True), draw(rng, dtype)
        for scale in (1, 100):  # scores of 1e4, above the largest of float16
            scaled = [X * X.dtype.type(scale) for X in arguments.values()]
            for options in ({"valid_lens": [0, 3]}, {"causal": True}, {"mask": np.zeros((Q, K), bool)}):
                results = attention.gradients(*scaled, **options) | {"output": attention(*scaled, **options)}
                if not (dtype == "float16" and scale == 100):  # gradients by the weights may exceed 65504
                    assert all(np.isfinite(X.astype("float64")).all() for X in results.values()), (dtype, options)
                assert np.isfinite(results["output"].astype("float64")).all()


# Weights and the functions on arrays


def test_weights_of_other_kinds_are_refused_and_change_nothing(backend):
    attention = make(backend)
    before = attention.weights
    others = {name: X + 1 for name, X in before.items()}
    last = before["W_o.kernel"]
    bad = [
        np.ma.masked_array(last),
        last.astype(object),
        last.astype("float64"),
        last.tolist(),
        last[:, 0],
        None,
        "W_o",
    ]
    for wrong in bad:
        with pytest.raises((TypeError, ValueError), match=r"^weights\['W_o.kernel'\] (is|has) .*, expected "):
            attention.weights = others | {"W_o.kernel": wrong}
        assert all(np.array_equal(X, before[name]) for name, X in attention.weights.items())


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_weights_of_any_memory_order_are_taken(backend):
    attention = make(backend)
    new = {name: X + 1 for name, X in attention.weights.items()}
    for change in (lambda X: X.astype(X.dtype.newbyteorder()), lambda X: X[::-1].copy()[::-1], np.matrix):
        attention.weights = {name: X - 1 for name, X in new.items()}
        attention.weights = {name: change(X) for name, X in new.items()}
        assert all(np.array_equal(X, new[name]) for name, X in attention.weights.items())


BAD_CALLS = {
    "ragged": (lambda: mha.tensor([[1], [1, 2]]), ValueError, "data is a nested list that is no array: "),
    "nothing": (lambda: mha.tensor(None), TypeError, "data has dtype object, expected numbers or booleans"),
    "texts": (lambda: mha.tensor(["a"]), TypeError, "data has dtype str32, expected numbers or booleans"),
    "complex": (lambda: mha.tensor([1j]), TypeError, "data has dtype complex128, expected numbers or booleans"),
    "masked": (lambda: mha.tensor(np.ma.masked_array([1])), TypeError, "data is a MaskedArray, expected numbers, nest"),
    "unknown dtype": (lambda: mha.tensor([1], "int128"), ValueError, "dtype is 'int128', expected one of float32, "),
    "too large": (lambda: mha.tensor([1e60]), ValueError, "data holds 1e+60, expected numbers that float32 can hold"),
    "too large for half": (lambda: mha.tensor([1e6], "float16"), ValueError, "data holds 1000000.0, expected numbers"),
    "fraction": (lambda: mha.tensor([2.5], "int32"), ValueError, "data holds 2.5, expected numbers that int32 can hol"),
    "no number": (lambda: mha.tensor([np.nan], "int32"), ValueError, "data holds nan, expected numbers that int32 can"),
    "negative": (lambda: mha.tensor([-1], "uint8"), ValueError, "data holds -1, expected numbers that uint8 can hold"),
    "negative shape": (lambda: mha.ones((2, -1)), ValueError, "shape is (2, -1) (tuple), expected ints of at least 0"),
    "fractional shape": (lambda: mha.zeros(2.5), TypeError, "shape is 2.5 (float), expected a tuple of ints of at lea"),
    "no shape": (lambda: mha.normal(0, 1, None), TypeError, "shape is None (NoneType), expected a tuple of ints of at"),
    "negative spread": (lambda: mha.normal(0, -1, (2,)), ValueError, "std is -1, expected a finite number of at least"),
    "text as mean": (lambda: mha.normal("0", 1, (2,)), TypeError, "mean is '0' (str), expected a number"),
    "no array": (lambda: mha.check_shape(None, (2,)), TypeError, "X is a NoneType, expected an array of numpy, torch,"),
    "other shape": (lambda: mha.check_shape(mha.ones((2, 3)), (3, 2)), ValueError, "array has shape (2, 3), expected"),
    "list": (lambda: mha.to_numpy([1.0]), TypeError, "X is a list, expected an array of numpy, torch, tensorflow, jax"),
    "list to split": (lambda: mha.transpose_qkv([[[1.0]]], 1), TypeError, "X is a list, expected an array of numpy, t"),
    "no heads": (lambda: mha.transpose_output(mha.ones((2, 3, 4)), 0), ValueError, "num_heads is 0, expected at least"),
    "whole scores": (lambda: mha.masked_softmax(mha.ones((2, 3, 4), "int32")), TypeError, "X has dtype int32, expecte"),
    "negative length": (lambda: mha.masked_softmax(mha.ones((2, 3, 4)), [-1, 2]), ValueError, "valid_lens holds -1, e"),
    "long lengths": (lambda: mha.masked_softmax(mha.ones((2, 3, 4)), [1, 2, 3]), ValueError, "valid_lens has shape (3"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD_CALLS)
def test_functions_on_arrays_refuse_what_does_not_fit(backend, monkeypatch, bad):
    monkeypatch.setenv("MHA_BACKEND", backend)
    call, error, words = BAD_CALLS[bad]
    if bad == "too large for half" and "float16" not in dispatch.load(backend).DTYPES:
        error, words = ValueError, "data holds 1000000.0"
    with refuses(error, words):
        call()


# What only a careful reader would try


def test_lists_of_several_kinds(backend, rng):
    attention, arguments = make(backend), draw(rng)
    queries, keys, values = arguments.values()
    with refuses(TypeError, "valid_lens holds booleans beside other values, expected values of one kind"):
        attention(queries, keys, values, [True, 2])
    with refuses(TypeError, "valid_lens holds masked arrays, expected numbers"):
        attention(queries, keys, values, [np.ma.masked_array([1, 2, 3, 4, 5]), [1] * Q])
    with refuses(TypeError, "queries has dtype float64, expected float32 as the layer"):
        attention(list(queries.astype("float64")), keys, values)
    with refuses(TypeError, "keys has dtype bool, expected float32 as the layer"):
        attention(queries, (keys > 0).tolist(), values)
    everything = attention(queries, keys, values)
    for lengths in ([2**63, K], [np.int64(K), np.uint64(2**63)], [np.int32(K)] * B):
        assert np.array_equal(attention(queries, keys, values, lengths), everything)
    assert attention(queries, keys[:, :0], values[:, :0], mask=[[] for _ in range(Q)]).shape == (B, Q, D)


def test_lists_leave_the_filters_of_warnings_alone():
    before = list(warnings.filters)
    errors = []

    def call():
        for _ in range(200):
            try:
                mha.masked_softmax(np.ones((2, 3, 4), "float32"), [[1, 2], [3]])
            except ValueError as error:
                errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 1600
    assert warnings.filters == before


def changed_numpy(layer):
    layer.W_v.kernel = layer.W_v.kernel.astype("float64")


def changed_torch(layer):
    layer.W_v.double()


def changed_tensorflow(layer):
    layer.W_v = importlib.import_module("keras").layers.Dense(24)
    layer.W_v.build((None, 19))


def changed_jax(layer):
    module, variables = layer.unbind()
    del variables["params"]["W_v"]
    return module.bind(variables)


def changed_mxnet(layer):
    layer.cast("float64")


CHANGED = {
    "numpy": changed_numpy,
    "torch": changed_torch,
    "tensorflow": changed_tensorflow,
    "jax": changed_jax,
    "mxnet": changed_mxnet,
}


def test_a_layer_changed_behind_its_back_is_neither_saved_nor_written(backend, tmp_path):
    attention, other = make(backend), make("numpy", seed=1)
    attention.layer = CHANGED[backend](attention.layer) or attention.layer
    held = [X.tobytes() for X in own_weights(backend, attention.layer)]
    words = "the layer has been changed and no longer fits its configuration: "
    with refuses(ValueError, words):
        attention.save(tmp_path / "layer.safetensors")
    with refuses(ValueError, words):
        attention.to("numpy")
    with refuses(ValueError, words):
        mha.sync(other, attention)
    assert not list(tmp_path.iterdir())
    assert [X.tobytes() for X in own_weights(backend, attention.layer)] == held


def own_weights(backend, layer):
    if backend == "jax":
        import jax

        return [np.asarray(X) for X in jax.tree.leaves(layer.variables)]
    parameters = {
        "numpy": lambda: [layer.W_q.kernel, layer.W_k.kernel, layer.W_v.kernel, layer.W_o.kernel],
        "torch": lambda: layer.state_dict().values(),
        "tensorflow": lambda: [X.value for X in layer.weights],
        "mxnet": lambda: [X.data() for X in layer.collect_params().values()],
    }
    return [mha.to_numpy(X) for X in parameters[backend]()]


def test_integers_of_frameworks_are_no_sizes(backend):
    for value in (mha.tensor(True, backend=backend), mha.tensor([3], backend=backend), np.array([3])):
        with pytest.raises(TypeError, match=r"^num_heads is .*, expected a positive int"):
            mha.MultiHeadAttention(12, value)
        with pytest.raises(TypeError, match=r"^seed is .*, expected an int of at least 0"):
            mha.MultiHeadAttention(12, 3, seed=value)
    assert mha.MultiHeadAttention(12, np.int16(3)).config.num_heads == 3


def test_what_is_no_dense_array_is_refused_by_functions(backend, rng):
    (X,) = (own(backend, X) for X in [draw(rng)["queries"]])
    others = [*OTHERS[backend](X), np.ma.masked_array([1.0]), np.random.default_rng(), make(backend).layer, None]
    for other in others:
        if getattr(other, "device", None) is not None and str(other.device) == "meta":
            continue  # an array, but of nothing: what is done with it is on `meta` too
        with pytest.raises(TypeError, match=r"^X (is a|has dtype) .*, expected "):
            mha.to_numpy(other)
        if not dispatch.load(backend).is_own(other):
            with pytest.raises(TypeError, match=r"^X is a .*, expected "):
                mha.check_shape(other, (2, 5, 13))


def odd_torch(layer, arguments):
    import torch

    with refuses(ValueError, "valid_lens is on device meta, expected cpu as the others; move it there"):
        layer(*arguments, torch.tensor([3, 2], device="meta"))
    with refuses(ValueError, "valid_lens holds -2, expected 0 or more"):
        layer(*arguments, torch._neg_view(torch.tensor([1, 2])))
    with refuses(ValueError, "mask is on device meta, expected cpu as the others; move it there"):
        layer(*arguments, None, torch.ones(Q, K, device="meta", dtype=torch.bool))
    compiled = torch.compile(layer, backend="eager")
    torch.testing.assert_close(compiled(*arguments, [3, 2]), layer(*arguments, [3, 2]))


def odd_tensorflow(layer, arguments):
    import keras
    import tensorflow as tf

    embedded = keras.layers.Embedding(4, 17, mask_zero=True)(np.array([[1, 2, 0, 3, 1, 1, 0]] * B))
    with refuses(ValueError, "keys carries a mask of Keras', expected it as mask= or valid_lens=; take it off"):
        layer(arguments[0], embedded, arguments[2])

    def unknown(*ranks, dtype="float32"):
        return [tf.TensorSpec([None] * rank, dtype) for rank in ranks]

    specs = [tf.TensorSpec([None, None, width], "float32") for width in (13, 17, 19)]
    call = tf.function(lambda *inputs: layer(*inputs), input_signature=[*specs, *unknown(1, dtype="int32")])
    masked = tf.function(lambda *inputs, mask: layer(*inputs, mask=mask))
    masked = masked.get_concrete_function(*specs, mask=unknown(3, dtype="bool")[0])
    X, Y, Z = arguments
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


ODD = {
    "numpy": lambda layer, arguments: None,
    "torch": odd_torch,
    "tensorflow": odd_tensorflow,
    "jax": lambda layer, arguments: None,
    "mxnet": lambda layer, arguments: None,
}


def test_what_only_one_framework_has(backend, rng):
    ODD[backend](make(backend).layer, [own(backend, X) for X in draw(rng).values()])


@pytest.mark.parametrize("given", [True, False], ids=["widths given", "widths from the first call"])
def test_additive_pooling_of_the_book_keeps_to_its_dtype_and_widths(backend, rng, given):
    if backend == "numpy":  # has no tab in the book
        return
    d2l = importlib.import_module(f"mha.d2l.{backend}")
    attention = d2l.AdditiveAttention(17, 13, 8, 0.0) if given else d2l.AdditiveAttention(8, 0.0)
    X, Y, Z = (own(backend, X) for X in draw(rng).values())
    if backend == "mxnet":
        attention.initialize()
    if backend == "jax":
        import jax

        attention = attention.bind(attention.init(jax.random.PRNGKey(0), X, Y, Z))
    attention(X, Y, Z)
    with dispatch.load(backend).context("float64"):
        wide = [own(backend, X) for X in draw(rng, "float64").values()]
        with refuses(TypeError, "queries has dtype float64, expected float32 as the weights; convert one"):
            attention(*wide)
    if given or backend != "jax":  # Flax itself refuses what does not fit the parameters of the first call
        with refuses(ValueError, "queries has shape (2, 5, 12), expected (batch, queries, 13)"):
            attention(X[:, :, 1:], Y, Z)
