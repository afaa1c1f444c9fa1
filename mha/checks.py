"""What every argument must be: one wording for all backends, no framework imported.

Every function returns its argument in a settled form or raises a TypeError or ValueError that names the argument,
what was expected, what came, and what to do.
"""

import numbers
import operator
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

# Options of a layer


def size(name: str, value: object) -> int:
    """A positive whole number; a bool or a float is none."""
    whole = _whole(value)
    if whole is None:
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}), expected a positive int")
    if whole < 1:
        raise ValueError(f"{name} is {whole}, expected at least 1")
    return whole


def probability(name: str, value: object) -> float:
    """A number in [0, 1)."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}), expected a float in [0, 1)")
    if not 0 <= float(value) < 1:
        raise ValueError(f"{name} is {value!r}, expected a float in [0, 1)")
    return float(value)


def flag(name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}), expected True or False")
    return bool(value)


def choice(name: str, value: object, known: Sequence[str]) -> str:
    """One of the known names."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}), expected one of {', '.join(known)}")
    if value not in known:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(known)}")
    return value


def seed(value: object) -> int:
    """A whole number of at least 0, as NumPy's generators take it."""
    whole = _whole(value)
    if whole is None:
        raise TypeError(f"seed is {value!r} ({type(value).__name__}), expected an int of at least 0")
    if whole < 0:
        raise ValueError(f"seed is {whole}, expected at least 0")
    return whole


def dtype_name(dtype: Any) -> Any:
    """The plain name of a dtype, however NumPy or a framework writes it: numpy.float32, torch.float32 -> "float32"."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return name.removeprefix("torch.").rstrip("_")


# Arguments of a call


def inputs(config: Any, queries: Any, keys: Any, values: Any, valid_lens: Any = None, mask: Any = None) -> None:
    """Queries, keys, values, lengths and mask that fit a layer and each other, by shape and dtype alone.

    A size that a compiler does not know yet (None) fits everything.
    """
    widths = {"queries": config.query_size, "keys": config.key_size, "values": config.value_size}
    for (name, width), value in zip(widths.items(), (queries, keys, values), strict=True):
        rows = "queries" if name == "queries" else "key-value pairs"
        if not _is_array(value):
            raise TypeError(f"{name} is {_brief(value)}, expected an array of shape (batch, {rows}, {width})")
        if len(value.shape) != 3 or not _fits(value.shape[2], width):
            raise ValueError(f"{name} has shape {shape(value)}, expected (batch, {rows}, {width})")
        if dtype_name(value.dtype) != config.dtype:
            raise TypeError(
                f"{name} has dtype {dtype_name(value.dtype)}, expected {config.dtype} as the layer; "
                f"convert it, or make the layer with dtype={dtype_name(value.dtype)!r} if that is a float"
            )
    batch, num_queries, _ = queries.shape
    _, num_keys, _ = keys.shape
    for name, value in (("keys", keys), ("values", values)):
        if not _fits(value.shape[0], batch):
            raise ValueError(f"{name} has batch size {value.shape[0]}, expected {batch} as queries: nothing broadcasts")
    if not _fits(values.shape[1], num_keys):
        raise ValueError(f"values has {values.shape[1]} rows a sample, expected {num_keys}: one for each of the keys")
    if valid_lens is not None:
        _lengths_fit(valid_lens, batch, num_queries)
    if mask is not None:
        _mask_fits(mask, batch, config.num_heads, num_queries, num_keys)


def pooling_inputs(pooling: Any, queries: Any, keys: Any, values: Any, valid_lens: Any = None) -> None:
    """Queries, keys, values and lengths that fit an attention pooling and each other, by shape and dtype alone.

    The pooling tells its query_size and key_size, None = any, and whether both must have the same_width.
    """
    named = {"queries": queries, "keys": keys, "values": values}
    for name, value in named.items():
        if not _is_array(value):
            raise TypeError(f"{name} is {_brief(value)}, expected an array of shape (batch, rows, width)")
        if len(value.shape) != 3:
            raise ValueError(f"{name} has shape {shape(value)}, expected (batch, rows, width)")
        if "float" not in dtype_name(value.dtype):
            raise TypeError(f"{name} has dtype {dtype_name(value.dtype)}, expected floats")
        if dtype_name(value.dtype) != dtype_name(queries.dtype):
            expected = dtype_name(queries.dtype)
            raise TypeError(f"{name} has dtype {dtype_name(value.dtype)}, expected {expected} as queries; convert one")
    query_size = queries.shape[2] if pooling.query_size is None else pooling.query_size
    any_key_size = query_size if pooling.same_width else keys.shape[2]
    key_size = any_key_size if pooling.key_size is None else pooling.key_size
    sizes = {"query_size": query_size, "key_size": key_size, "value_size": values.shape[2]}
    inputs(types.SimpleNamespace(**sizes, dtype=dtype_name(queries.dtype)), queries, keys, values, valid_lens)


def lengths(valid_lens: np.ndarray, num_keys: int | None) -> np.ndarray:
    """Lengths whose values are known: none below 0; those above K, which hide nothing, are returned as K."""
    if valid_lens.size and valid_lens.min() < 0:
        raise ValueError(f"valid_lens holds {valid_lens.min()}, expected 0 or more: the number of keys to see")
    # Python's ints do not overflow, whatever the integers' width and sign.
    limit = min(2**31 - 1 if num_keys is None else num_keys, int(np.iinfo(valid_lens.dtype).max))
    return np.minimum(valid_lens, valid_lens.dtype.type(limit)).astype(np.int32)


def output(config: Any, cotangent: Any, queries: Any) -> None:
    """A cotangent of the shape and dtype of the output for these queries."""
    expected = (*queries.shape[:2], config.num_hiddens)
    if not _is_array(cotangent):
        raise TypeError(f"cotangent is {_brief(cotangent)}, expected an array of shape {expected} as the output")
    if not _shape_fits(cotangent.shape, expected):
        raise ValueError(f"cotangent has shape {shape(cotangent)}, expected {expected} as the output")
    if dtype_name(cotangent.dtype) != config.dtype:
        raise TypeError(f"cotangent has dtype {dtype_name(cotangent.dtype)}, expected {config.dtype} as the layer")


def divides(name: str, value: Any, axis: int, by: str, parts: int) -> None:
    """An array of three axes, one of which divides into so many parts."""
    if len(value.shape) != 3:
        raise ValueError(f"{name} has shape {shape(value)}, expected 3 axes")
    length = value.shape[axis]
    if length is not None and length % parts:
        raise ValueError(f"{name} has shape {shape(value)}, expected axis {axis} to be a multiple of {by} = {parts}")


def scores(X: Any, valid_lens: Any) -> None:
    """Scores (batch, queries, keys) and lengths that fit them."""
    if len(X.shape) != 3:
        raise ValueError(f"X has shape {shape(X)}, expected (batch, queries, keys)")
    if "float" not in dtype_name(X.dtype):
        raise TypeError(f"X has dtype {dtype_name(X.dtype)}, expected floats")
    if valid_lens is not None:
        _lengths_fit(valid_lens, X.shape[0], X.shape[1])


def listed(name: str, value: Any, dtype: np.dtype) -> np.ndarray:
    """Nested lists of numbers as an array of this dtype."""
    try:
        plain = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is a nested list that is no array: {error}") from error
    if plain.size and plain.dtype.kind not in "iuf":
        raise TypeError(f"{name} is a list of {plain.dtype} values, expected numbers")
    return plain.astype(dtype)


def weights(shapes: dict[str, tuple[int, ...]], dtype: str, arrays: Any) -> dict[str, np.ndarray]:
    """Canonical weights: exactly these names, shapes and this dtype, as NumPy arrays."""
    if not isinstance(arrays, dict):
        raise TypeError(f"weights is {_brief(arrays)}, expected a dict of NumPy arrays named {', '.join(shapes)}")
    if missing := [name for name in shapes if name not in arrays]:
        raise ValueError(f"weights lacks {', '.join(missing)}; expected {', '.join(shapes)}")
    if extra := [str(name) for name in arrays if name not in shapes]:
        raise ValueError(f"weights has {', '.join(extra)}, which the layer has not; expected {', '.join(shapes)}")
    for name, expected in shapes.items():
        value = arrays[name]
        if not isinstance(value, np.ndarray):
            raise TypeError(f"weights[{name!r}] is {_brief(value)}, expected a NumPy array of shape {expected}")
        if value.shape != expected:
            raise ValueError(f"weights[{name!r}] has shape {value.shape}, expected {expected}: kernels are (in, out)")
        if dtype_name(value.dtype) != dtype:
            raise TypeError(f"weights[{name!r}] has dtype {dtype_name(value.dtype)}, expected {dtype} as the layer")
    return {name: arrays[name] for name in shapes}


def plain(value: np.ndarray) -> np.ndarray:
    """A NumPy array in C order and in the machine's byte order, as every framework takes it."""
    return np.asarray(value, value.dtype.newbyteorder("="), order="C")


