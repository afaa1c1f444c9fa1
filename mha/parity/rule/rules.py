"""The rule of "the same": how far a result may be from float64 NumPy.

In float64 every backend must agree with NumPy up to rounding: that shows errors of logic. In a lower precision a
backend may err as far as plain NumPy of that precision does, times a small factor: that shows errors of precision.
In half precision, where the largest error may be large, the mean square of each row of an output counts, too.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mha.core.options.config import numpy_dtype
from mha.core.options.names import FloatName
from mha.parity.rule.layouts import INPUTS, OF_INPUTS

if TYPE_CHECKING:  # the rule alone needs no layer
    from mha.layer import MultiHeadAttention

# Unit roundoff: half the distance from 1 to the next number.
UNIT: dict[FloatName, float] = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

# In half precision a row of an output may be 8 times as far as plain NumPy's, from 64 features on.
ROW, FEATURES = 8.0, 64


# In half precision the root mean square of a gradient may be so many times that of simulated rounding, and more for few
# numbers: right ports are within 2 times of it, but one in 10,000.
MEAN, FEW = 2.5, 4.0


def error(result: np.ndarray, oracle: np.ndarray) -> float:
    """Return the largest absolute difference; infinite if one alone is NaN or infinite, or if the shapes differ."""
    if result.shape != oracle.shape:
        return np.inf
    result, oracle = result.astype(np.float64), oracle.astype(np.float64)
    same = (result == oracle) | (np.isnan(result) & np.isnan(oracle))
    if not np.isfinite(result[~same]).all() or not np.isfinite(oracle[~same]).all():
        return np.inf
    return float(np.abs(result[~same] - oracle[~same]).max(initial=0.0))


def outside(theirs: np.ndarray, expected: np.ndarray, limit: float) -> np.ndarray:
    """Return which numbers exceed the bound; NaN equals NaN, and infinity itself."""
    with np.errstate(invalid="ignore"):
        near = np.abs(theirs - expected) <= limit
    return ~(near | (theirs == expected) | (np.isnan(theirs) & np.isnan(expected)))


def largest(oracle: np.ndarray) -> float:
    """Return the largest finite magnitude."""
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


def row_bounds(dtype: FloatName, oracle: np.ndarray, base: np.ndarray) -> np.ndarray | None:
    """Return how far each row (..., features) of an output may be, as a root mean square; None in float32 and float64.

    A mistake that moves few rows, or all a little, is within the largest error that half precision allows. A row's mean
    over the features is not: right ones are within 5 times that of plain NumPy from 64 features on. The mean of fewer
    varies more, as the inverse of the root of their number. A row that NumPy happens to hit counts as its median row.
    """
    if UNIT[dtype] < UNIT["float16"]:
        return None
    plain = of_rows(base, oracle)
    median = np.median(plain[plain > 0]) if plain.any() else 0.0
    return ROW * max(1.0, (FEATURES / oracle.shape[-1]) ** 0.5) * np.maximum(plain, median)


def mean_bound(dtype: FloatName, oracle: np.ndarray, others: Sequence[np.ndarray], floor: float = 0.0) -> float:
    """Return how far all numbers of a gradient in half precision may be from the oracle, as a root mean square.

    others: the gradient as right code computes it, with the rounding of several; floor: a magnitude below which nothing
    of a number is left but rounding.
    """
    far = max(mean_error(X, oracle) for X in others)
    least = UNIT[dtype] * max(0.3 * mean_error(oracle, np.zeros_like(oracle)), floor)  # what rounding it once explains
    least = max(least, float(np.finfo(np.float16).smallest_subnormal) / 2 if dtype == "float16" else 0.0)
    return MEAN * (1 + FEW / max(oracle.size, 1) ** 0.5) * max(far, least)


def nearest(result: np.ndarray, means: Sequence[tuple[np.ndarray, float]]) -> tuple[float, float]:
    """Return the root mean square of the errors, and its bound, by the right array that a result is nearest to."""
    found = [(mean_error(result, X), limit) for X, limit in means]
    return min(found, key=lambda one: fraction(*one))


def mean_error(result: np.ndarray, oracle: np.ndarray) -> float:
    """Return the root mean square of all differences, without those of NaN and infinity."""
    return float(np.sqrt((of_rows(result.reshape(1, -1), oracle.reshape(1, -1)) ** 2).mean())) if oracle.size else 0.0


def of_rows(result: np.ndarray, oracle: np.ndarray) -> np.ndarray:
    """Return the root mean square of the differences in each row (..., features), without those of NaN and infinity."""
    with np.errstate(invalid="ignore", over="ignore"):
        far = np.nan_to_num(result.astype(np.float64) - oracle, nan=0, posinf=0, neginf=0)
        return np.sqrt((far * far).mean(-1))


def worst_row(result: np.ndarray, oracle: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    """Find the row that comes nearest to its bound, or exceeds it most; return its root mean square and its bound."""
    found = of_rows(result, oracle)
    if not found.size:
        return 0.0, 0.0
    shares = np.divide(found, rows, out=np.where(found > 0, np.inf, 0.0), where=rows > 0)
    at = np.unravel_index(shares.argmax(), shares.shape)
    return float(found[at]), float(rows[at])


def ratio_of(result: np.ndarray, oracle: np.ndarray, limit: float, rows: np.ndarray | None) -> float:
    """Divide an error by its bound, and each row's by its own; return the largest, at most 1 if they are the same."""
    far = fraction(error(result, oracle), limit)
    return far if rows is None or not far < math.inf else max(far, fraction(*worst_row(result, oracle, rows)))


def in_dtype(attention: "MultiHeadAttention", dtype: FloatName) -> "MultiHeadAttention":
    """Return the layer on the same backend with its weights cast to another dtype."""
    from mha.layer import restore

    arrays = {name: X.astype(numpy_dtype(dtype), copy=False) for name, X in attention.weights.items()}
    config = dataclasses.replace(attention.config, dtype=dtype)
    return restore(config, arrays, attention.backend, attention.seed)


def gradient_scale(name: str, gradients: dict[str, np.ndarray]) -> float:
    """Return the magnitude to measure a gradient's rounding by, besides its own: 0 for most gradients.

    Attention weights stay the same if all scores of a query shift alike. What shifts them so has a gradient of nothing
    but rounding: the bias of the keys with dot-product pooling, and a bias of scores with one number for all keys. It
    is so beside sinks, too, where large scores leave them no share. A sum of gradients, that by the one input of all
    three, has that of its largest part.
    """
    from mha.core.call import OF_PAIRS

    if name == INPUTS:
        return max(largest(gradients[one]) for one in OF_INPUTS)
    shifts = name == "W_k.bias" or (name in OF_PAIRS and gradients[name].shape[-1] == 1)
    return max(map(largest, gradients.values())) if shifts else 0.0


def fraction(error: float, bound: float) -> float:
    """Divide an error by its bound: 0 without an error, infinite if none is allowed or the bound is not finite."""
    if not bound < math.inf:  # NaN is not
        return math.inf
    if error == 0 or error == math.inf:
        return error
    return error / bound if bound else math.inf
