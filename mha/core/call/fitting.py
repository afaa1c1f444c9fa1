"""Check that arrays fit a layer and each other, by type, shape and dtype, with the same errors on all backends.

A size that a compiler does not know yet (None) fits everything. `arrays` is a backend's module of that name; `place` is
where its arrays must lie, None = anywhere.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mha.core.call.declaration import ROWS, Argument, Call
from mha.core.options.checks import FLOATS, INTEGERS, brief, dtype_name, flag, is_numpy, is_whole, shape

WORDS = {"B": "batch", "H": "heads", "Q": "queries", "K": "keys"}


def fit_inputs(arrays: Any, config: Any, place: Any, queries: Any, keys: Any, values: Any, alone: bool = False) -> None:
    """Check queries, keys and values, or queries alone; raise TypeError or ValueError if one does not fit."""
    named = {"queries": queries} if alone else {"queries": queries, "keys": keys, "values": values}
    widths = (config.query_size, config.key_size, config.value_size)
    if not alone and queries is keys is values and len(set(widths)) == 1:  # the same array three times is checked once
        del named["keys"], named["values"]
    for (name, value), width in zip(named.items(), widths, strict=False):
        rows = f"(batch, {'queries' if name == 'queries' else 'key-value pairs'}, {width})"
        check_dense(arrays, place, name, value, f"of shape {rows}")
        if len(value.shape) != 3 or not _fits(value.shape[2], width):
            raise ValueError(f"{name} has shape {shape(value)}, expected {rows}")
        check_dtype(name, value, config.dtype)
    if alone:
        return
    batch, num_keys = queries.shape[0], keys.shape[1]
    for name, value in (("keys", keys), ("values", values)):
        if not _fits(value.shape[0], batch):
            raise ValueError(f"{name} has batch size {value.shape[0]}, expected {batch} as queries: nothing broadcasts")
    if not _fits(values.shape[1], num_keys):
        raise ValueError(f"values has {values.shape[1]} rows a sample, expected {num_keys}: one for each of the keys")


def fit_call(arrays: Any, config: Any, place: Any, sizes: tuple[Any, Any, Any], call: Call) -> None:
    """Check the other arguments of a call; sizes: (B, Q, K). Raise TypeError or ValueError if one does not fit."""
    full = dict(zip("BQKH", (*sizes, config.num_heads), strict=True))
    for name, row in ROWS.items():
        value = getattr(call, name)
        if row.holds == "switch":
            flag(name, value)
        elif value is not None or row.default is not None:
            _fit(arrays, config, place, name, row, value, full)
    flag("return_weights", call.return_weights)
    if call.training is not None:
        flag("training", call.training)


def fit_segments(call: Call, sizes: tuple[Any, Any]) -> Call:
    """Return the call with segments of queries where only those of keys are given; sizes: of queries and keys.

    Raises ValueError if segments, or positions beside them, are given on one side alone where that does not do.
    """
    if call.segments is None and call.key_segments is None:
        return call
    if call.cache is not None:
        raise ValueError("segments are given beside a cache, expected none: a cache has one sequence of each sample")
    alone = call.segments is None or call.key_segments is None
    if alone and not _fits(*sizes):
        given, other = ("segments", "key_segments") if call.key_segments is None else ("key_segments", "segments")
        raise ValueError(
            f"{given} is given alone for {sizes[0]} queries and {sizes[1]} keys, expected both: write {other}= too"
        )
    for one, other in (("positions", "key_positions"), ("key_positions", "positions")):
        if getattr(call, one) is not None and getattr(call, other) is None:
            raise ValueError(
                f"{one} is given beside segments without {other}, expected both or neither: write {other}= too, where "
                "each token is in its own segment"
            )
    return call._replace(segments=call.key_segments, key_segments=None) if call.segments is None else call


def _fit(arrays: Any, config: Any, place: Any, name: str, row: Argument, value: Any, full: dict[str, Any]) -> None:
    expected = row.expected.format(dtype=config.dtype)
    if "" in row.axes and is_whole(value):
        return
    if not (arrays.is_own(value) or is_numpy(value)):
        raise TypeError(f"{name} is {brief(value)}, expected {expected}")
    came = dtype_name(value.dtype)
    if row.holds == "floats":
        if hint := row.hint(came):
            raise TypeError(f"{name} has dtype {came}, expected {config.dtype} as the layer{hint}")
        check_dtype(name, value, config.dtype)
    elif came not in {"integers": INTEGERS, "booleans": ("bool",)}[row.holds]:
        raise TypeError(f"{name} has dtype {came}, expected {row.of_dtype or expected}{row.hint(came)}")
    shapes = {axes: tuple(full[letter] for letter in axes) for axes in row.axes}
    if not any(shape_fits(value.shape, one, row.broadcasts) for one in shapes.values()):
        raise ValueError(
            f"{name} has shape {shape(value)}, expected {_shapes_text(row, shapes)}"
            f"{_hint_axes(row, value, full)}{_hint_keys(name, row, value, full)}{_hint_heads(name, row, value, full)}"
        )
    check_place(name, value, place)


def _shapes_text(row: Argument, shapes: dict[str, tuple[Any, ...]]) -> str:
    """Describe the shapes that an argument may have, in numbers and in words."""
    numbers = _join_or([str(shapes[axes]) for axes in row.axes if axes])
    words = _join_or(
        [f"({', '.join(WORDS[letter] for letter in axes)}{',' * (len(axes) == 1)})" for axes in row.axes if axes]
    )
    if "" in row.axes:
        return f"{numbers}, {words}, or a plain int"
    return f"{numbers}: {words}" + (", where any size may be 1" if row.broadcasts else "")


def _join_or(texts: list[str]) -> str:
    """Join texts by commas, and by "or" before the last."""
    return " or ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _hint_axes(row: Argument, value: Any, full: dict[str, Any]) -> str:
    """Give a hint if the axes of lengths are the other way round."""
    turned = row.hides and "BQ" in row.axes and shape_fits(value.shape, (full["Q"], full["B"]))
    return "; it looks transposed" if turned else ""


def _hint_keys(name: str, row: Argument, value: Any, full: dict[str, Any]) -> str:
    """Give a hint if there is one number for each key of a sample, where one for each pair is expected."""
    of_keys = "BQK" in row.axes and shape_fits(value.shape, (full["B"], full["K"]))
    return f"; one for each key (batch, key-value pairs) is {name}[:, None]" if of_keys else ""


def _hint_heads(name: str, row: Argument, value: Any, full: dict[str, Any]) -> str:
    """Give a hint if samples and heads are one axis of an array of pairs, or the samples' axis is missing."""
    if "BHQK" not in row.axes or len(value.shape) != 3 or None in (*value.shape, *full.values()):
        return ""
    first, *pairs = value.shape
    if not shape_fits(tuple(pairs), (full["Q"], full["K"]), True):
        return ""
    if first == full["H"]:
        return f"; one for each head (heads, queries, keys) is {name}[None]"
    if first == full["B"] * full["H"]:
        negated = ", negated if True hides" if row.holds == "booleans" else ""
        sizes = full["B"], full["H"], *pairs
        return f"; one for each head of each sample (batch * heads, queries, keys) is {name}.reshape{sizes}{negated}"
    return ""


