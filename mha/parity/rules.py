"""When two results are the same: how far a result may be from float64 NumPy, and whether it is within that.

In float64 every backend must agree with NumPy up to rounding: that shows errors of logic. In a lower precision a
backend may err as far as plain NumPy of that precision does, times a small factor: that shows errors of precision.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from mha import arrays, dispatch
from mha.config import numpy_dtype
from mha.layer import MultiHeadAttention, restore
from mha.names import FloatName

# Unit roundoff: half the distance from 1 to the next number.
UNIT: dict[FloatName, float] = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def error(result: np.ndarray, oracle: np.ndarray) -> float:
    """Largest absolute difference, infinite where only one of the two is NaN or infinite, or the shapes differ."""
    if result.shape != oracle.shape:
        return np.inf
    result, oracle = result.astype(np.float64), oracle.astype(np.float64)
    same = (result == oracle) | (np.isnan(result) & np.isnan(oracle))
    if not np.isfinite(result[~same]).all() or not np.isfinite(oracle[~same]).all():
        return np.inf
    return float(np.abs(result[~same] - oracle[~same]).max(initial=0.0))


def largest(oracle: np.ndarray) -> float:
    """Largest finite magnitude."""
    return float(np.abs(oracle[np.isfinite(oracle)]).max(initial=0.0))


def bound(
    dtype: FloatName, oracle: np.ndarray, base: np.ndarray, *, gradient: bool = False, scale: float = 0.0
) -> float:
    """How far a result in this dtype may be from the float64 oracle.

    Args:
        dtype: of the result.
        oracle: the float64 result of the NumPy backend.
        base: the result of the NumPy backend in `dtype`.
        gradient: whether it is a gradient, which accumulates more rounding.
        scale: a magnitude to measure rounding against where the oracle itself is nothing but rounding.
    """
    size = max(largest(oracle), scale)
    if dtype == "float64":
        return (1e-10 if gradient else 1e-12) * size
    return (16 if gradient else 8) * error(base, oracle) + 16 * UNIT[dtype] * size


def ratio(
    attention: MultiHeadAttention,
    output: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: Any = None,
    *,
    mask: Any = None,
    score_bias: Any = None,
    causal: bool = False,
    offset: Any = 0,
    head_gates: Any = None,
) -> float:
    """How far another implementation's output is from a layer's, as a part of what rounding explains: the same if <= 1.

    Args:
        attention: the layer, on any backend, whose weights the other implementation should have.
        output: what that gave, without dropout, (B, Q, D) in the layer's dtype.
        queries, keys, values, valid_lens, mask, score_bias, causal, offset, head_gates: what it was called with, as for
            the layer.

    Returns:
        The largest difference from float64 NumPy, divided by how large it may be; infinite if the shapes differ, or if
        one has NaN or infinity where the other has not.

    Raises TypeError and ValueError as a call of the layer does, TypeError if output has another dtype, and ValueError
    if NumPy itself overflows in that dtype, so that nothing can be told.
    """
    if not isinstance(attention, MultiHeadAttention):
        raise TypeError(f"attention is a {type(attention).__name__}, expected an mha.MultiHeadAttention")
    dtype = attention.config.dtype
    dispatch.module_of(output, "output")  # or it is no array
    found = arrays.to_numpy(output)
    if found.dtype != numpy_dtype(dtype):
        raise TypeError(f"output has dtype {found.dtype}, expected {dtype} as the layer")
    given = (queries, keys, values, valid_lens, mask, score_bias, offset, head_gates)
    *inputs, lengths, mask, bias, offset, gates = (arrays.to_numpy(X) if hasattr(X, "dtype") else X for X in given)
    hides: dict[str, Any] = {"mask": mask, "causal": causal, "offset": offset}
    layer: Any = attention.to("numpy")
    base = layer(*inputs, lengths, **hides, score_bias=bias, head_gates=gates)  # raises what is wrong
    *inputs, bias, gates = (None if X is None else np.asarray(X, np.float64) for X in (*inputs, bias, gates))
    wide: Any = in_dtype(layer, "float64")
    oracle = wide(*inputs, lengths, **hides, score_bias=bias, head_gates=gates)
    limit = bound(dtype, oracle, base)
    if limit == math.inf:
        raise ValueError(f"the layer overflows {dtype} with these numbers: nothing can be told; choose smaller ones")
    return fraction(error(found, oracle), limit)


def in_dtype(attention: MultiHeadAttention, dtype: FloatName) -> MultiHeadAttention:
    """The same layer on the same backend, its weights cast to another dtype."""
    arrays = {name: X.astype(numpy_dtype(dtype)) for name, X in attention.weights.items()}
    config = dataclasses.replace(attention.config, dtype=dtype)
    return restore(config, arrays, attention.backend, attention.seed)


def gradient_scale(name: str, gradients: dict[str, np.ndarray]) -> float:
    """What a gradient's rounding is measured against besides itself: 0, but for what shifts a query's scores alike.

    Weights do not depend on that, so its gradient is 0 but for rounding: that of the bias of the keys with dot-product
    pooling, and of a bias of scores that has one number for all keys.
    """
    shifts = name == "W_k.bias" or (name == "score_bias" and gradients[name].shape[-1] == 1)
    return max(map(largest, gradients.values())) if shifts else 0.0


def fraction(error: float, bound: float) -> float:
    """Error by bound: 0 without an error, infinite where none is allowed or where the bound is not finite."""
    if not bound < math.inf:  # NaN is not
        return math.inf
    if error == 0 or error == math.inf:
        return error
    return error / bound if bound else math.inf