def shape(value: Any) -> tuple[int | None, ...]:
    """The shape of an array of any framework as a plain tuple; None for a size not known yet."""
    return tuple(None if size is None else int(size) for size in value.shape)


# Pieces of the above


def _lengths_fit(valid_lens: Any, batch: Any, num_queries: Any) -> None:
    if not _is_array(valid_lens):
        raise TypeError(f"valid_lens is {_brief(valid_lens)}, expected integers of shape (batch,) or (batch, queries)")
    if not dtype_name(valid_lens.dtype).startswith(("int", "uint")):
        raise TypeError(f"valid_lens has dtype {dtype_name(valid_lens.dtype)}, expected integers; masks go to mask=")
    expected = ((batch,), (batch, num_queries))
    if not any(_shape_fits(valid_lens.shape, sizes) for sizes in expected):
        hint = "; it looks transposed" if _shape_fits(valid_lens.shape, (num_queries, batch)) else ""
        raise ValueError(
            f"valid_lens has shape {shape(valid_lens)}, expected {expected[0]} or {expected[1]}: "
            f"(batch,) or (batch, queries){hint}"
        )


def _mask_fits(mask: Any, batch: Any, num_heads: int, num_queries: Any, num_keys: Any) -> None:
    if not _is_array(mask):
        raise TypeError(f"mask is {_brief(mask)}, expected booleans, True = may attend")
    if dtype_name(mask.dtype) != "bool":
        raise TypeError(f"mask has dtype {dtype_name(mask.dtype)}, expected booleans, True = may attend")
    full = (batch, num_heads, num_queries, num_keys)
    expected = {2: full[2:], 3: (batch, *full[2:]), 4: full}.get(len(mask.shape))
    if expected is None or not all(
        got == 1 or _fits(got, want) for got, want in zip(mask.shape, expected, strict=True)
    ):
        raise ValueError(
            f"mask has shape {shape(mask)}, expected {full[2:]}, {(batch, *full[2:])} or {full}: (queries, keys), "
            "(batch, queries, keys) or (batch, heads, queries, keys), where any size may be 1"
        )


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _shape_fits(got: Sequence[Any], expected: Sequence[Any]) -> bool:
    return len(got) == len(expected) and all(map(_fits, got, expected))


def _fits(got: Any, expected: Any) -> bool:
    return got is None or expected is None or got == expected


def _whole(value: object) -> int | None:
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _brief(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"
