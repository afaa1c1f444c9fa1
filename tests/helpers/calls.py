"""The layer that most tests call, the inputs that they call it with, and how they compare what comes back.

Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens.
"""

import adapters
import numpy as np
import pytest
from layers import agrees

import mha
from mha import parity
from mha.core import dispatch
from mha.core.options.config import numpy_dtype

# All sizes differ, those of a query head and of a value head too, so that a swapped axis fails.
B, Q, K, H, D = 2, 5, 7, 3, 11
WIDTHS = {"query_size": 13, "key_size": 17, "value_size": 19, "key_dim": 4, "value_dim": 6}
SHAPES = {"queries": (B, Q, 13), "keys": (B, K, 17), "values": (B, K, 19)}

HAS_BOOK = pytest.mark.needs("a section of the book")


def make(backend, **options):
    """A layer of these sizes, the same in every call; options come before them."""
    options = {"num_hiddens": D, "num_heads": H, "seed": 0, **WIDTHS, **options}
    return mha.MultiHeadAttention(**options, backend=backend)


def draw(rng, dtype="float32"):
    """Its queries (B, Q, 13), keys (B, K, 17) and values (B, K, 19)."""
    return [rng.normal(size=shape).astype(numpy_dtype(dtype)) for shape in SHAPES.values()]


def draw_by_name(rng, dtype="float32"):
    """The same in a dict, by the names of the arguments."""
    return dict(zip(SHAPES, draw(rng, dtype), strict=True))


def own(backend, value):
    """A NumPy array as the framework's own, made without any help from `mha`, which would refuse some of them.

    Where the framework lacks its dtype, and anything that is no NumPy array: as it is.
    """
    if type(value) is not np.ndarray:
        return value
    try:
        with dispatch.load(backend).context("float64"):
            made = adapters.of(backend).convert(value)
    except Exception:  # each framework has errors of its own for dtypes that it lacks
        return value
    return made if mha.core.options.checks.dtype_name(made.dtype) == value.dtype.name else value


def same(found, expected):
    """Whether two dicts of arrays have the same names and the same numbers, where NaN is NaN."""
    return found.keys() == expected.keys() and all(parity.error(found[name], expected[name]) == 0 for name in expected)


def same_bits(found, expected):
    """Whether two dicts of arrays have the same names, dtypes, shapes and bits."""
    return bits(found) == bits(expected)


def agree(found, expected):
    """Whether two dicts of arrays have the same names, and the same float64 numbers up to rounding."""
    return found.keys() == expected.keys() and all(agrees(found[name], expected[name]) for name in expected)


def bits(result):
    """Whatever a call returns, to be compared bit for bit."""
    if isinstance(result, dict):
        return {name: bits(array) for name, array in result.items()}
    if isinstance(result, tuple):
        return tuple(map(bits, result))
    result = mha.to_numpy(result)
    return result.dtype.name, result.shape, result.tobytes()
