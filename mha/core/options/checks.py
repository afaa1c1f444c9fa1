"""Checks of single arguments, with the same error texts for all backends; no framework is imported.

An argument that does not fit raises a TypeError or ValueError, which names the argument, what came, what was expected
and what to do.
"""

import contextlib
import difflib
import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

import numpy as np

from mha.core.options.names import FloatName, IntegerName

Name = TypeVar("Name", bound=str)
INTEGERS: tuple[IntegerName, ...] = get_args(IntegerName)
FLOATS: tuple[FloatName, ...] = get_args(FloatName)
# NumPy computes a dtype's name each time it is asked: a small layer would spend much of its time on that.
_NAMES = {np.dtype(name): name for name in (*FLOATS[:3], *INTEGERS, "bool")}
# Names of dtypes that people use elsewhere.
DTYPES_ELSEWHERE = {
    "half": "float16", "float": "float32", "single": "float32", "double": "float64", "bf16": "bfloat16",
}  # fmt: skip
FURTHEST = 2**30  # positions and windows fit the 32-bit integers that every backend has
FEW = 100  # up to so many numbers, Python finds the smallest and the largest faster than NumPy

# Options of a layer


def size(name: str, value: object) -> int:
    """A positive whole number; neither a bool nor a float."""
    whole = _whole(value)
    if whole is None:
        raise TypeError(f"{name} is {brief(value)}, expected a positive int")
    if whole < 1:
        raise ValueError(f"{name} is {_text(whole)}, expected at least 1")
    return whole


def probability(name: str, value: object) -> float:
    """A number in [0, 1)."""
    if not 0 <= (real := _real(name, value, "a float in [0, 1)")) < 1:
        raise ValueError(f"{name} is {_text(value)}, expected a float in [0, 1)")
    return real


