"""Turn the inputs of a call, arrays of one framework or nested lists, into arrays that a backend takes."""

from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.config import DTYPES, numpy_dtype
from mha.core.options.names import BackendName

KNOWN = (*DTYPES, *checks.INTEGERS, "bool")  # dtypes


def of_one_framework(backend: BackendName, dtype: str, queries: Any, keys: Any, values: Any) -> tuple[Any, ...]:
    """Return queries, keys and values as arrays of one framework, and its backend; see `array_and_backend`."""
    queries, given = array_and_backend(backend, dtype, "queries", queries)
    keys, of_keys = array_and_backend(backend, dtype, "keys", keys)
    values, of_values = array_and_backend(backend, dtype, "values", values)
    for name, other in (("keys", of_keys), ("values", of_values)):
        if other != given:
            raise TypeError(
                f"{name} is of {other}, expected {given} as queries; convert with mha.to_numpy or mha.tensor"
            )
    return queries, keys, values, given


def array_and_backend(backend: BackendName, dtype: str, name: str, value: Any) -> tuple[Any, BackendName]:
    """Return an array and its backend, NumPy's or the layer's; lists become NumPy's in the layer's dtype.

    backend, dtype: of the layer; name: the argument's. Raises TypeError or ValueError if it is neither.
    """
    if isinstance(value, (list, tuple)):
        listed = checks.array_of(name, value, dtype)
        if listed.dtype.kind == "b" or _has_dtype(value):
            return listed, "numpy"
        return checks.cast(name, listed, numpy_dtype(dtype)), "numpy"
    given = dispatch.backend_of(value)
    if given is None or given not in (backend, "numpy"):
        raise TypeError(
            f"{name} is a {type(value).__name__}, expected a NumPy array, nested lists or an array of backend "
            f"{backend!r}; convert with mha.to_numpy or mha.tensor"
        )
    return value, given


def to_layer(module: Any, place: Any, X: Any) -> Any:
    """Turn a NumPy array into one that a layer takes: some take NumPy's, which their compiled calls turn faster."""
    if not isinstance(X, np.ndarray):
        return X
    X = checks.plain(X)
    return X if module.is_own(X) else module.tensor(X, place)


def to_numpy(name: str, X: Any) -> np.ndarray:
    """Convert an array of any framework to NumPy's, of the same dtype; name: the argument's.

    Raises TypeError if it is no dense array of numbers or booleans of a known framework, or has no values yet.
    """
    module, dtype = dispatch.module_of(X, name), checks.dtype_name(X.dtype)
    if dtype not in KNOWN and dtype not in ("complex64", "complex128"):
        raise TypeError(f"{name} has dtype {dtype}, expected numbers or booleans")
    if (array := module.value_of(X)) is None:
        raise TypeError(f"{name} is a {type(X).__name__} whose values are not known yet, expected one with values")
    return array


def _has_dtype(value: Any) -> bool:
    """Whether nested lists hold arrays or NumPy's numbers, whose dtype is not to be changed silently."""
    while isinstance(value, (list, tuple)):
        if not value:
            return False
        value = value[0]
    return hasattr(value, "dtype")
