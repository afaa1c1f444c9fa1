"""Layers that cannot be made, weights that do not fit, and what the functions on arrays refuse, on every backend."""

import importlib

import adapters
import numpy as np
import pytest
from calls import HAS_BOOK, draw, make, own

import mha
from mha.core import dispatch

from .paths import refuses

# Layers. What the book's names take too comes first.

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
    "no heads of keys": ({"num_key_value_heads": 0}, ValueError, "num_key_value_heads is 0, expected at least 1"),
    "unequal groups": ({"num_key_value_heads": 2}, ValueError, "num_key_value_heads is 2, expected a divisor of num_h"),
    "more heads of keys": ({"num_key_value_heads": 6}, ValueError, "num_key_value_heads is 6, expected a divisor of n"),
    "scale 0": ({"scale": 0}, ValueError, "scale is 0, expected a finite number above 0"),
    "scale NaN": ({"scale": float("nan")}, ValueError, "scale is nan, expected a finite number above 0"),
    "scale text": ({"scale": "1"}, TypeError, "scale is '1' (str), expected a number above 0"),
    "negative cap": ({"softcap": -50.0}, ValueError, "softcap is -50.0, expected a finite number above 0"),
    "infinite cap": ({"softcap": float("inf")}, ValueError, "softcap is inf, expected a finite number above 0"),
    "sinks as numbers": ({"sinks": [0.0, 0.0, 0.0]}, TypeError, "sinks is [0.0, 0.0, 0.0] (list), expected True or Fa"),
    "unknown gate": ({"output_gate": "heads"}, ValueError, "output_gate is 'heads', expected one of element, head"),
    "gate true": ({"output_gate": True}, TypeError, "output_gate is True (bool), expected one of element, head"),
    "window of one number": ({"window": 4}, TypeError, "window is 4 (int), expected a pair (left, right): (3, 0) sees"),
    "window of three": ({"window": (1, 2, 3)}, TypeError, "window is (1, 2, 3) (tuple), expected a pair (left, right)"),
    "window of floats": ({"window": (1.0, 0)}, TypeError, "window is (1.0, 0) (tuple), expected a pair (left, right)"),
    "window of booleans": ({"window": (True, 0)}, TypeError, "window is (True, 0) (tuple), expected a pair (left, rig"),
    "endless window": ({"window": (2**31, 0)}, ValueError, "window is (2147483648, 0) (tuple), expected a pair (left,"),
    "negative window": ({"window": (-1, 0)}, ValueError, "window is (-1, 0) (tuple), expected a pair (left, right)"),
    "chunk of none": ({"chunk": 0}, ValueError, "chunk is 0, expected at least 1"),
    "chunk of a float": ({"chunk": 4.0}, TypeError, "chunk is 4.0 (float), expected a positive int"),
    "endless chunk": ({"chunk": 2**31}, ValueError, "chunk is 2147483648, expected at most 1073741824 positions"),
    "rotary true": ({"rotary": True}, TypeError, "rotary is True (bool), expected an mha.Rotary, such as mha.Rotary("),
    "rotary too wide": ({"rotary": mha.Rotary(6)}, ValueError, "dim of Rotary is 6, expected an even number of at mos"),
    "unknown norm": ({"qk_norm": "l2"}, ValueError, "qk_norm is 'l2', expected one of rms, layer"),
    "norm true": ({"qk_norm": True}, TypeError, "qk_norm is True (bool), expected one of rms, layer"),
    "a temperature in a word": ({"temperature": "warm"}, TypeError, "temperature is 'warm' (str), expected an mha.Tem"),
    "additive temperature": (
        {"pooling": "additive", "temperature": mha.Temperature(0.1, 8)}, ValueError, "temperature is given, expected",
    ),
    "additive scale": ({"pooling": "additive", "scale": 1.0}, ValueError, "scale is given, expected None with pooling"),
    "additive rotary": ({"pooling": "additive", "rotary": mha.Rotary()}, ValueError, "rotary is given, expected None "),
    "additive norm": ({"pooling": "additive", "qk_norm": "rms"}, ValueError, "qk_norm is given, expected None with po"),
    "negative seed": ({"seed": -1}, ValueError, "seed is -1, expected at least 0"),
    "float seed": ({"seed": 1.0}, TypeError, "seed is 1.0 (float), expected an int of at least 0"),
    "unknown backend": ({"backend": "keras"}, ValueError, f"backend is 'keras', expected one of {adapters.NAMES}; d"),
    "backend as module": ({"backend": np}, TypeError, f"backend is *, expected one of {adapters.NAMES}"),
}  # fmt: skip
GOOD_OPTIONS = {
    "num_hiddens": 12, "num_heads": 3, "dropout": 0.0, "bias": False,
    "query_size": 13, "key_size": 17, "value_size": 19,
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD_OPTIONS)
def test_bad_options_are_refused(backend, bad):
    options, error, words = BAD_OPTIONS[bad]
    with refuses(error, words):
        mha.MultiHeadAttention(**({"backend": backend} | GOOD_OPTIONS | options))


