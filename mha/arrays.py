"""Functions on arrays of any backend: make them, convert them to NumPy, and the book's functions."""

from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.call import inputs, numpy_if_known
from mha.core.call.inputs import KNOWN
from mha.core.call.of_parts import check_divides, softmax_lengths
from mha.core.options import checks
from mha.core.options.config import numpy_dtype
from mha.core.options.names import ArrayDtype, BackendName


def tensor(data: Any, dtype: ArrayDtype | None = None, *, backend: BackendName | None = None) -> Any:
    """Make an array of a backend from numbers, nested lists or another array.

    Args:
        data: a number or a boolean, nested lists of them, or an array of any backend.
        dtype: a dtype's name; None = that of the array, or int64, bool or float32 for numbers and lists.
        backend: None = MHA_BACKEND, else "numpy".

    Raises:
        TypeError, ValueError: if data holds anything but numbers and booleans, if the dtype cannot hold them, or if the
            dtype or the backend is unknown.
    """
    if dispatch.backend_of(data) is None:  # numbers and lists
        array = checks.array_of("data", data)
        default = "float32" if array.dtype.kind == "f" or not array.size else array.dtype.name
    else:
        array = numpy_if_known("data", np.asarray(data) if isinstance(data, np.generic) else data)
        if not checks.is_numpy(array):
            raise TypeError(f"data is a {type(data).__name__}, expected numbers, nested lists or a dense array")
        default = checks.dtype_name(array.dtype)
    if default not in KNOWN:
        raise TypeError(f"data has dtype {default}, expected numbers or booleans")
    name = default if dtype is None else checks.choice("dtype", checks.dtype_name(dtype), KNOWN)
    array = checks.cast("data", checks.plain(array), numpy_dtype(name))
    backend = dispatch.backend_name(backend)
    module = dispatch.load(backend)
    if "float" in name:
        checks.choice(f"dtype on backend {backend!r}", name, module.DTYPES)
    with module.context(name):
        try:
            made = module.tensor(np.array(array))
        except KeyError as error:  # from MXNet, which has four of the eight integer dtypes
            raise ValueError(f"dtype is {name}, which the backend {backend!r} lacks; choose another") from error
        # JAX, for example, turns int64 into int32, and changes numbers that do not fit.
        if array.dtype.kind in "iu" and not np.array_equal(module.to_numpy(made), array):
            raise ValueError(f"data holds integers beyond {checks.dtype_name(made.dtype)}, the widest of {backend!r}")
        return made


def ones(shape: Any, dtype: ArrayDtype = "float32", *, backend: BackendName | None = None) -> Any:
    """Make an array of ones of a backend; None = MHA_BACKEND, else "numpy"."""
    return tensor(np.ones(checks.sizes("shape", shape)), dtype, backend=backend)


def zeros(shape: Any, dtype: ArrayDtype = "float32", *, backend: BackendName | None = None) -> Any:
    """Make an array of zeros of a backend; None = MHA_BACKEND, else "numpy"."""
    return tensor(np.zeros(checks.sizes("shape", shape)), dtype, backend=backend)


def normal(
    mean: float,
    std: float,
    shape: Any,
    dtype: ArrayDtype = "float32",
    *,
    seed: int = 0,
    backend: BackendName | None = None,
) -> Any:
    """Draw normal random numbers, the same for a seed on every backend; None = MHA_BACKEND, else "numpy"."""
    mean, std, shape = checks.number("mean", mean), checks.number("std", std, 0), checks.sizes("shape", shape)
    return tensor(np.random.default_rng(checks.seed(seed)).normal(mean, std, shape), dtype, backend=backend)


def to_numpy(X: Any) -> np.ndarray:
    """Convert an array of any backend to a NumPy array of the same shape and dtype.

    Raises TypeError if X is no array of a known framework.
    """
    return inputs.to_numpy("X", X)


def check_shape(X: Any, shape: Any) -> None:
    """Raise ValueError unless X has this shape, and TypeError if X is no array of any backend."""
    dispatch.module_of(X, "X")
    shape = checks.sizes("shape", shape)
    if checks.shape(X) != shape:
        raise ValueError(f"array has shape {checks.shape(X)}, expected {shape}")


def transpose_qkv(X: Any, num_heads: int) -> Any:
    """Split the heads and move them into the batch, on an array of any backend: (B, T, H*d) -> (B*H, T, d).

    Raises TypeError or ValueError unless X has three axes and its width is a multiple of num_heads.
    """
    module = dispatch.module_of(X, "X")
    num_heads = checks.size("num_heads", num_heads)
    check_divides(module, "X", X, 2, "num_heads", num_heads)
    with module.context(checks.dtype_name(X.dtype)):
        return module.transpose_qkv(X, num_heads)


def transpose_output(X: Any, num_heads: int) -> Any:
    """Undo `transpose_qkv`, on an array of any backend: (B*H, T, d) -> (B, T, H*d).

    Raises TypeError or ValueError unless X has three axes and its batch is a multiple of num_heads.
    """
    module = dispatch.module_of(X, "X")
    num_heads = checks.size("num_heads", num_heads)
    check_divides(module, "X", X, 0, "num_heads", num_heads)
    with module.context(checks.dtype_name(X.dtype)):
        return module.transpose_output(X, num_heads)


def masked_softmax(X: Any, valid_lens: Any = None) -> Any:
    """Take the softmax over the first valid_lens keys, on an array of any backend.

    Args:
        X: scores (B, Q, K).
        valid_lens: None, or integers (B,) or (B, Q); a length of 0 gives a row of zeros, a length above K hides
            nothing. (The book's function writes -1e6 over hidden scores, so that a length of 0 gives equal weights.)

    Returns:
        Weights of X's shape, dtype and framework; the weight of a hidden key is exactly 0.

    Raises:
        TypeError, ValueError: if X or valid_lens is not as above; the message says what was expected.
    """
    module = dispatch.module_of(X, "X")
    valid_lens = softmax_lengths(module, X, valid_lens)
    with module.context(checks.dtype_name(X.dtype)):
        return module.masked_softmax(X, valid_lens)
