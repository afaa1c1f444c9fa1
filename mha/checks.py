"""What every argument must be, in the same words for all backends; no framework is imported.

An argument that does not fit raises a TypeError or ValueError, which names the argument, what came, what was expected
and what to do.
"""

import contextlib
import dataclasses
import difflib
import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, get_args

import numpy as np

from mha.names import FloatName, IntegerName

Name = TypeVar("Name", bound=str)
INTEGERS: tuple[IntegerName, ...] = get_args(IntegerName)
FLOATS: tuple[FloatName, ...] = get_args(FloatName)
# NumPy works out a dtype's name anew each time: a small layer would spend much of its time on that.
_NAMES = {np.dtype(name): name for name in (*FLOATS[:3], *INTEGERS, "bool")}
# What some things are called elsewhere.
OTHER_NAMES = {
    "np": "numpy", "pytorch": "torch", "tf": "tensorflow", "keras": "tensorflow", "flax": "jax", "gluon": "mxnet",
    "half": "float16", "float": "float32", "single": "float32", "double": "float64", "bf16": "bfloat16",
}  # fmt: skip
FURTHEST = 2**30  # offset: positions fit the 32-bit integers that every backend has
FEW = 100  # up to so many numbers, Python finds the smallest and the largest faster than NumPy

# Options of a layer


def size(name: str, value: object) -> int:
    """A positive whole number; neither a bool nor a float."""
    whole = _whole(value)
    if whole is None:
        raise TypeError(f"{name} is {_brief(value)}, expected a positive int")
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
        raise TypeError(f"{name} is {_brief(value)}, expected True or False")
    return bool(value)


def choice(name: str, value: object, known: Sequence[Name]) -> Name:
    """One of the known names."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {_brief(value)}, expected one of {', '.join(known)}")
    if value not in known:
        written = {one.lower(): one for one in known}
        near = difflib.get_close_matches(OTHER_NAMES.get(value.lower(), value.lower()), written, 1, cutoff=0.75)
        meant = f"; did you mean {written[near[0]]!r}?" if near else ""
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(known)}{meant}")
    return known[known.index(value)]


def sizes(name: str, value: Any) -> tuple[int, ...]:
    """A shape: a list or tuple of whole numbers of at least 0, or one such number."""
    given = value if isinstance(value, (list, tuple)) else (value,)
    whole = [_whole(length) for length in given]
    if None in whole:
        raise TypeError(f"{name} is {_brief(value)}, expected a tuple of ints of at least 0")
    if any(length < 0 for length in whole if length is not None):
        raise ValueError(f"{name} is {_brief(value)}, expected ints of at least 0")
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


def window(value: Any) -> tuple[int | None, int | None] | None:
    """None, or how many keys a query sees before and after its own position, (left, right), where None = all."""
    if value is None:
        return None
    if (whole := _whole(value)) is not None:
        raise TypeError(
            f"window is {_brief(value)}, expected a pair (left, right): ({max(0, whole - 1)}, 0) sees {_text(whole)} "
            f"keys, the last of them its own, and ({_text(whole)}, {_text(whole)}) sees so many on either side"
        )
    expected = "expected a pair (left, right) of ints of at least 0, or None for no bound"
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"window is {_brief(value)}, {expected}")
    left, right = sides = [_whole(side) for side in value]
    if any(whole is None is not side for whole, side in zip(sides, value, strict=True)):
        raise TypeError(f"window is {_brief(value)}, {expected}")
    if any(whole is not None and whole < 0 for whole in sides):
        raise ValueError(f"window is {_brief(value)}, {expected}")
    return None if left is right is None else (left, right)


def seed(value: object) -> int:
    """A whole number of at least 0, which NumPy's generators take as a seed."""
    whole = _whole(value)
    if whole is None:
        raise TypeError(f"seed is {_brief(value)}, expected an int of at least 0")
    if whole < 0:
        raise ValueError(f"seed is {_text(whole)}, expected at least 0")
    return whole


def whole(name: str, value: object) -> int:
    """A whole number; neither a bool nor a float."""
    number = _whole(value)
    if number is None:
        raise TypeError(f"{name} is {_brief(value)}, expected an int")
    return number


