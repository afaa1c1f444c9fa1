"""Check the axes and the packing of each array of a scheme; take packed arrays apart, and put them together.

A packed array is one block, or several, in each of which all its parts have heads: queries, keys and values one after
another (one block); group by group (the query heads of a group, then its head of keys and of values); or head by head
(the queries of a head, then their gate). A group is the H / G query heads that share one head of keys and values. In
GPT-NeoX G = H, so that the array is (H, 3, d); in Falcon G is smaller.

Letters: H heads, G groups, d the width of a head.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from mha.core.options import checks
from mha.core.options.config import DTYPES
from mha.weights import argument_names
from mha.weights.schemes.table import ArrayPlace

SHARED = "W_k", "W_v"  # the projections whose heads may be shared by several heads of queries


def check_each(arrays: Mapping[str, np.ndarray], places: Mapping[str, ArrayPlace], grouped: bool) -> None:
    """Check dtype, axes and packing of each array by itself; grouped: True if packed parts may have unequal widths."""
    first, *_ = (arrays[place.name] for place in places.values())
    for place in places.values():
        array = arrays[place.name]
        if (dtype := checks.dtype_name(array.dtype)) not in DTYPES:
            raise TypeError(f"{place.name} has dtype {dtype}, expected one of {', '.join(DTYPES)}")
        if dtype != checks.dtype_name(first.dtype):
            raise TypeError(f"{place.name} has dtype {dtype}, expected one dtype, {first.dtype} as the others")
        if array.ndim != len(place.axes):
            raise ValueError(f"{place.name} has shape {array.shape}, expected {len(place.axes)} axes, {place.axes}")
        if 0 in array.shape:
            raise ValueError(f"{place.name} has shape {array.shape}, expected no size of 0")
        if place.part and not grouped and array.shape[place.axes.index("o")] % place.part[1]:
            raise ValueError(
                f"{place.name} has shape {array.shape}, expected {place.part[1]} projections of equal width packed "
                f"along axis {place.axes.index('o')}"
            )


def heads_of(
    arrays: Mapping[str, np.ndarray], places: Mapping[str, ArrayPlace], num_heads: int | None, grouped: bool
) -> tuple[int, int | None]:
    """Return the numbers of heads, of queries and of keys, as given and as the arrays' axes show; they must agree.

    grouped: True if the second number may be another one; it is None if no axis shows it.
    """
    heads = argument_names.name("num_heads")
    counts = {} if num_heads is None else {"queries": (checks.size(heads, num_heads), heads)}
    for weight, place in places.items():
        if "H" in place.axes:
            count = arrays[place.name].shape[place.axes.index("H")]
            of = "keys" if grouped and weight.startswith(SHARED) else "queries"
            expected, source = counts.setdefault(of, (count, place.name))
            if count != expected:
                raise ValueError(f"{place.name} has {count} heads, expected {expected} as {source}")
    if "queries" not in counts:
        raise argument_names.LackingError(
            "num_heads",
            "an int",
            "neither names nor shapes show the number of heads; pass "
            f"{argument_names.setting(num_heads=argument_names.Code('...'))} as the model's configuration says",
        )
    return counts["queries"][0], counts["keys"][0] if "keys" in counts else None


def groups_of(arrays: Mapping[str, np.ndarray], places: Mapping[str, ArrayPlace], num_heads: int) -> int:
    """Return the number of groups in an array that packs queries, keys and values; num_heads if none does.

    Raises ValueError, which names the arrays, if (H + 2G) * d rows and the H * d inputs of the output show no such one.
    """
    place, output = places["W_q.kernel"], places["W_o.kernel"]
    if not place.part or place.by == "head":
        return num_heads
    rows, merged = len(arrays[place.name]), arrays[output.name].shape[output.axes.index("i")]
    width, left = divmod(merged, num_heads)
    if left:
        raise ValueError(f"{output.name} has {merged} inputs, expected a multiple of num_heads = {num_heads}")
    groups, left = divmod(rows - merged, 2 * width)
    if left or groups < 1 or num_heads % groups:
        raise ValueError(
            f"{place.name} has {rows} outputs, expected {merged} plus {2 * width} for each group of heads; the number "
            f"of groups must be a divisor of num_heads = {num_heads}"
        )
    bias = places.get("W_q.bias", place).name
    if len(arrays[bias]) != rows:
        raise ValueError(f"{bias} has {len(arrays[bias])} numbers, expected {rows} as {place.name}")
    return groups


def _blocks(place: ArrayPlace, num_heads: int, groups: int) -> tuple[int, list[int]]:
    """Return the number of blocks of a packed array, and how many heads each part has in a block."""
    if place.by == "head":
        return num_heads, [1, 1]
    if place.by == "group":
        return groups, [num_heads // groups, 1, 1]
    # Parts of one width are thirds, even if the number of heads, which is checked later, does not divide them.
    return 1, [1, 1, 1] if groups == num_heads else [num_heads, groups, groups]


def _unpack_part(array: np.ndarray, place: ArrayPlace, part: int, num_heads: int, groups: int) -> np.ndarray:
    """Return a part of a packed array, along its axis of outputs."""
    axis, (blocks, heads) = place.axes.index("o"), _blocks(place, num_heads, groups)
    rows, first = np.moveaxis(array, axis, 0), sum(heads[:part])
    split = rows.reshape(blocks, sum(heads), -1, *rows.shape[1:])  # (blocks, heads, d, ...)
    own = split[:, first : first + heads[part]].reshape(-1, *rows.shape[1:])  # (outputs, ...)
    return np.moveaxis(own, 0, axis)


def pack_parts(parts: Sequence[np.ndarray], place: ArrayPlace, num_heads: int, groups: int) -> np.ndarray:
    """Pack queries, keys and values into one array: the inverse of `unpack`."""
    axis, (blocks, heads) = place.axes.index("o"), _blocks(place, num_heads, groups)
    rows = [np.moveaxis(part, axis, 0) for part in parts]
    inner = rows[0].shape[1:]
    counted = zip(rows, heads, strict=True)
    split = [X.reshape(blocks, count, -1, *inner) for X, count in counted]  # (blocks, heads, d, ...)
    return np.moveaxis(np.concatenate(split, 1).reshape(-1, *inner), 0, axis)  # (outputs, ...)


def unpack(array: np.ndarray, place: ArrayPlace, num_heads: int, groups: int) -> np.ndarray:
    """Return a canonical weight from the array that is, or contains, it."""
    if place.by == "head" and len(array) % (2 * num_heads):
        raise ValueError(
            f"{place.name} has {len(array)} outputs, expected a multiple of {2 * num_heads}: of each of {num_heads} "
            "heads its queries and then their gate, of one width"
        )
    if place.part:
        array = _unpack_part(array, place, place.part[0], num_heads, groups)
    if place.axes == "oi":
        return array.T  # (in, out)
    if place.axes == "iHd":
        return array.reshape(len(array), -1)  # (in, H*d)
    if place.axes == "Hdo":
        return array.reshape(-1, array.shape[2])  # (H*dv, out)
    return array.reshape(-1) if place.axes == "Hd" else array  # (H*d,), or as it is


def with_axes(array: np.ndarray, axes: str, num_heads: int, width: int) -> np.ndarray:
    """Return a canonical weight with these axes; width: of a head."""
    if axes == "oi":
        return array.T  # (out, in)
    if axes == "iHd":
        return array.reshape(-1, num_heads, width)  # (in, H, d)
    if axes == "Hdo":
        return array.reshape(num_heads, width, -1)  # (H, dv, out)
    return array.reshape(num_heads, width) if axes == "Hd" else array  # (H, d), or as it is
