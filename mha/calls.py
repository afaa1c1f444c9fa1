"""What the arguments of a call must be, to fit the layer and each other, in the same words for all backends.

Only shapes, dtypes and places are looked at, and the values of lengths and offsets where they are known.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mha.checks import FLOATS, FURTHEST, INTEGERS, brief, dtype_name, extremes, flag, is_numpy, is_whole, shape


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
            raise TypeError(f"{name} is {brief(value)}, expected a dense array of shape {_rows(name, width)}")
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
        _own_or_numpy("score_bias", score_bias, f"of {config.dtype}, added to the scores", is_own, place)
        if dtype_name(score_bias.dtype) == "bool":
            raise TypeError(f"score_bias has dtype bool, expected {config.dtype} as the layer; booleans go to mask=")
        _dtype_fits("score_bias", score_bias, config.dtype)
        _pairs_fit("score_bias", score_bias, sizes[0], config.num_heads, *sizes[1:])
    if head_gates is not None:
        _own_or_numpy("head_gates", head_gates, f"of {config.dtype}, the heads' factors", is_own, place)
        _dtype_fits("head_gates", head_gates, config.dtype)
        expected = ((config.num_heads,), (sizes[0], config.num_heads))
        if not any(_shape_fits(head_gates.shape, shape) for shape in expected):
            raise ValueError(
                f"head_gates has shape {shape(head_gates)}, expected {expected[0]} or {expected[1]}: (heads,) or "
                "(batch, heads)"
            )
    if is_whole(offset):
        return
    if not (is_own(offset) or is_numpy(offset)):
        raise TypeError(f"offset is {brief(offset)}, expected an int, or integers of shape (batch,)")
    if dtype_name(offset.dtype) not in INTEGERS:
        raise TypeError(f"offset has dtype {dtype_name(offset.dtype)}, expected an int, or integers of shape (batch,)")
    if len(offset.shape) and not _shape_fits(offset.shape, sizes[:1]):
        raise ValueError(f"offset has shape {shape(offset)}, expected {sizes[:1]}, (batch,), or a plain int")
    _lies("offset", offset, place)


def offset(value: Any) -> Any:
    """The position of the first query, an int, or integers as int32; those that a compiler will know as they are."""
    known = isinstance(value, np.ndarray)
    if not known and not is_whole(value):
        return value
    far = max(map(abs, extremes(value))) if known else abs(int(value))
    if far > FURTHEST:
        raise ValueError(f"offset holds {far}, expected no position beyond {FURTHEST} either way")
    return value.astype(np.int32) if known and value.ndim else int(value)


def whole_heads(config: Any, W_q: Any, W_k: Any, W_v: Any) -> None:
    """Check that no projection gave a part of its features, as after PyTorch's `parallelize_module`."""
    H, G, d, dv = config.num_heads, config.num_key_value_heads, config.key_dim, config.value_dim
    for name, X, heads, width in (("W_q", W_q, H, d), ("W_k", W_k, G, d), ("W_v", W_v, G, dv)):
        if X.shape[-1] != heads * width:
            raise ValueError(
                f"{name} gave {X.shape[-1]} features, expected {heads * width} for {heads} heads: a plan that splits "
                "kernels alone splits no heads; leave the layer out of it, and call mha.parallel.parallelize, or add "
                "mha.parallel.plan"
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
        raise TypeError(f"{name} is {brief(value)}, expected a dense array {kind}")
    _lies(name, value, place)


def _own_or_numpy(name: str, value: Any, kind: str, is_own: Callable[[Any], bool], place: Any) -> None:
    _array(name, value, kind, lambda X: is_own(X) or is_numpy(X), place)


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
        raise TypeError(f"valid_lens is {brief(valid_lens)}, expected integers of shape (batch,) or (batch, queries)")
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
        raise TypeError(f"mask is {brief(mask)}, expected booleans, True = may attend")
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
