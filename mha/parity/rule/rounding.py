"""Rounding as half precision does it, in wider arrays: of numbers, sums, products and a softmax; angles in float32.

Letters as in the lessons.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from mha.core.options.config import numpy_dtype
from mha.core.options.positions import Rotary
from mha.layer import MultiHeadAttention, restore

Array = np.ndarray
Into = Callable[[Array], Array]
SUMMED = 320  # products in a block, on most processors
IN_BITS = 2048  # numbers from which on it is faster to round in their bits


def as_it_is(X: Any) -> Any:
    """Return X unchanged."""
    return X


def through(dtype: Any) -> Into:
    """Make a function that rounds to a dtype, and keeps the array's own."""
    kind = numpy_dtype(dtype)

    def into(X: Array) -> Array:
        """Round to nearest, ties to even."""
        return to_float16(X) if kind == np.float16 and X.dtype == np.float32 else X.astype(kind).astype(X.dtype)

    return into


def to_float16(X: Array) -> Array:
    """Round float32 likewise; many numbers in their bits, which is faster than by way of the dtype."""
    if X.size > IN_BITS and (sizes := np.abs(X)).max() < 65520:  # which no NaN is
        return to_float16_in_bits(X, sizes)
    with np.errstate(over="ignore"):
        return X.astype(np.float16).astype(np.float32)


def to_float16_in_bits(X: Array, sizes: Array) -> Array:
    """Round float32 of these sizes; below the normal numbers by a sum whose last bit is that of the smallest."""
    bits = np.ascontiguousarray(X).view(np.uint32)
    rounded = (bits >> 13) & 1
    rounded += 2**12 - 1
    rounded += bits
    rounded &= 2**32 - 2**13
    small, half = sizes < 2**-14, np.float32(0.5)
    found = rounded.view(np.float32)
    return np.where(small, np.copysign(sizes + half - half, X), found) if small.any() else found


def by_chance(dtype: Any, random: np.random.Generator) -> Into:
    """Make a function that rounds float32 to one of the two nearest numbers of a half precision, by chance."""
    dropped = {"bfloat16": 16, "float16": 13}[numpy_dtype(dtype).name]

    def into(X: Array) -> Array:
        bits = np.ascontiguousarray(X).view(np.uint32)
        drawn = bits + random.integers(0, 2**dropped, X.shape, np.uint32)
        return np.where(np.isfinite(X), (drawn & (2**32 - 2**dropped)).view(np.float32), X)

    return into


def cut_off(X: Array, dropped: int = 16, half: int = 0) -> Array:
    """Cut float32 numbers off before so many bits, those of bfloat16; half: added to the bits first, to round."""
    bits = np.ascontiguousarray(X, np.float32).view(np.uint32) + np.uint32(half)
    return (bits & np.uint32(2**32 - 2**dropped)).view(np.float32)


def one_by_one(dtype: Any, rows: Array) -> Array:
    """Add rows (N, ...), one at least, in their order, and round after each addition."""
    # A sum of NumPy takes another order where there is one column.
    return np.add.accumulate(rows.astype(numpy_dtype(dtype)), 0)[-1].astype(rows.dtype)


def product_one_by_one(A: Array, B: Array) -> Array:
    """Multiply matrices (R, n) and (n, m) of float16 in float32 arrays; each product and each sum is rounded.

    Sums are of blocks, which are added then.
    """
    found = np.zeros((len(A), B.shape[1]), np.float32)
    for first in range(0, len(B), SUMMED):
        part, own = np.zeros_like(found), slice(first, first + SUMMED)
        for row, column in zip(B[own], A.T[own], strict=True):
            part = to_float16(part + to_float16(column[:, None] * row))
        found = to_float16(found + part)
    return found


def shares_of(into: Into, exponentials: Array, total: Array, inverse: bool = False) -> Array:
    """Divide exponentials (..., K) by their rounded total (..., 1), or multiply by its rounded inverse.

    A total of 0, where nothing is visible, counts as 1.
    """
    total = into(total)
    total = np.where(total == 0, total.dtype.type(1), total)
    return exponentials * into(1 / total) if inverse else exponentials / total


@dataclasses.dataclass(frozen=True)
class CoarseRotary(Rotary):
    """A rotation whose frequencies and angles are float32."""

    def angles(self) -> tuple[Any, ...]:
        """Return the frequencies as NumPy's float32."""
        return tuple(map(np.float32, super().angles()))


def coarse(rotary: Rotary) -> CoarseRotary:
    """Return a rotation with angles in float32."""
    return CoarseRotary(**{field.name: getattr(rotary, field.name) for field in dataclasses.fields(Rotary)})


def with_coarse_angles(attention: MultiHeadAttention) -> MultiHeadAttention:
    """Return the layer on NumPy with angles in float32; in float64 it is unchanged, as without a rotation."""
    config = attention.config
    if config.dtype == "float64" or config.rotary is None:
        return attention
    config = dataclasses.replace(config, rotary=coarse(config.rotary))
    return restore(config, attention.weights, "numpy", attention.seed)
