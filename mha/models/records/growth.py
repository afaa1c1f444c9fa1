"""Bound the error of a module's output: its own rounding plus the error that it inherits from its input.

A module whose rows are computed one by one shows in A alone how much it enlarges a difference: its rows differ, too.
"""

import numpy as np

from mha.models.records.pairs import Pair, mean_square
from mha.parity.rule.rules import UNIT

OWN = 8.0  # units of rounding that a module may add
GROWN = 3.0  # times as much as A's rows show, a difference may grow
FEATURES = 64  # with fewer, a row's mean varies more, as in `mha.parity.rule.rules`
OTHERS = 8.0  # times the relative difference of its other inputs, or of what it may be made of
UNKNOWN = 32.0  # units of rounding of what is computed in a way that is not known, such as attention
TRIED = 128  # pairs of rows


def largest_growth(inputs: Pair, outputs: Pair) -> float:
    """Return how much a difference of A's input grows in its output at most."""
    if not inputs.floats or len(inputs.a) != len(outputs.a):
        size = float(inputs.size.max(initial=0.0))
        return float(outputs.size.max(initial=0.0)) / size if size and inputs.floats else 0.0
    N = len(inputs.a)
    into, out = inputs.size, outputs.size
    found = [float((out[into > 0] / into[into > 0]).max(initial=0.0))]
    if N > 1:
        random = np.random.default_rng(N)
        one = random.integers(N, size=TRIED)
        other = (one + random.integers(1, N, size=TRIED)) % N
        X, Y = (mean_square(Z.a[one].astype(np.float64) - Z.a[other].astype(np.float64)) for Z in (inputs, outputs))
        some = X / (1e3 * inputs.unit) > into[one]
        found.append(float((Y[some] / X[some]).max(initial=0.0)))
    return max(found)


def row_bounds(outputs: Pair, inputs: Pair | None, others: float, furthest: float = 0.0) -> np.ndarray:
    """Return the bound of the error of each row of an output, (N,).

    others: the largest relative difference of its other inputs; furthest: the largest position, if it is made of
    angles, which all ports compute in float32.
    """
    unit, size = outputs.unit, outputs.size
    found = (OWN * unit + OTHERS * others) * size + UNIT["float32"] * furthest
    if inputs is None:
        return found
    unit = max(unit, inputs.unit)
    found = found + OWN * (unit - outputs.unit) * size
    if not inputs.floats:
        wrong = inputs.far > 0
        if len(wrong) == len(size):
            return np.where(wrong, np.inf, found)
        return np.full_like(found, np.inf) if wrong.any() else found
    grows = max(largest_growth(inputs, outputs), np.finfo(float).tiny)
    if len(inputs.far) == len(size):
        far, into = inputs.far, inputs.size
    else:
        far, into = inputs.far.max(initial=0.0), inputs.size.max(initial=0.0)
    few = max(1.0, (FEATURES / max(1, min(inputs.a.shape[1], outputs.a.shape[1]))) ** 0.5)
    return np.nan_to_num(found + few * grows * (OWN * unit * into + GROWN * far), nan=np.inf)