def dtype_name(dtype: Any) -> Any:
    """The plain name of a dtype, however NumPy or a framework writes it: numpy.float32, torch.float32 -> "float32"."""
    if isinstance(dtype, str):
        return dtype
    if isinstance(dtype, np.dtype):
        return _NAMES.get(dtype) or dtype.name
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or _text(dtype)
    return str(name).removeprefix("torch.").rstrip("_")


# Arguments of a call


def inputs(
    config: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: Any = None,
    mask: Any = None,
    causal: Any = False,
    training: Any = None,
    return_weights: Any = False,
    *,
    is_own: Callable[[Any], bool],
    place: Any = None,
) -> None:
    """Check that the arguments of a call fit the layer and each other; only shapes and dtypes are looked at.

    A size that a compiler does not know yet (None) fits everything. `is_own` says whether an array is of the layer's
    framework. All arrays must be at the layer's `place`; None = anywhere.
    """
    named = {"queries": queries, "keys": keys, "values": values}
    widths = (config.query_size, config.key_size, config.value_size)
    if queries is keys is values and len(set(widths)) == 1:  # the same array three times is checked once
        del named["keys"], named["values"]
    for (name, value), width in zip(named.items(), widths, strict=False):
        if not is_own(value):
            raise TypeError(f"{name} is {_brief(value)}, expected a dense array of shape {_rows(name, width)}")
        _lies(name, value, place)
        if len(value.shape) != 3 or not _fits(value.shape[2], width):
            raise ValueError(f"{name} has shape {shape(value)}, expected {_rows(name, width)}")
        _dtype_fits(name, value, config.dtype)
    batch, num_queries, _ = queries.shape
    _, num_keys, _ = keys.shape
    for name, value in (("keys", keys), ("values", values)):
        if not _fits(value.shape[0], batch):
            raise ValueError(f"{name} has batch size {value.shape[0]}, expected {batch} as queries: nothing broadcasts")
    if not _fits(values.shape[1], num_keys):
        raise ValueError(f"values has {values.shape[1]} rows a sample, expected {num_keys}: one for each of the keys")
    if valid_lens is not None:
        _lengths_fit(valid_lens, batch, num_queries, is_own, place)
    if mask is not None:
        _mask_fits(mask, batch, config.num_heads, num_queries, num_keys, is_own, place)
    flag("causal", causal)
    flag("return_weights", return_weights)
    if training is not None:
        flag("training", training)


def extras(
    config: Any,
    sizes: tuple[Any, Any, Any],
    score_bias: Any,
    offset: Any,
    head_gates: Any,
    *,
    is_own: Callable[[Any], bool],
    place: Any = None,
) -> None:
    """As `inputs`, for what few calls have; sizes: those of a call, (B, Q, K)."""
    if score_bias is not None:
        _array("score_bias", score_bias, f"of {config.dtype}, which is added to the scores", is_own, place)
        if dtype_name(score_bias.dtype) != config.dtype:
            other = "; booleans go to mask=" if dtype_name(score_bias.dtype) == "bool" else "; convert it"
            raise TypeError(
                f"score_bias has dtype {dtype_name(score_bias.dtype)}, expected {config.dtype} as the layer{other}"
            )
        _pairs_fit("score_bias", score_bias, sizes[0], config.num_heads, *sizes[1:])
    if head_gates is not None:
        _array("head_gates", head_gates, f"of {config.dtype}, which the heads are multiplied by", is_own, place)
        if dtype_name(head_gates.dtype) != config.dtype:
            came = dtype_name(head_gates.dtype)
            raise TypeError(f"head_gates has dtype {came}, expected {config.dtype} as the layer; convert it")
        expected = ((config.num_heads,), (sizes[0], config.num_heads))
        if not any(_shape_fits(head_gates.shape, shape) for shape in expected):
            raise ValueError(
                f"head_gates has shape {shape(head_gates)}, expected {expected[0]} or {expected[1]}: (heads,) or "
                "(batch, heads)"
            )
    if _whole(offset) is not None:
        return
    if not (is_own(offset) or is_numpy(offset)):
        raise TypeError(f"offset is {_brief(offset)}, expected an int, or integers of shape (batch,)")
    if dtype_name(offset.dtype) not in INTEGERS:
        raise TypeError(f"offset has dtype {dtype_name(offset.dtype)}, expected an int, or integers of shape (batch,)")
    if len(offset.shape) and not _shape_fits(offset.shape, sizes[:1]):
        raise ValueError(f"offset has shape {shape(offset)}, expected {sizes[:1]}, (batch,), or a plain int")
    _lies("offset", offset, place)


