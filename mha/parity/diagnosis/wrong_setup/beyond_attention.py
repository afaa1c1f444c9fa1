"""Find more than attention in the given output: the queries are added to it, or a norm comes after it."""

import itertools
from collections.abc import Mapping

import numpy as np

from mha.core.options.config import numpy_dtype
from mha.core.options.names import FloatName
from mha.parity.diagnosis.pipeline.parts import PART_OF
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.search.sample import ratios
from mha.parity.rule.problem import Expected, Problem

ROWS = 5  # with fewer queries any norm fits, as its scale and shift are unknown
FITTED = 64  # queries by which scale and shift are found
EPSILONS = (1e-12, 1e-6, 1e-5, 1e-3)


# Norms of rows: a name, whether they subtract the mean, and an epsilon.
NORMS = [(*kind, eps) for kind in (("a layer norm", True), ("an RMS norm", False)) for eps in EPSILONS]


def normalize(X: Array, centred: bool, eps: float) -> Array:
    """Normalize rows (rows, features), without scale and shift, in float64; centred: whether to subtract the mean."""
    X = X.astype(np.promote_types(X.dtype, np.float32))
    X = X - X.mean(-1, keepdims=True) if centred else X
    return (X / np.sqrt((X * X).mean(-1, keepdims=True) + eps)).astype(np.float64)


@np.errstate(all="ignore")
def more_than_attention(asked: Problem, theirs: Mapping[str, Array]) -> str:
    """Describe what follows attention in their output, if that explains it and no step before it differs; else "".

    theirs: in the compared shapes.
    """
    far = ratios(asked, {name: X for name, X in theirs.items() if name in PART_OF})
    if [name for name in far if far[name] > 1] != ["output"]:
        return ""
    rows, dtype = asked.rows_that_count, asked.config.dtype
    output, plain = (X["output"][rows] for X in (asked.oracle, asked.base))  # (rows, features)
    queries, there = asked.queries[rows], theirs["output"][rows].astype(np.float64)
    if not np.isfinite(there).all():  # NaN has every norm
        return ""
    nothing = (np.zeros_like(output), np.zeros_like(plain))
    # Of each place of a norm: words, the rows before it, and those added after it, in float64 and in the layer's dtype.
    places = [("of the output", (output, plain), nothing)]
    if queries.shape == output.shape:
        wide = queries.astype(np.float64)
        total = output + wide, plain + queries
        if is_same(dtype, there, *total):
            return "the queries are added to the output (a residual)"
        places.append(("of the sum of output and queries (a residual)", total, nothing))
        words = "of the output, to which the queries are added (a residual)"
        places.append((words, (output, plain), (wide, queries)))
    if len(there) < ROWS:
        return ""
    for (words, before, added), (norm, centred, eps) in itertools.product(places, NORMS):
        few = slice(FITTED)
        scale, shift = fit_norm(normalize(before[0][few], centred, eps), (there - added[0])[few], centred)
        for some in (few, slice(None)):
            right, rough = (normalize(X[some], centred, eps) * scale + shift for X in before)
            rough = (rough.astype(numpy_dtype(dtype)) + added[1][some]).astype(np.float64)
            if not is_same(dtype, there[some], right + added[0][some], rough):
                break
        else:
            return f"{norm} {words}"
    return ""


def is_same(dtype: FloatName, there: Array, oracle: Array, base: Array) -> bool:
    """Return whether rows are the same as an oracle by the rule; base: the plain computation in the layer's dtype."""
    return Expected.of(dtype, oracle, base).ratio(there) <= 1


def fit_norm(X: Array, Y: Array, shifted: bool) -> tuple[Array, Array]:
    """Find the scale and the shift of each feature with which X comes nearest to Y; shifted: False = no shift."""
    mean_x, mean_y = (Z.mean(0) if shifted else np.zeros(Z.shape[1]) for Z in (X, Y))
    X = X - mean_x
    scale = (X * (Y - mean_y)).sum(0) / np.maximum((X * X).sum(0), 1e-300)
    return scale, mean_y - scale * mean_x
