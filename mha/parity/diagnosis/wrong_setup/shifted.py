"""Find rotated queries and keys whose positions are all shifted by one number: other numbers, but the same scores.

With padding on the left, some count positions from the first token on, others from the first place.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mha.core.tables import few
from mha.parity.diagnosis.pipeline.pieces import Array, turn
from mha.parity.rule.layouts import FROM_SOFTMAX, PAIRS
from mha.parity.rule.problem import Problem

ROTATED = ("rotate_q", "rotate_k")


def undo_shifts(asked: Problem, taken: Mapping[str, Array], passed: Mapping[str, bool]) -> tuple[dict[str, Array], str]:
    """Rotate steps with shifted positions back: return them by name, {} if none is shifted, and a note.

    taken: arrays by name, in the compared shapes; passed: whether each is the same, in the order of `trace`. One shift
    of queries and keys leaves the scores the same. It has to be that of both; where one of them alone is given, what
    comes after it has to tell.
    """
    given = [name for name in ROTATED if name in taken]
    if all(passed[name] for name in given):
        return {}, ""
    shifts = [shift_of(asked, name, taken[name]) for name in given]
    alike = all(np.array_equal(shifts[0], shift) for shift in shifts)
    turned = {name: rotate_by(asked, -shifts[0], taken[name]) for name in given}
    fits = all(asked.expected(name).ratio(np.where(asked.matters(name), X, 0)) <= 1 for name, X in turned.items())
    after = next((passed[name] for name in passed if name in (*PAIRS, *FROM_SOFTMAX)), False)
    if not (alike and fits) or (len(given) == 1 and not after):
        return {}, ""
    by = ", ".join(few([*map(str, shifts[0])]))
    return turned, f"all positions of a sample are shifted by one number ({by}), no score is"


def shift_of(asked: Problem, name: str, X: np.ndarray) -> np.ndarray:
    """Find the shift of each sample, (B,), that comes nearest; of those that are equally near, the smallest."""
    rotary: Any = asked.config.rotary
    counts = asked.matters(name)
    ours, theirs = (components(np.where(counts, Y, 0), rotary) for Y in (asked.oracle[name], X))  # (B, H, T, n)
    given = [asked.call.offset, *(X for X in asked.call.position_ids().values() if X is not None)]
    far = max(asked.sizes.Q, asked.sizes.K) + max(int(np.abs(X).max(initial=0)) for X in given)
    shifts = np.array(sorted(range(-far, far + 1), key=abs))
    turns = np.exp(-1j * shifts[:, None] * np.array(rotary.angles()))  # (shifts, n)
    fits = (ours.conj() * theirs).sum((1, 2)) @ turns.T  # (B, shifts)
    return shifts[np.nan_to_num(fits.real).argmax(1)]


def components(X: np.ndarray, rotary: Any) -> np.ndarray:
    """Return the pairs of components that rotate together as complex numbers, (B, H, T, d) -> (B, H, T, n)."""
    n, X = len(rotary.angles()), X.astype(np.float64)
    if rotary.interleaved:
        return X[..., 0 : 2 * n : 2] + 1j * X[..., 1 : 2 * n : 2]
    return X[..., :n] + 1j * X[..., n : 2 * n]


def rotate_by(asked: Problem, shift: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Rotate heads (B, H, T, d) by so many positions a sample, (B,), in float64."""
    rotary: Any = asked.config.rotary
    return turn(X.astype(np.float64), shift[:, None], np.array(rotary.angles()), rotary.interleaved)