def flag(name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {brief(value)}, expected True or False")
    return bool(value)


def choice(name: str, value: object, known: Sequence[Name], elsewhere: Mapping[str, str] = DTYPES_ELSEWHERE) -> Name:
    """One of the known names; elsewhere: other names for some of them, for the error."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {brief(value)}, expected one of {', '.join(known)}")
    if value not in known:
        written = {one.lower(): one for one in known}
        near = difflib.get_close_matches(elsewhere.get(value.lower(), value.lower()), written, 1, cutoff=0.75)
        meant = f"; did you mean {written[near[0]]!r}?" if near else ""
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(known)}{meant}")
    return known[known.index(value)]


def sizes(name: str, value: Any) -> tuple[int, ...]:
    """A shape: a list or tuple of whole numbers of at least 0, or one such number."""
    given = value if isinstance(value, (list, tuple)) else (value,)
    whole = [_whole(length) for length in given]
    if None in whole:
        raise TypeError(f"{name} is {brief(value)}, expected a tuple of ints of at least 0")
    if any(length < 0 for length in whole if length is not None):
        raise ValueError(f"{name} is {brief(value)}, expected ints of at least 0")
    return tuple(length for length in whole if length is not None)


def number(name: str, value: object, least: float = -math.inf) -> float:
    """A finite number, not below `least`."""
    if not least <= (real := _real(name, value, "a number")) < math.inf or real == -math.inf:
        of_at_least = "" if least == -math.inf else f" of at least {least}"
        raise ValueError(f"{name} is {_text(value)}, expected a finite number{of_at_least}")
    return real


def positive(name: str, value: object) -> float:
    """A finite number above 0."""
    if not 0 < (real := _real(name, value, "a number above 0")) < math.inf:
        raise ValueError(f"{name} is {_text(value)}, expected a finite number above 0")
    return real


def window(name: str, value: Any) -> tuple[int | None, int | None] | None:
    """The window of a layer: (left, right), numbers of keys before and after a query, where None = all."""
    if (whole := _whole(value)) is not None:
        raise TypeError(
            f"{name} is {brief(value)}, expected a pair (left, right): ({max(0, whole - 1)}, 0) sees {_text(whole)} "
            f"keys, the last of them its own, and ({_text(whole)}, {_text(whole)}) sees {_text(whole)} on each side"
        )
    expected = f"expected a pair (left, right) of ints from 0 to {FURTHEST}, or None for no bound"
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{name} is {brief(value)}, {expected}")
    left, right = sides = [_whole(side) for side in value]
    if any(whole is None is not side for whole, side in zip(sides, value, strict=True)):
        raise TypeError(f"{name} is {brief(value)}, {expected}")
    if not all(whole is None or 0 <= whole <= FURTHEST for whole in sides):
        raise ValueError(f"{name} is {brief(value)}, {expected}")
    return None if left is right is None else (left, right)


def chunk(name: str, value: object) -> int:
    """The number of positions of a layer's chunks."""
    if (positions := size(name, value)) > FURTHEST:
        raise ValueError(f"{name} is {_text(positions)}, expected at most {FURTHEST} positions")
    return positions


def seed(value: object) -> int:
    """A whole number of at least 0, which NumPy's generators take as a seed."""
    whole = _whole(value)
    if whole is None:
        raise TypeError(f"seed is {brief(value)}, expected an int of at least 0")
    if whole < 0:
        raise ValueError(f"seed is {_text(whole)}, expected at least 0")
    return whole


def whole(name: str, value: object) -> int:
    """A whole number; neither a bool nor a float."""
    number = _whole(value)
    if number is None:
        raise TypeError(f"{name} is {brief(value)}, expected an int")
    return number


def is_whole(value: object) -> bool:
    """True for a whole number; a bool or a float is none."""
    return _whole(value) is not None


def dtype_name(dtype: Any) -> Any:
    """The plain name of a dtype of NumPy or a framework: numpy.float32, torch.float32 -> "float32"."""
    if isinstance(dtype, str):
        return dtype
    if isinstance(dtype, np.dtype):
        return _NAMES.get(dtype) or dtype.name
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or _text(dtype)
    return str(name).rpartition(".")[2].rstrip("_")  # torch.float32, mlx.core.bool_


# Arrays


def extremes(valid_lens: np.ndarray) -> tuple[int, int]:
    """The smallest and the largest length; 0 if there are no lengths."""
    if valid_lens.size > FEW:
        return int(valid_lens.min()), int(valid_lens.max())
    listed = valid_lens.ravel().tolist()
    return min(listed, default=0), max(listed, default=0)


def array_of(name: str, value: Any, empty: str = "float32") -> np.ndarray:
    """Turn a number or nested lists into an array; empty lists get the dtype `empty`."""
    try:
        kinds = set(map(type, _leaves(value)))
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError, Warning) as error:  # Warning: where they are errors
        raise ValueError(f"{name} is a nested list that is no array: {error}") from error
    if array.dtype == object and any(isinstance(item, (list, tuple)) for item in array.flat):  # NumPy before 1.24
        raise ValueError(f"{name} is a nested list that is no array: its lists have several lengths")
    if bool in kinds and len(kinds) > 1:
        raise TypeError(f"{name} holds booleans beside other values, expected values of one kind")
    if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
        raise TypeError(f"{name} holds masked arrays, expected numbers")
    if array.dtype.kind in "fO" and kinds and all(issubclass(kind, (int, np.integer)) for kind in kinds):
        with contextlib.suppress(OverflowError):  # beyond all integers they stay objects, which are refused
            array = np.asarray(value, np.uint64)  # above 2**63 NumPy makes floats or objects of them
    return array if array.size else array.astype(empty)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def cast(name: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert numbers to a dtype that must be able to hold them: floats may be rounded, nothing else may be lost."""
    if array.dtype.kind not in "biuf" and dtype_name(array.dtype) != "bfloat16":
        raise TypeError(f"{name} holds {array.dtype} values, expected numbers")
    with np.errstate(all="ignore"):
        result = array.astype(dtype)
        floats = "float" in dtype_name(dtype)
        lost = np.isinf(result) & np.isfinite(array.astype(np.float64)) if floats else result != array
    if lost.any():
        raise ValueError(f"{name} holds {array[lost].flat[0]}, expected numbers that {dtype_name(dtype)} can hold")
    return result


def weights(shapes: dict[str, tuple[int, ...]], dtype: str, arrays: Any) -> dict[str, np.ndarray]:
    """Check that arrays are canonical weights: NumPy arrays of exactly these names, these shapes and this dtype."""
    if not isinstance(arrays, dict):
        raise TypeError(f"weights is {brief(arrays)}, expected a dict of NumPy arrays named {', '.join(shapes)}")
    if missing := [name for name in shapes if name not in arrays]:
        raise ValueError(f"weights lacks {', '.join(missing)}; expected {', '.join(shapes)}")
    if extra := [str(name) for name in arrays if name not in shapes]:
        raise ValueError(f"weights has {', '.join(extra)}, which the layer does not have; expected {', '.join(shapes)}")
    for name, expected in shapes.items():
        value = arrays[name]
        if not is_numpy(value):
            raise TypeError(f"weights[{name!r}] is {brief(value)}, expected a NumPy array of shape {expected}")
        if value.shape != expected:
            raise ValueError(f"weights[{name!r}] has shape {value.shape}, expected {expected}: kernels are (in, out)")
        if dtype_name(value.dtype) != dtype:
            raise TypeError(f"weights[{name!r}] has dtype {dtype_name(value.dtype)}, expected {dtype} as the layer")
    return {name: arrays[name] for name in shapes}


def finite(name: str, array: np.ndarray) -> None:
    """Raise ValueError if an array holds NaN or infinity."""
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity, expected finite weights")


def plain(value: np.ndarray) -> np.ndarray:
    """Turn an array into C order, the machine's byte order and its usual integers, which every framework takes."""
    if value.dtype.isnative and value.dtype.kind not in "iu":
        return np.asarray(value, order="C")
    native = value.dtype.newbyteorder("=")
    return np.asarray(value, np.dtype(native.name) if native.kind in "iu" else native, order="C")


def is_numpy(value: Any) -> bool:
    """True for an ordinary NumPy array; False for a masked one, because frameworks would ignore its mask."""
    return isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray)


def shape(value: Any) -> tuple[int | None, ...]:
    """The shape of an array of any framework as a plain tuple; None for a size not known yet."""
    return tuple(None if size is None else int(size) for size in value.shape)


# Helpers of the functions above


def _whole(value: object) -> int | None:
    # No `__index__`: a framework's array of one boolean, or of several axes, has it too.
    return int(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None


def _real(name: str, value: Any, expected: str) -> float:
    """A real number as a float."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {brief(value)}, expected {expected}")
    try:
        return float(value)
    except OverflowError:  # of an int beyond all floats
        return math.inf


def brief(value: object) -> str:
    """A value and its class, for an error."""
    return f"{_text(value)} ({type(value).__name__})"


def _text(value: object) -> str:
    """The beginning of a value's repr, on one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of an int of 5,000 digits, for one
        text = object.__repr__(value)
    return text if len(text) <= 40 else text[:37] + "..."