def check_dense(arrays: Any, place: Any, name: str, value: Any, kind: str) -> None:
    """Check that a value is an array of the backend, at the place."""
    if not arrays.is_own(value):
        raise TypeError(f"{name} is {brief(value)}, expected a dense array {kind}")
    check_place(name, value, place)


def check_place(name: str, value: Any, place: Any) -> None:
    """Check that an array is at the place; those of NumPy are copied to wherever they are needed."""
    if place is not None and not isinstance(value, np.ndarray) and value.device != place:
        raise ValueError(f"{name} is on device {value.device}, expected {place} as the others; move it there")


def check_dtype(name: str, value: Any, expected: str) -> None:
    """Check that an array has the layer's dtype."""
    came = dtype_name(value.dtype)
    if came != expected:
        fixes = f', in NumPy with {name}.astype("{expected}"), or make the layer with dtype="{came}"'
        raise TypeError(
            f"{name} has dtype {came}, expected {expected} as the layer; convert it{fixes if came in FLOATS else ''}"
        )


def shape_fits(got: Sequence[Any], expected: Sequence[Any], broadcasts: bool = False) -> bool:
    """Whether a shape is the expected one, as far as both are known; broadcasts: any of its sizes may be 1."""
    if len(got) != len(expected):
        return False
    return all((broadcasts and one == 1) or _fits(one, other) for one, other in zip(got, expected, strict=True))


def _fits(got: Any, expected: Any) -> bool:
    return got is None or expected is None or got == expected
