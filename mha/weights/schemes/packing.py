"""Pack and unpack queries, keys and values in one array: one after another, group by group, or head by head.

A group is the H / G query heads that share one head of keys and values. Group by group means: the query heads of a
group, then its head of keys and of values, then the next group. Head by head: the queries of a head, then their gate.
Letters: H heads, G groups, d the width of a head. In GPT-NeoX G = H, so that the array is (H, 3, d); in Falcon G is
smaller.
"""

from collections.abc import Sequence

import numpy as np


def count_groups(name: str, rows: int, output: str, merged: int, num_heads: int) -> int:
    """Return the number of groups G in an array of (H + 2G) * d rows; merged: H * d, the output kernel's inputs.

    Raises ValueError, which names both arrays, if there is no such number.
    """
    width, left = divmod(merged, num_heads)
    if left:
        raise ValueError(f"{output} has {merged} inputs, expected a multiple of num_heads = {num_heads}")
    groups, left = divmod(rows - merged, 2 * width)
    if left or groups < 1 or num_heads % groups:
        raise ValueError(
            f"{name} has {rows} outputs, expected {merged} plus {2 * width} for each group of heads; the number of "
            f"groups must be a divisor of num_heads = {num_heads}"
        )
    return groups


def unpack_section(array: np.ndarray, part: int, num_heads: int, groups: int, axis: int) -> np.ndarray:
    """Return queries (part 0), keys (1) or values (2) that lie one after another along an axis of (H + 2G) * d."""
    heads, count = num_heads + 2 * groups, array.shape[axis]
    return np.split(array, [count * num_heads // heads, count * (num_heads + groups) // heads], axis)[part]


def unpack_groups(array: np.ndarray, part: int, num_heads: int, groups: int) -> np.ndarray:
    """Return the rows of queries (part 0), keys (1) or values (2) of an array of ((H + 2G) * d, ...)."""
    heads = num_heads // groups
    rows = (slice(heads), slice(heads, -1), slice(heads + 1, None))[part]
    split = array.reshape(groups, heads + 2, -1, *array.shape[1:])  # (G, H / G + 2, d, ...)
    return split[:, rows].reshape(-1, *array.shape[1:])  # (H * d or G * d, ...)


def unpack_heads(name: str, array: np.ndarray, part: int, num_heads: int) -> np.ndarray:
    """Return the rows of queries (part 0) or of their gate (1) of an array of (H * 2d, ...).

    Raises ValueError, which names the array, if it has another number of rows.
    """
    if len(array) % (2 * num_heads):
        raise ValueError(
            f"{name} has {len(array)} outputs, expected a multiple of {2 * num_heads}: of each of {num_heads} heads "
            "its queries and then their gate, of one width"
        )
    split = array.reshape(num_heads, 2, -1, *array.shape[1:])  # (H, 2, d, ...)
    return split[:, part].reshape(-1, *array.shape[1:])  # (H * d, ...)


def pack_groups(pieces: Sequence[np.ndarray], groups: int, width: int) -> np.ndarray:
    """Pack arrays of queries, keys and values into one: the inverse of `unpack_groups`."""
    inner = pieces[0].shape[1:]
    split = [piece.reshape(groups, -1, width, *inner) for piece in pieces]  # (G, H / G or 1, d, ...)
    return np.concatenate(split, 1).reshape(-1, *inner)  # ((H + 2G) * d, ...)