@HAS_BOOK
@pytest.mark.parametrize("bad", BAD_BOOK_OPTIONS)
def test_the_books_names_refuse_bad_options_too(backend, bad):
    options, error, words = BAD_BOOK_OPTIONS[bad]
    options = GOOD_OPTIONS | options
    options[adapters.of(backend).bias] = options.pop("bias")
    with refuses(error, words):
        importlib.import_module(f"mha.d2l.{backend}").MultiHeadAttention(**options)


def test_integers_of_frameworks_are_no_sizes(backend):
    for value in (mha.tensor(True, backend=backend), mha.tensor([3], backend=backend), np.array([3])):
        with pytest.raises(TypeError, match=r"^num_heads is .*, expected a positive int"):
            mha.MultiHeadAttention(12, value)
        with pytest.raises(TypeError, match=r"^seed is .*, expected an int of at least 0"):
            mha.MultiHeadAttention(12, 3, seed=value)
    assert mha.MultiHeadAttention(12, np.int16(3)).config.num_heads == 3


# Weights


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_weights_of_any_memory_order_are_taken(backend):
    attention = make(backend)
    new = {name: X + 1 for name, X in attention.weights.items()}
    for change in (lambda X: X.astype(X.dtype.newbyteorder()), lambda X: X[::-1].copy()[::-1], np.matrix):
        attention.weights = {name: X - 1 for name, X in new.items()}
        attention.weights = {name: change(X) for name, X in new.items()}
        assert all(np.array_equal(X, new[name]) for name, X in attention.weights.items())


def test_a_layer_changed_behind_its_back_is_neither_saved_nor_written(backend, tmp_path):
    attention, other, framework = make(backend), make("numpy", seed=1), adapters.of(backend)
    attention.layer = framework.changed(attention.layer)
    held = [X.tobytes() for X in framework.numbers(attention.layer)]
    assert len(held) >= 3
    words = "the layer has been changed and no longer fits its configuration: "
    with refuses(ValueError, words):
        attention.save(tmp_path / "layer.safetensors")
    with refuses(ValueError, words):
        attention.to("numpy")
    with refuses(ValueError, words):
        mha.sync(other, attention)
    assert not list(tmp_path.iterdir())
    assert [X.tobytes() for X in framework.numbers(attention.layer)] == held


# Functions on arrays

NO_ARRAY = f"X is a list, expected an array of {adapters.NAMES};"
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
    "no array": (lambda: mha.check_shape(None, (2,)), TypeError, NO_ARRAY.replace("list", "NoneType")),
    "other shape": (lambda: mha.check_shape(mha.ones((2, 3)), (3, 2)), ValueError, "array has shape (2, 3), expected"),
    "list": (lambda: mha.to_numpy([1.0]), TypeError, NO_ARRAY),
    "list to split": (lambda: mha.transpose_qkv([[[1.0]]], 1), TypeError, NO_ARRAY),
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


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel")
def test_what_is_no_dense_array_is_refused_by_functions(backend, rng):
    others = adapters.of(backend).not_dense(own(backend, draw(rng)[0]))
    for other in (*others, np.ma.masked_array([1.0]), np.random.default_rng(), make(backend).layer, None):
        if str(getattr(other, "device", None)) == "meta":
            continue  # an array, but of nothing: what is done with it is on `meta` too
        with pytest.raises(TypeError, match=r"^X (is a|has dtype) .*, expected "):
            mha.to_numpy(other)
        if not dispatch.load(backend).is_own(other):
            with pytest.raises(TypeError, match=r"^X is a .*, expected "):
                mha.check_shape(other, (2, 5, 13))
