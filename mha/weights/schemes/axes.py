"""Check the axes and the packing of each array of a scheme; take packed arrays apart, and put them together."""

from collections.abc import Mapping

import numpy as np

from mha.core.options import checks
from mha.core.options.config import DTYPES
from mha.weights import argument_names
from mha.weights.schemes import packing
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
    """Return the number of groups in an array that packs queries, keys and values; num_heads if none does."""
    place, output = places["W_q.kernel"], places["W_o.kernel"]
    if not place.part or place.by == "head":
        return num_heads
    merged = arrays[output.name].shape[output.axes.index("i")]
    groups = packing.count_groups(place.name, len(arrays[place.name]), output.name, merged, num_heads)
    bias = places.get("W_q.bias", place).name
    if len(arrays[bias]) != len(arrays[place.name]):
        raise ValueError(f"{bias} has {len(arrays[bias])} numbers, expected {len(arrays[place.name])} as {place.name}")
    return groups


def unpack(array: np.ndarray, place: ArrayPlace, num_heads: int, groups: int) -> np.ndarray:
    """Return a canonical weight from the array that is, or contains, it."""
    if place.part and place.by == "head":
        array = packing.unpack_heads(place.name, array, place.part[0], num_heads)
    elif place.part and place.by == "group":
        array = packing.unpack_groups(array, place.part[0], num_heads, groups)
    elif place.part:
        array = packing.unpack_section(array, place.part[0], num_heads, groups, place.axes.index("o"))
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
