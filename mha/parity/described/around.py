"""More than attention in the output that was given: the queries are added to it, or a norm comes after it."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from mha.config import numpy_dtype
from mha.parity.pipeline.parts import PART_OF
from mha.parity.pipeline.pieces import Array
from mha.parity.same.problem import Expected, Problem

ROWS = 5  # so few queries would fit any norm, whose scale and shift are not known
FITTED = 64  # queries by which scale and shift are found
EPSILONS = (1e-12, 1e-6, 1e-5, 1e-3)
NORMS = {"a layer norm": True, "an RMS norm": False}  # whether the mean is taken out


class Place(NamedTuple):
    """A place of a norm: words for it; before, added: what is normed and what is added after it, (rows, features).

    Each is given in float64 and in the layer's dtype.
    """

    words: str
    before: tuple[Array, Array]
    added: tuple[Array, Array]


@np.errstate(all="ignore")
def more_than_attention(asked: Problem, theirs: Mapping[str, Array]) -> str:
    """Say what comes after attention in their output, if that explains it, and all steps before it are the same; or "".

    theirs: in the compared shapes.
    """
    steps = {name: np.where(asked.matters(name), X, 0) for name, X in theirs.items() if name in PART_OF}
    different = [name for name, X in steps.items() if asked.expected(name).ratio(X) > 1]
    if different != ["output"]:
        return ""
    rows, dtype = asked.counted_rows, asked.config.dtype
    output, plain = (X["output"][rows] for X in (asked.oracle, asked.base))  # (rows, features)
    queries, there = asked.queries[rows], theirs["output"][rows].astype(np.float64)
    if not np.isfinite(there).all():  # NaN has every norm
        return ""
    nothing = (np.zeros_like(output), np.zeros_like(plain))
    places = [Place("of the output", (output, plain), nothing)]
    if queries.shape == output.shape:
        wide = queries.astype(np.float64)
        total = output + wide, plain + queries
        if same(dtype, there, *total):
            return "the queries are added to the output (a residual)"
        places.append(Place("of the sum of output and queries (a residual)", total, nothing))
        words = "of the output, to which the queries are added (a residual)"
        places.append(Place(words, (output, plain), (wide, queries)))
    if len(there) < ROWS:
        return ""
    for place in places:
        for name, wide, narrow in normed(place.before):
            scale, shift = fitted(wide[:FITTED], (there - place.added[0])[:FITTED], NORMS[name])
            right, rough = (X * scale + shift for X in (wide, narrow))
            rough = (rough.astype(numpy_dtype(dtype)) + place.added[1]).astype(np.float64)
            if same(dtype, there, right + place.added[0], rough):
                return f"{name} {place.words}"
    return ""


def same(dtype: Any, there: Array, oracle: Array, base: Array) -> bool:
    """Whether rows are the same as an oracle by the rule; base: the plain computation in the layer's dtype."""
    return Expected.of(dtype, oracle, base).ratio(there) <= 1


def normed(before: tuple[Array, Array]) -> Iterator[tuple[str, Array, Array]]:
    """Give the norms of rows, without scale and shift: the name of each, and its results of both precisions."""
    for name, centred in NORMS.items():
        for eps in EPSILONS:
            results = []
            for X in before:
                X = X.astype(np.promote_types(X.dtype, np.float32))
                X = X - X.mean(-1, keepdims=True) if centred else X
                results.append((X / np.sqrt((X * X).mean(-1, keepdims=True) + eps)).astype(np.float64))
            yield name, results[0], results[1]


def fitted(X: Array, Y: Array, shifted: bool) -> tuple[Array, Array]:
    """Find the scale and the shift of each feature with which X comes nearest to Y; shifted: False = no shift."""
    mean_x, mean_y = (Z.mean(0) if shifted else np.zeros(Z.shape[1]) for Z in (X, Y))
    X = X - mean_x
    scale = (X * (Y - mean_y)).sum(0) / np.maximum((X * X).sum(0), 1e-300)
    return scale, mean_y - scale * mean_x
