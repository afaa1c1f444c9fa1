"""Rotated queries and keys whose positions are all shifted by one number: other numbers, but the same scores.

With padding on the left, some count positions from the first token on, others from the first place.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mha.parity.pipeline.pieces import rotate
from mha.parity.same.layouts import PAIRS, POOLED
from mha.parity.same.problem import Problem
from mha.parity.same.rules import error
from mha.parity.why.report import Row
from mha.tables import few

Arrays = dict[str, np.ndarray]
ROTATED = ("rotate_q", "rotate_k")


def unshifted(asked: Problem, rows: Sequence[Row], taken: Mapping[str, np.ndarray]) -> tuple[list[Row], Arrays]:
    """Take back a shift of all positions of a sample; rows and arrays without one stay as they are.

    rows: those of the report; taken: their arrays by name, in the compared shapes. One shift of queries and keys leaves
    the scores the same. It has to be that of both; where one of them alone is given, what comes after it has to tell.
    """
    given = [name for name in ROTATED if name in taken]
    if all(row.passed for row in rows if row.name in given):
        return list(rows), dict(taken)
    shifts = {name: shift_of(asked, name, taken[name]) for name in given}
    by = shifts[given[0]]
    alike = all(np.array_equal(by, shift) for shift in shifts.values())
    after = next((row for row in rows if row.name in (*PAIRS, *POOLED, "output")), None)
    turned = {name: turned_by(asked, -by, taken[name]) for name in given}
    there = {name: np.where(asked.matters(name), X, 0) for name, X in turned.items()}
    fits = all(asked.expected(name).ratio(X) <= 1 for name, X in there.items())
    if not (alike and fits) or (len(given) == 1 and not (after and after.passed)):
        return list(rows), dict(taken)
    found = []
    for row in rows:
        if row.name in given and not row.passed:
            note = (
                f"all positions of a sample are shifted by one number ({', '.join(few([*map(str, by)]))}), no score is"
            )
            far = error(there[row.name], asked.expected(row.name).X)
            row = dataclasses.replace(row, error=far, place=None, note=note)
        found.append(row)
    return found, dict(taken) | {name: X.astype(taken[name].dtype) for name, X in turned.items()}


def shift_of(asked: Problem, name: str, X: np.ndarray) -> np.ndarray:
    """Find the shift of each sample, (B,), that comes nearest; of those that are equally near, the smallest."""
    rotary: Any = asked.config.rotary
    counts = asked.matters(name)
    ours, theirs = (components(np.where(counts, Y, 0), rotary) for Y in (asked.oracle[name], X))  # (B, H, T, n)
    far = max(asked.sizes.Q, asked.sizes.K) + int(np.abs(asked.call.offset).max())
    shifts = np.array(sorted(range(-far, far + 1), key=abs))
    turns = np.exp(-1j * shifts[:, None] * np.array(rotary.angles()))  # (shifts, n)
    fits = (ours.conj() * theirs).sum((1, 2)) @ turns.T  # (B, shifts)
    return shifts[np.nan_to_num(fits.real).argmax(1)]


def components(X: np.ndarray, rotary: Any) -> np.ndarray:
    """Take the pairs of components that turn together as complex numbers, (B, H, T, d) -> (B, H, T, n)."""
    n, X = len(rotary.angles()), X.astype(np.float64)
    if rotary.interleaved:
        return X[..., 0 : 2 * n : 2] + 1j * X[..., 1 : 2 * n : 2]
    return X[..., :n] + 1j * X[..., n : 2 * n]


def turned_by(asked: Problem, shift: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Turn heads (B, H, T, d) by so many positions a sample, (B,), in float64."""
    rotary: Any = asked.config.rotary
    return rotate(X.astype(np.float64), shift[:, None], np.array(rotary.angles()), rotary.interleaved)