def offset(value: Any) -> Any:
    """The position of the first query, an int, or integers as int32; those that a compiler will know as they are."""
    if not isinstance(value, (int, np.integer, np.ndarray)):
        return value
    far = max(map(abs, extremes(np.asarray(value))))
    if far > FURTHEST:
        raise ValueError(f"offset holds {far}, expected no position beyond {FURTHEST} either way")
    return value.astype(np.int32) if isinstance(value, np.ndarray) and value.ndim else int(value)


def whole_heads(config: Any, W_q: Any, W_k: Any, W_v: Any) -> None:
    """Check that no projection gave a part of its features, as after PyTorch's `parallelize_module`."""
    H, G, d, dv = config.num_heads, config.num_key_value_heads, config.key_dim, config.value_dim
    for name, X, heads, width in (("W_q", W_q, H, d), ("W_k", W_k, G, d), ("W_v", W_v, G, dv)):
        if X.shape[-1] != heads * width:
            raise ValueError(
                f"{name} gave {X.shape[-1]} features, expected {heads * width} for {heads} heads: the heads of a "
                f"layer cannot be split over devices yet; leave {name} out of `parallelize_module`"
            )


def pooling_inputs(
    pooling: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: Any,
    dtypes: Sequence[str],
    *,
    is_own: Callable[[Any], bool],
    place: Any = None,
) -> None:
    """Check that the arguments of an attention pooling fit it and each other; only shapes and dtypes are looked at.

    The pooling: query_size and key_size (None = any), weights_dtype (None = it has no weights) and same_width, whether
    queries and keys must have one width. `dtypes` are the framework's floats; `is_own` and `place` as for `inputs`.
    """
    for name, value in {"queries": queries, "keys": keys, "values": values}.items():
        _array(name, value, "of shape (batch, rows, width)", is_own, place)
        if len(value.shape) != 3:
            raise ValueError(f"{name} has shape {shape(value)}, expected (batch, rows, width)")
        _floats(name, value, dtypes)
        expected = dtype_name(queries.dtype if pooling.weights_dtype is None else pooling.weights_dtype)
        if dtype_name(value.dtype) != expected:
            other = "queries" if pooling.weights_dtype is None else "the weights"
            raise TypeError(f"{name} has dtype {dtype_name(value.dtype)}, expected {expected} as {other}; convert one")
    query_size = queries.shape[2] if pooling.query_size is None else pooling.query_size
    any_key_size = query_size if pooling.same_width else keys.shape[2]
    key_size = any_key_size if pooling.key_size is None else pooling.key_size
    sizes = _Sizes(query_size, key_size, values.shape[2], dtype_name(queries.dtype))
    inputs(sizes, queries, keys, values, valid_lens, is_own=is_own, place=place)


def lengths(valid_lens: Any, num_keys: int | None) -> Any:
    """Check that no length is below 0; return lengths above K, which hide nothing, as K.

    None, and lengths whose values only a compiled program will know, are returned as they are.
    """
    if not isinstance(valid_lens, np.ndarray):
        return valid_lens
    shortest, longest = extremes(valid_lens)
    if shortest < 0:
        raise ValueError(f"valid_lens holds {shortest}, expected 0 or more: the number of keys to see")
    wide = valid_lens.dtype.kind == "i" and valid_lens.dtype.itemsize >= 4
    if wide and num_keys is not None and longest <= num_keys:
        return valid_lens  # as most are
    # Python's ints do not overflow, whatever the integers' width and sign.
    limit = min(2**31 - 1 if num_keys is None else num_keys, int(np.iinfo(valid_lens.dtype).max))
    return np.minimum(valid_lens, valid_lens.dtype.type(limit)).astype(np.int32)


def extremes(valid_lens: np.ndarray) -> tuple[int, int]:
    """The smallest and the largest length, 0 where there is none."""
    if valid_lens.size > FEW:
        return int(valid_lens.min()), int(valid_lens.max())
    listed = valid_lens.ravel().tolist()
    return min(listed, default=0), max(listed, default=0)


