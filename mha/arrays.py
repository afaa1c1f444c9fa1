"""Arrays of any backend: made by one name, taken back by one name, and the book's functions on them."""

from typing import Any

import numpy as np

from mha import checks, dispatch, weights


def tensor(data: Any, dtype: Any = None, *, backend: str | None = None) -> Any:
    """Numbers, nested lists or a NumPy array as an array of a backend.

    Args:
        data: what NumPy can make an array of.
        dtype: a dtype's name; None keeps that of an array, and takes int64, bool or float32 for numbers and lists.
        backend: None = MHA_BACKEND, else "numpy".

    Raises:
        TypeError, ValueError: if data are no numbers or booleans, or the backend is unknown.
    """
    if dtype is None and not isinstance(data, (np.ndarray, np.generic)):
        array = np.asarray(data)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
    else:
        array = np.asarray(data, None if dtype is None else weights.numpy_dtype(checks.dtype_name(dtype)))
    if array.dtype.kind not in "biuf" and checks.dtype_name(array.dtype) != "bfloat16":
        raise TypeError(f"data has dtype {array.dtype}, expected numbers or booleans")
    backend = dispatch.backend_name(backend)
    tab = dispatch.load(backend)
    name = checks.dtype_name(array.dtype)
    if "float" in name:
        checks.choice(f"dtype on backend {backend!r}", name, tab.DTYPES)
    with tab.context(name):
        made = tab.tensor(np.array(checks.plain(array)))
        # JAX, for one, makes int32 of int64 and would wrap what does not fit.
        if array.dtype.kind in "iu" and not np.array_equal(tab.to_numpy(made), array):
            raise ValueError(f"data holds integers beyond {checks.dtype_name(made.dtype)}, the widest of {backend!r}")
        return made


def ones(shape: Any, dtype: Any = "float32", *, backend: str | None = None) -> Any:
    """An array of ones of a backend; None = MHA_BACKEND, else "numpy"."""
    return tensor(np.ones(shape), dtype, backend=backend)


def zeros(shape: Any, dtype: Any = "float32", *, backend: str | None = None) -> Any:
    """An array of zeros of a backend; None = MHA_BACKEND, else "numpy"."""
    return tensor(np.zeros(shape), dtype, backend=backend)


def normal(
    mean: float, std: float, shape: Any, dtype: Any = "float32", *, seed: int = 0, backend: str | None = None
) -> Any:
    """Normal random numbers, the same for a seed on every backend; None = MHA_BACKEND, else "numpy"."""
    return tensor(np.random.default_rng(checks.seed(seed)).normal(mean, std, shape), dtype, backend=backend)


def to_numpy(X: Any) -> np.ndarray:
    """An array of any backend as a NumPy array of the same shape and dtype.

    Raises TypeError if it is of no known framework.
    """
    return dispatch.tab_of(X, "X").to_numpy(X)


def check_shape(X: Any, shape: Any) -> None:
    """Raise ValueError unless an array of any backend has this shape."""
    if checks.shape(X) != tuple(shape):
        raise ValueError(f"array has shape {checks.shape(X)}, expected {tuple(shape)}")


def transpose_qkv(X: Any, num_heads: int) -> Any:
    """Split the heads and move them into the batch, on an array of any backend: (B, T, H*d) -> (B*H, T, d).

    Raises TypeError or ValueError if X has not three axes or its width does not divide into num_heads.
    """
    tab = dispatch.tab_of(X, "X")
    num_heads = checks.size("num_heads", num_heads)
    checks.divides("X", X, 2, "num_heads", num_heads)
    with tab.context(checks.dtype_name(X.dtype)):
        return tab.transpose_qkv(X, num_heads)


def transpose_output(X: Any, num_heads: int) -> Any:
    """Undo `transpose_qkv`, on an array of any backend: (B*H, T, d) -> (B, T, H*d).

    Raises TypeError or ValueError if X has not three axes or its batch does not divide into num_heads.
    """
    tab = dispatch.tab_of(X, "X")
    num_heads = checks.size("num_heads", num_heads)
    checks.divides("X", X, 0, "num_heads", num_heads)
    with tab.context(checks.dtype_name(X.dtype)):
        return tab.transpose_output(X, num_heads)


def masked_softmax(X: Any, valid_lens: Any = None) -> Any:
    """Softmax over the first valid_lens keys, on an array of any backend.

    Args:
        X: scores (B, Q, K).
        valid_lens: None, or integers (B,) or (B, Q); a length of 0 gives a row of zeros, one above K hides nothing.

    Returns:
        Weights of X's shape, dtype and framework; hidden keys weigh exactly 0.

    Raises:
        TypeError, ValueError: if X or valid_lens is not as above; the message says what was expected.
    """
    tab = dispatch.tab_of(X, "X")
    checks.scores(X, valid_lens := None if valid_lens is None else dispatch.concrete(valid_lens, "int64"))
    if isinstance(valid_lens, np.ndarray):
        valid_lens = checks.lengths(valid_lens, X.shape[2])
    with tab.context(checks.dtype_name(X.dtype)):
        return tab.masked_softmax(X, tab.tensor(valid_lens) if isinstance(valid_lens, np.ndarray) else valid_lens)
