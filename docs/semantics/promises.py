"""Promises of `mha` without a counterpart to compare with; the docstring of each function is on the page."""

import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mha
from mha import parity
from semantics.calls import LENGTHS, MASK, PLAIN, SHORT, B, D


def unchanged(attention: mha.MultiHeadAttention) -> bool:
    """No argument is changed."""
    given = [X.copy() for X in (SHORT.queries, SHORT.keys, SHORT.values, LENGTHS, MASK)]
    before = [X.copy() for X in given]
    attention(*given[:4], mask=given[4])
    attention.gradients(*given[:4], mask=given[4])
    return all(map(np.array_equal, given, before))


def memory_orders(attention: mha.MultiHeadAttention) -> bool:
    """Arrays of any memory order are the same arrays."""
    inputs = SHORT.queries, SHORT.keys, SHORT.values
    ways = (np.asfortranarray, lambda X: np.ascontiguousarray(X[::-1])[::-1], lambda X: np.repeat(X, 2, 1)[:, ::2])
    return all(np.array_equal(attention(*map(way, inputs), LENGTHS), attention(*inputs, LENGTHS)) for way in ways)


def same_bits(attention: mha.MultiHeadAttention) -> bool:
    """The same call gives the same bits; with weights returned too, the same output up to rounding."""
    arguments = SHORT.queries, SHORT.keys, SHORT.values, LENGTHS
    first, with_weights = attention(*arguments), attention(*arguments, return_weights=True)[0]
    same = np.array_equal(first, attention(*arguments))
    return same and max(parity.ratio(attention, X, *arguments) for X in (first, with_weights)) <= 1


def same_weights(attention: mha.MultiHeadAttention) -> bool:
    """The same seed draws the same weights as on NumPy, bit for bit."""
    return equal(attention.weights, mha.MultiHeadAttention(**PLAIN.options, seed=0, backend="numpy").weights)


def many_keys(attention: mha.MultiHeadAttention) -> bool:
    """Lengths of every integer dtype mean the same, even with more keys than uint8 can count."""
    X, Y = np.ones((B, 1, D), "float32"), np.ones((B, 300, D), "float32")
    for dtype in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        _, weights = attention(X, Y, Y, np.array([2, 127], dtype), return_weights=True)  # (B, H, 1, 300)
        if ((weights > 0).sum(-1) != np.array([2, 127])[:, None, None]).any():
            return False
    return True


def saved(attention: mha.MultiHeadAttention) -> bool:
    """A layer that is saved and loaded is the same, bit for bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.safetensors"
        attention.save(path)
        return equal(mha.load(path, attention.backend).weights, attention.weights)


def no_other_files(attention: mha.MultiHeadAttention) -> bool:
    """A file that is empty, cut short, too long, or a renamed pickle raises ValueError; nothing is ever unpickled."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.safetensors"
        attention.save(path)
        data = path.read_bytes()
        for bad in (b"", data[:-1], data[: len(data) // 2], data + b"0", pickle.dumps({"W_q.kernel": 1})):
            path.write_bytes(bad)
            if not raises(ValueError, lambda: mha.load(path, attention.backend)):
                return False
    return True


def no_other_weights(attention: mha.MultiHeadAttention) -> bool:
    """Weights with a missing or additional name, or with another shape or dtype, raise; the layer is not changed."""
    before = attention.weights
    ones = {name: np.ones_like(X) for name, X in before.items()}
    wrong = (
        {name: X for name, X in ones.items() if name != "W_o.bias"},
        ones | {"W_o.scale": ones["W_o.bias"]},
        ones | {"W_o.bias": ones["W_o.bias"][1:]},
        ones | {"W_o.bias": ones["W_o.bias"].astype("float64")},
    )
    refused = all(
        raises((TypeError, ValueError), lambda arrays=arrays: setattr(attention, "weights", arrays)) for arrays in wrong
    )
    return refused and equal(attention.weights, before)


def no_other_layers(attention: mha.MultiHeadAttention) -> bool:
    """`sync` from a layer with another number of heads, bias or pooling raises ValueError, and changes nothing."""
    before = attention.weights
    for options in ({"num_heads": 11}, {"bias": False}, {"pooling": "additive"}):
        other = mha.MultiHeadAttention(**(PLAIN.options | options), seed=1, backend=attention.backend)
        if not raises(ValueError, lambda other=other: mha.sync(other, attention)):
            return False
    return equal(attention.weights, before)


def known_names(attention: mha.MultiHeadAttention) -> bool:
    """An unknown backend raises ValueError, which lists the known ones."""
    return raises(ValueError, lambda: attention.to("keras"))


PROMISES = (
    unchanged, memory_orders, same_bits, same_weights, many_keys,
    saved, no_other_files, no_other_weights, no_other_layers, known_names,
)  # fmt: skip


def equal(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    """True if two sets of weights are the same, bit for bit."""
    return left.keys() == right.keys() and all(np.array_equal(X, right[name]) for name, X in left.items())


def raises(error: Any, function: Callable[[], Any]) -> bool:
    """True if a function raises exactly this class of error, or one of these."""
    try:
        function()
    except Exception as problem:
        return type(problem) in (error if isinstance(error, tuple) else (error,))
    return False


def keeps(promise: Callable[[mha.MultiHeadAttention], bool], backend: str) -> bool:
    """True if a backend keeps a promise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return promise(mha.MultiHeadAttention(**PLAIN.options, seed=0, backend=backend))
