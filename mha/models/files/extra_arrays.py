"""Compare the arrays beside the weights of two layers, such as T5's table of biases."""

import numpy as np

from mha.models.files.one_file import File, Layer
from mha.parity.rule.weight_rows import WeightRow, array_row
from mha.weights.schemes.table import SCHEMES

Names = tuple[str, str]  # of an array in A and in B; "" if it is missing


def rows_beside(
    files: tuple[File, File], layers: tuple[Layer, Layer], order: np.ndarray | None
) -> dict[Names, WeightRow]:
    """Compare the arrays beside two layers that both should have; return a row by their whole names.

    order: that of the heads, as of `array_row`.
    """
    (a, b), (first, second) = files, layers
    ours, theirs = a.beside(first), b.beside(second)
    rows = {}
    for names in partners(list(ours), list(theirs), first, second):
        whole = first[1] + names[0] if names[0] else "", second[1] + names[1] if names[1] else ""
        rows[whole] = array_row(names[0] or names[1], ours.get(names[0]), theirs.get(names[1]), order)
    return rows


def partners(ours: list[str], theirs: list[str], first: Layer, second: Layer) -> list[Names]:
    """Pair names of arrays, without prefixes: equal ones, then those that a scheme takes for the same: weight, gamma.

    A name without a partner is left out if the schemes differ, as the other file may have it elsewhere, or if a model
    makes the array itself.
    """
    pairs: list[Names] = [(name, name) for name in ours if name in theirs]
    if first[0] != second[0]:
        return pairs
    scheme = SCHEMES[first[0]]
    for pattern in scheme.beside:
        one, other = (next((name for name in names if scheme.pattern(name) == pattern), "") for names in (ours, theirs))
        if one != other:
            pairs.append((one, other))
    return pairs