def output(config: Any, cotangent: Any, expected: Any, *, is_own: Callable[[Any], bool], place: Any = None) -> None:
    """Check that a cotangent has the output's dtype and shape, which is expected; the rest as for `inputs`."""
    _array("cotangent", cotangent, f"of shape {expected} as the output", is_own, place)
    if not _shape_fits(cotangent.shape, expected):
        raise ValueError(f"cotangent has shape {shape(cotangent)}, expected {expected} as the output")
    _dtype_fits("cotangent", cotangent, config.dtype)


def divides(name: str, value: Any, axis: int, by: str, parts: int, *, is_own: Callable[[Any], bool]) -> None:
    """Check that an array has three axes, and that the given one is a multiple of `parts`; `is_own` as for `inputs`."""
    _array(name, value, "of 3 axes", is_own)
    if len(value.shape) != 3:
        raise ValueError(f"{name} has shape {shape(value)}, expected 3 axes")
    length = value.shape[axis]
    if length is not None and length % parts:
        raise ValueError(f"{name} has shape {shape(value)}, expected axis {axis} to be a multiple of {by} = {parts}")


def scores(X: Any, valid_lens: Any, dtypes: Sequence[str], *, is_own: Callable[[Any], bool], place: Any = None) -> None:
    """Check scores (batch, queries, keys) and the lengths for them; `dtypes` are the framework's floats."""
    _array("X", X, "of shape (batch, queries, keys)", is_own)
    if len(X.shape) != 3:
        raise ValueError(f"X has shape {shape(X)}, expected (batch, queries, keys)")
    _floats("X", X, dtypes)
    if valid_lens is not None:
        _lengths_fit(valid_lens, X.shape[0], X.shape[1], is_own, place)


def listed(name: str, value: Any, empty: str = "float32") -> np.ndarray:
    """A number or nested lists as an array; lists with nothing in them get the dtype `empty`."""
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
    """Numbers in another dtype, which must be able to hold them: floats may be rounded, nothing else may be lost."""
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
        raise TypeError(f"weights is {_brief(arrays)}, expected a dict of NumPy arrays named {', '.join(shapes)}")
    if missing := [name for name in shapes if name not in arrays]:
        raise ValueError(f"weights lacks {', '.join(missing)}; expected {', '.join(shapes)}")
    if extra := [str(name) for name in arrays if name not in shapes]:
        raise ValueError(f"weights has {', '.join(extra)}, which the layer has not; expected {', '.join(shapes)}")
    for name, expected in shapes.items():
        value = arrays[name]
        if not is_numpy(value):
            raise TypeError(f"weights[{name!r}] is {_brief(value)}, expected a NumPy array of shape {expected}")
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
    """A NumPy array in C order, in the machine's byte order and its usual integers, as every framework takes it."""
    if value.dtype.isnative and value.dtype.kind not in "iu":
        return np.asarray(value, order="C")
    native = value.dtype.newbyteorder("=")
    return np.asarray(value, np.dtype(native.name) if native.kind in "iu" else native, order="C")


def is_numpy(value: Any) -> bool:
    """Whether a value is an ordinary NumPy array; a masked array is not, because frameworks would ignore its mask."""
    return isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray)


def shape(value: Any) -> tuple[int | None, ...]:
    """The shape of an array of any framework as a plain tuple; None for a size not known yet."""
    return tuple(None if size is None else int(size) for size in value.shape)


# Pieces of the above


@dataclasses.dataclass
class _Sizes:
    query_size: Any
    key_size: Any
    value_size: Any
    dtype: str


def _rows(name: str, width: int) -> str:
    return f"(batch, {'queries' if name == 'queries' else 'key-value pairs'}, {width})"


def _array(name: str, value: Any, kind: str, is_own: Callable[[Any], bool], place: Any = None) -> None:
    if not is_own(value):
        raise TypeError(f"{name} is {_brief(value)}, expected a dense array {kind}")
    _lies(name, value, place)


