"""Queries, keys and values packed group by group: the heads of queries of one, its head of keys, its head of values.

Letters: H heads, G groups, d the width of a head. GPT-NeoX has G = H, so that it is (H, 3, d); Falcon has fewer.
"""

from collections.abc import Sequence

import numpy as np


def count_groups(name: str, rows: int, output: str, merged: int, num_heads: int) -> int:
    """The number of groups in an array of so many rows, by the inputs of the output's kernel, which are H * d.

    Raises ValueError, which names both arrays, if there is no such number.
    """
    width, left = divmod(merged, num_heads)
    if left:
        raise ValueError(f"{output} has {merged} inputs, expected a multiple of num_heads = {num_heads}")
    groups, left = divmod(rows - merged, 2 * width)
    if left or groups < 1 or num_heads % groups:
        raise ValueError(
            f"{name} has {rows} outputs, expected {merged} and {2 * width} for each group of heads, the number of "
            f"groups being a divisor of num_heads = {num_heads}"
        )
    return groups


def unpacked(array: np.ndarray, part: int, num_heads: int, groups: int) -> np.ndarray:
    """The rows of queries (part 0), keys (1) or values (2) of an array of ((H + 2G) * d, ...)."""
    heads = num_heads // groups
    rows = (slice(heads), slice(heads, -1), slice(heads + 1, None))[part]
    split = array.reshape(groups, heads + 2, -1, *array.shape[1:])  # (G, H / G + 2, d, ...)
    return split[:, rows].reshape(-1, *array.shape[1:])  # (H * d or G * d, ...)


def packed(pieces: Sequence[np.ndarray], groups: int, width: int) -> np.ndarray:
    """The inverse of `unpacked`: one array of those of queries, keys and values."""
    inner = pieces[0].shape[1:]
    split = [piece.reshape(groups, -1, width, *inner) for piece in pieces]  # (G, H / G or 1, d, ...)
    return np.concatenate(split, 1).reshape(-1, *inner)  # ((H + 2G) * d, ...)
