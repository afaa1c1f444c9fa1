"""The rule of "the same": how far a result may be from float64 NumPy.

In float64 every backend must agree with NumPy up to rounding: that shows errors of logic. In a lower precision a
backend may err as far as plain NumPy of that precision does, times a small factor: that shows errors of precision.
"""

import dataclasses
import math

import numpy as np

from mha.call import OF_PAIRS
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
    """Return how far a result in this dtype may be from the float64 oracle.

    Args:
        dtype: of the result.
        oracle: the float64 result of the NumPy backend.
        base: the result of the NumPy backend in `dtype`.
        gradient: whether it is a gradient, which accumulates more rounding.
        scale: a magnitude to measure rounding by, where the oracle itself is nothing but rounding.
    """
    size = max(largest(oracle), scale)
    if dtype == "float64":
        return (1e-10 if gradient else 1e-12) * size
    return (16 if gradient else 8) * error(base, oracle) + 16 * UNIT[dtype] * size


def in_dtype(attention: MultiHeadAttention, dtype: FloatName) -> MultiHeadAttention:
    """The same layer on the same backend, its weights cast to another dtype."""
    arrays = {name: X.astype(numpy_dtype(dtype)) for name, X in attention.weights.items()}
    config = dataclasses.replace(attention.config, dtype=dtype)
    return restore(config, arrays, attention.backend, attention.seed)


def gradient_scale(name: str, gradients: dict[str, np.ndarray]) -> float:
    """Return the magnitude to measure a gradient's rounding by, besides its own: 0 for most gradients.

    Attention weights stay the same if all scores of a query shift alike. What shifts them so has a gradient of nothing
    but rounding: the bias of the keys with dot-product pooling, and a bias of scores with one number for all keys.
    """
    shifts = name == "W_k.bias" or (name in OF_PAIRS and gradients[name].shape[-1] == 1)
    return max(map(largest, gradients.values())) if shifts else 0.0


def fraction(error: float, bound: float) -> float:
    """Divide an error by its bound: 0 without an error, infinite if none is allowed or the bound is not finite."""
    if not bound < math.inf:  # NaN is not
        return math.inf
    if error == 0 or error == math.inf:
        return error
    return error / bound if bound else math.inf