def _lies(name: str, value: Any, place: Any) -> None:
    # NumPy's arrays are copied to wherever they are needed.
    if place is not None and not isinstance(value, np.ndarray) and value.device != place:
        raise ValueError(f"{name} is on device {value.device}, expected {place} as the others; move it there")


def _floats(name: str, value: Any, dtypes: Sequence[str]) -> None:
    if dtype_name(value.dtype) not in dtypes:
        raise TypeError(f"{name} has dtype {dtype_name(value.dtype)}, expected floats: {', '.join(dtypes)}")


def _dtype_fits(name: str, value: Any, expected: str) -> None:
    came = dtype_name(value.dtype)
    if came != expected:
        fixes = f', in NumPy with {name}.astype("{expected}"), or make the layer with dtype="{came}"'
        raise TypeError(
            f"{name} has dtype {came}, expected {expected} as the layer; convert it{fixes if came in FLOATS else ''}"
        )


def _lengths_fit(valid_lens: Any, batch: Any, num_queries: Any, is_own: Callable[[Any], bool], place: Any) -> None:
    if not (is_own(valid_lens) or is_numpy(valid_lens)):
        raise TypeError(f"valid_lens is {_brief(valid_lens)}, expected integers of shape (batch,) or (batch, queries)")
    if dtype_name(valid_lens.dtype) not in INTEGERS:
        raise TypeError(f"valid_lens has dtype {dtype_name(valid_lens.dtype)}, expected integers; masks go to mask=")
    expected = ((batch,), (batch, num_queries))
    if tuple(valid_lens.shape) not in expected and not any(_shape_fits(valid_lens.shape, sizes) for sizes in expected):
        hint = "; it looks transposed" if _shape_fits(valid_lens.shape, (num_queries, batch)) else ""
        raise ValueError(
            f"valid_lens has shape {shape(valid_lens)}, expected {expected[0]} or {expected[1]}: "
            f"(batch,) or (batch, queries){hint}"
        )
    _lies("valid_lens", valid_lens, place)


def _mask_fits(
    mask: Any, batch: Any, num_heads: int, num_queries: Any, num_keys: Any, is_own: Callable[[Any], bool], place: Any
) -> None:
    if not (is_own(mask) or is_numpy(mask)):
        raise TypeError(f"mask is {_brief(mask)}, expected booleans, True = may attend")
    if dtype_name(mask.dtype) != "bool":
        other = "; floats that are added to the scores go to score_bias=" if dtype_name(mask.dtype) in FLOATS else ""
        raise TypeError(f"mask has dtype {dtype_name(mask.dtype)}, expected booleans, True = may attend{other}")
    _pairs_fit("mask", mask, batch, num_heads, num_queries, num_keys)
    _lies("mask", mask, place)


def _pairs_fit(name: str, array: Any, batch: Any, num_heads: int, num_queries: Any, num_keys: Any) -> None:
    full = (batch, num_heads, num_queries, num_keys)
    expected = {2: full[2:], 3: (batch, *full[2:]), 4: full}.get(len(array.shape))
    if expected is None or not all(
        got == 1 or _fits(got, want) for got, want in zip(array.shape, expected, strict=True)
    ):
        raise ValueError(
            f"{name} has shape {shape(array)}, expected {full[2:]}, {(batch, *full[2:])} or {full}: (queries, keys), "
            "(batch, queries, keys) or (batch, heads, queries, keys), where any size may be 1"
        )


def _shape_fits(got: Sequence[Any], expected: Sequence[Any]) -> bool:
    return len(got) == len(expected) and all(map(_fits, got, expected))


def _fits(got: Any, expected: Any) -> bool:
    return got is None or expected is None or got == expected


def _whole(value: object) -> int | None:
    # No `__index__`: a framework's array of one boolean, or of several axes, has it too.
    return int(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None


def _real(name: str, value: Any, expected: str) -> float:
    """A real number as a float."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {_brief(value)}, expected {expected}")
    try:
        return float(value)
    except OverflowError:  # of an int beyond all floats
        return math.inf


def _brief(value: object) -> str:
    return f"{_text(value)} ({type(value).__name__})"


def _text(value: object) -> str:
    """The beginning of a value's repr, on one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of an int of 5,000 digits, for one
        text = object.__repr__(value)
    return text if len(text) <= 40 else text[:37] + "..."
