"""The paths by which arrays reach a layer: `mha`, its gradients and trace, the framework's layer, and the book's."""

import functools
import importlib
import re

import adapters
import numpy as np
import pytest
from calls import HAS_BOOK, SHAPES, make, own

import mha
from mha.core import dispatch
from mha.core.call import ARGUMENTS


def through_own_arrays(backend, attention, queries, keys, values, *rest, **options):
    arrays = queries, keys, values, *rest
    given = [own(backend, X) for X in arrays]
    if any(isinstance(X, np.ndarray) for X in given):  # of two kinds is another matter
        given = arrays
    return attention(*given, **{name: own(backend, value) for name, value in options.items()})


def through_layer(backend, layer, *arrays, **call):
    given = dict(zip(("queries", "keys", "values", *ARGUMENTS), arrays, strict=False)) | call
    every = dict.fromkeys(("queries", "keys", "values")) | ARGUMENTS | given
    result = layer(*(own(backend, X) for X in every.values()))  # by position
    return result[0] if isinstance(result, tuple) else result


@functools.cache
def book_layer(backend):
    """A layer by the book's name, with weights."""
    with dispatch.load(backend).context("float32"):
        d2l = importlib.import_module(f"mha.d2l.{backend}")
        inputs = adapters.of(backend).own(*(np.ones(shape, "float32") for shape in SHAPES.values()))
        return adapters.of(backend).start(d2l.MultiHeadAttention(17, 13, 19, 12, 3, 0.0), *inputs)


# Each gives a function that takes NumPy arrays, or whatever a test puts in their place.
PATHS = {
    "mha": lambda backend: make(backend),
    "mha-own-arrays": lambda backend: functools.partial(through_own_arrays, backend, make(backend)),
    "gradients": lambda backend: make(backend).gradients,
    "trace": lambda backend: make(backend).trace,
    "layer": lambda backend: functools.partial(through_layer, backend, make(backend).layer),
    "d2l": lambda backend: functools.partial(through_layer, backend, book_layer(backend)),
}


def on(*names):
    """A test of these paths; that of the book, where the backend has one."""
    return pytest.mark.parametrize(
        "path", [pytest.param(name, marks=HAS_BOOK if name == "d2l" else ()) for name in names]
    )


def taken(result):
    """The output, or of gradients and steps one that depends on all that came before, as a NumPy array."""
    if isinstance(result, dict):
        result = result["output" if "output" in result else "W_v.kernel"]
    return mha.to_numpy(result)


def refuses(error, words):
    """An error of exactly this class whose text begins so; * stands for anything."""
    return pytest.RaisesExc(error, match=f"^{re.escape(words).replace(re.escape('*'), '.*')}", check=is_exact(error))


def is_exact(error):
    return lambda raised: type(raised) is error
