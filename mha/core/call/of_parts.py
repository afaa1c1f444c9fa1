"""Check the arguments of parts of a layer that are called alone: poolings, a masked softmax, the transposes.

Only shapes and dtypes count, and the values of lengths where they are known; `arrays` as in `fitting`.
"""

from types import SimpleNamespace
from typing import Any

from mha.core.call.check import limit_lengths, numpy_if_known, to_backend
from mha.core.call.declaration import Call
from mha.core.call.fitting import check_dense, fit_call, fit_inputs
from mha.core.dispatch import FRAMEWORKS, backend_of
from mha.core.options.checks import FLOATS, dtype_name, shape


def pooling_lengths(arrays: Any, pooling: Any, queries: Any, keys: Any, values: Any, valid_lens: Any) -> Any:
    """Check a call of an attention pooling, and return its lengths as the backend's own; None stays None.

    The pooling says query_size and key_size (None = any), weights_dtype (None = it has no weights) and same_width,
    whether queries and keys must have one width. Raises TypeError or ValueError if an argument does not fit.
    """
    place, valid_lens = arrays.place(pooling, queries), numpy_if_known("valid_lens", valid_lens)
    for name, value in {"queries": queries, "keys": keys, "values": values}.items():
        check_dense(arrays, place, name, value, "of shape (batch, rows, width)")
        if len(value.shape) != 3:
            raise ValueError(f"{name} has shape {shape(value)}, expected (batch, rows, width)")
        _check_floats(name, value)
        expected = dtype_name(queries.dtype if pooling.weights_dtype is None else pooling.weights_dtype)
        if dtype_name(value.dtype) != expected:
            other = "queries" if pooling.weights_dtype is None else "the weights"
            raise TypeError(f"{name} has dtype {dtype_name(value.dtype)}, expected {expected} as {other}; convert one")
    query_size = queries.shape[2] if pooling.query_size is None else pooling.query_size
    any_key_size = query_size if pooling.same_width else keys.shape[2]
    key_size = any_key_size if pooling.key_size is None else pooling.key_size
    dtype = dtype_name(queries.dtype)
    widths = SimpleNamespace(query_size=query_size, key_size=key_size, value_size=values.shape[2], dtype=dtype)
    fit_inputs(arrays, widths, place, queries, keys, values)
    return _check_lengths(arrays, place, dtype, (*queries.shape[:2], keys.shape[1]), valid_lens)


def softmax_lengths(arrays: Any, X: Any, valid_lens: Any) -> Any:
    """Check scores X (B, Q, K), and return their lengths as the backend's own; None stays None."""
    place, valid_lens = arrays.place(None, X), numpy_if_known("valid_lens", valid_lens)
    check_dense(arrays, None, "X", X, "of shape (batch, queries, keys)")
    if len(X.shape) != 3:
        raise ValueError(f"X has shape {shape(X)}, expected (batch, queries, keys)")
    _check_floats("X", X)
    return _check_lengths(arrays, place, dtype_name(X.dtype), tuple(X.shape), valid_lens)


def check_divides(arrays: Any, name: str, X: Any, axis: int, by: str, parts: int) -> None:
    """Check that an array has three axes, and that the size of this axis is a multiple of `parts`."""
    check_dense(arrays, None, name, X, "of 3 axes")
    if len(X.shape) != 3:
        raise ValueError(f"{name} has shape {shape(X)}, expected 3 axes")
    length = X.shape[axis]
    if length is not None and length % parts:
        raise ValueError(f"{name} has shape {shape(X)}, expected axis {axis} to be a multiple of {by} = {parts}")


def _check_lengths(arrays: Any, place: Any, dtype: str, sizes: Any, valid_lens: Any) -> Any:
    fit_call(arrays, SimpleNamespace(dtype=dtype, num_heads=1), place, sizes, Call(valid_lens))
    return to_backend(arrays, place, limit_lengths(valid_lens, sizes[2])[0])


def _check_floats(name: str, value: Any) -> None:
    backend = backend_of(value)
    dtypes = FLOATS if backend is None else FRAMEWORKS[backend].dtypes
    if dtype_name(value.dtype) not in dtypes:
        raise TypeError(f"{name} has dtype {dtype_name(value.dtype)}, expected floats: {', '.join(dtypes)}")
