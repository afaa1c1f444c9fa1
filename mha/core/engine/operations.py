"""The few operations on a framework's arrays, and functions of its lesson, that planning a call needs."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Operations:
    """A table of operations on arrays, one for each backend.

    any ... reshape: as in NumPy, with axes by position.
    arange, tensor: take a size, or NumPy's array, and an array of the device where the result shall be.
    zeros: takes a shape, and an array of the dtype.
    signed ... four_axes: functions of the lesson.
    index: turns NumPy's integers into indices of an array.
    merged: makes the first two axes of an array one, without a copy.
    shape: of an array, with a tensor for each size that only the call itself knows.
    smaller, larger, root: of two sizes, ints or such tensors; root: of their sum, rounded down.
    lowest_of, highest_of: of an array's numbers; None = only a compiler may know them.
    same, either: whether two arrays are the same; the results of one of two functions, by that. Both None where the
        values of integers are always known.
    """

    any: Callable[[Any, int], Any]
    min: Callable[[Any, int], Any]
    max: Callable[[Any, int], Any]
    minimum: Callable[[Any, Any], Any]
    maximum: Callable[[Any, Any], Any]
    where: Callable[[Any, Any, Any], Any]
    broadcast_to: Callable[[Any, Any], Any]
    reshape: Callable[[Any, Any], Any]
    arange: Callable[[Any, Any], Any]
    tensor: Callable[[Any, Any], Any]
    zeros: Callable[[Any, Any], Any]
    signed: Callable[[Any, Any], Any]
    visible_keys: Any
    repeat_heads: Any
    four_axes: Any
    index: Callable[[Any], Any] = lambda array: array
    merged: Callable[[Any], Any] = lambda X: X.reshape(-1, *X.shape[2:])
    shape: Callable[[Any], Any] = lambda X: X.shape
    smaller: Callable[[Any, Any], Any] = min
    larger: Callable[[Any, Any], Any] = max
    root: Callable[[Any, Any], Any] = lambda X, Y: int(math.sqrt(X + Y))
    lowest_of: Callable[[Any], Any] | None = None
    highest_of: Callable[[Any], Any] | None = None
    same: Callable[[Any, Any], Any] | None = None
    either: Callable[[Any, Callable[[], Any], Callable[[], Any]], Any] | None = None
