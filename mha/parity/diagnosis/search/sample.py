"""Choose the few samples, queries and features with the largest errors: a search computes these alone."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mha.parity.diagnosis.mistakes.bench import ALL
from mha.parity.diagnosis.pipeline.parts import PART_OF
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.rule.problem import Problem

WORST, SPREAD = 3, 3  # queries with the largest errors, and others
FEATURES = 32  # of the output, with the largest errors
FEW = 16  # queries: up to so many, all are computed


class Focus(NamedTuple):
    """Some samples, and the queries of each; of the output, some features.

    Each is a list of whole numbers, queries a tuple; or a slice for all.
    """

    samples: Any = ALL
    rows: Any = ALL
    features: Any = ALL

    def wider(self, sample: int, row: int | None) -> "Focus":
        """Add a sample, and a query."""
        rows = self.rows if row is None or self.rows == ALL else tuple(sorted({*self.rows, row}))
        return Focus(list(dict.fromkeys((*self.samples, sample))), rows, self.features)


def ratios(problem: Problem, theirs: Mapping[str, Array]) -> dict[str, float]:
    """Return for each array how far it is from what is expected, by its bound."""
    return {name: problem.expected(name).ratio(problem.blank_unused(name, X)) for name, X in theirs.items()}


def distances(X: Array, expected: Array) -> Array:
    """Return the errors number by number, finite: 1e300 where only one of the two is NaN or infinite."""
    far = np.where((expected == X) | (np.isnan(X) & np.isnan(expected)), 0, np.abs(X - expected))
    return np.nan_to_num(far, nan=1e300, posinf=1e300)


def errors_by_sample(X: Array, expected: Array) -> Array:
    """Sum the errors of each sample, (B,)."""
    return distances(X, expected).reshape(len(X), -1).sum(1)


def errors_by_query(name: str, X: Array, expected: Array) -> Array | None:
    """Sum the errors of each query of each sample, (B, Q); None for an array of keys, values or slots."""
    if PART_OF[name] in ("k", "v", "cache"):
        return None
    far = distances(X, expected)
    return far.sum(2) if far.ndim == 3 else far.sum((1, 3))


def last_wrong(problem: Problem, theirs: Mapping[str, Array]) -> tuple[str, Array, Array] | None:
    """Return the last array that exceeds its bound: its name, theirs and what is expected; None if none does."""
    for name in reversed(list(theirs)):
        expected, there = problem.expected(name), problem.blank_unused(name, theirs[name])
        if expected.ratio(there) > 1:
            return name, there, expected.X
    return None


def worst_first(problem: Problem, theirs: Mapping[str, Array]) -> list[int]:
    """Order the samples by their error, the largest first, in the last array that exceeds its bound."""
    if (wrong := last_wrong(problem, theirs)) is None:
        return list(range(len(problem.queries)))
    return np.argsort(-errors_by_sample(*wrong[1:]), kind="stable").tolist()


def telling(problem: Problem, theirs: Mapping[str, Array], sample: int) -> Any:
    """Choose queries: those with the largest errors in a sample, some far from each other, one that sees fewest keys.

    Where NaN or infinity may spread from one query to the others, or where there are few, all are chosen.
    """
    Q = problem.sizes.Q
    inputs = problem.queries, problem.keys, problem.values
    if Q <= FEW or not all(np.isfinite(X.astype(np.float32)).all() for X in inputs):
        return ALL
    seen = problem.visible[sample].sum(2)  # (H, Q)
    chosen = {*np.linspace(0, Q - 1, SPREAD).astype(int).tolist(), int(seen.min(0).argmin())}
    chosen.add(int(np.where(seen.min(0) > 0, seen.min(0), Q * problem.sizes.K).argmin()))
    wrong = last_wrong(problem, theirs)
    if wrong is not None and (far := errors_by_query(*wrong)) is not None:
        chosen |= set(np.argsort(-far[sample], kind="stable")[:WORST].tolist())
    return tuple(sorted(chosen))


def features_of(problem: Problem, theirs: Mapping[str, Array]) -> Any:
    """Choose the features of the output with the largest errors; where there are few, all."""
    if "output" not in theirs or problem.config.num_hiddens <= FEATURES:
        return ALL
    far = distances(problem.blank_unused("output", theirs["output"]), problem.expected("output").X).sum((0, 1))
    return sorted(np.argsort(-far, kind="stable")[:FEATURES].tolist())
