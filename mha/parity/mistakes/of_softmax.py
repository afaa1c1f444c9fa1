"""Known mistakes in the softmax, and with NaN."""

from dataclasses import replace
from functools import partial

import numpy as np

from mha.parity.mistakes.mistake import Mistake, one
from mha.parity.pipeline import pieces
from mha.parity.pipeline.pieces import Array
from mha.parity.pipeline.plan import Plan

FILLS = (-1e9, -1e6, -1e5, -1e4, -1e3, -100.0, -50.0, -30.0, -20.0, -10.0)


def along(axis: int, plan: Plan) -> Plan:
    """Take the softmax over another axis."""

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        shares = pieces.normalized(np.where(visible, scores, -np.inf).astype(scores.dtype), axis)
        return np.where(visible, shares, 0).astype(scores.dtype)

    return replace(plan, softmax=softmax, rows=slice(None))


def filled(fill: float, added: bool, plan: Plan) -> Plan | None:
    """Set hidden scores to a number, or add it to them, and hide nothing else."""
    if not plan.hiding:
        return None

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        low = fill if np.isfinite(fill) else np.finfo(scores.dtype).min
        hidden = scores + scores.dtype.type(low) if added else low
        return pieces.normalized(np.where(visible, scores, hidden).astype(scores.dtype), -1)

    return replace(plan, softmax=softmax)


def uniform_over(all_keys: bool, plan: Plan) -> Plan | None:
    """Let a query that sees no key see all keys, with equal weights or by its scores."""
    if not plan.hiding:
        return None

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        empty = ~visible.any(-1, keepdims=True)
        shares = pieces.softmax(plan, scores, visible)
        instead = 1 / scores.shape[-1] if all_keys else pieces.normalized(scores, -1)
        return np.where(empty, instead, shares).astype(scores.dtype)

    return replace(plan, softmax=softmax)


def divided_by_nothing(plan: Plan) -> Plan | None:
    """Give NaN, which is 0 / 0, to a query that sees no key."""
    if not plan.hiding:
        return None

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        shares = pieces.softmax(plan, scores, visible)
        return np.where(visible.any(-1, keepdims=True), shares, np.nan).astype(scores.dtype)

    return replace(plan, softmax=softmax)


def renormalised_late(plan: Plan) -> Plan | None:
    """Blank hidden keys after the softmax over all keys, so that weights do not add up to 1."""
    if not plan.hiding:
        return None

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        return np.where(visible, pieces.normalized(scores, -1), 0).astype(scores.dtype)

    return replace(plan, softmax=softmax)


def averaged(plan: Plan) -> Plan:
    """Average the weights over the heads."""
    return replace(plan, after=lambda X: np.broadcast_to(X.mean(1, keepdims=True), X.shape))


OF_NAN = (
    Mistake("rows without keys are NaN", "the softmax of a row of minus infinity divides 0 by 0", ("weights",),
            one(divided_by_nothing)),
    Mistake("NaN in padding comes through", "hidden values are multiplied by 0, and 0 * NaN is NaN", ("pooled",),
            one(lambda plan: replace(plan, blanked=False))),
)  # fmt: skip


OF_SOFTMAX = (
    Mistake("the softmax is over another axis", "weights add up to 1 over queries or heads, not keys", ("weights",),
            {"over queries": partial(along, 2), "over heads": partial(along, 1)}),
    Mistake("hidden keys are blanked after the softmax", "weights do not add up to 1", ("weights",),
            one(renormalised_late)),
    Mistake("weights are averaged over the heads", "every head pools with the mean of all weights", ("weights",),
            one(averaged)),
    Mistake("rows without keys are uniform", "a query that sees no key sees all padding alike, as in the book",
            ("weights",), {"": partial(uniform_over, True), "by its scores": partial(uniform_over, False)}),
    Mistake("weak mask fill", "hidden scores get a number that is not low enough, or add it", ("weights",),
            {f"{fill:g}{', added' * added}": partial(filled, fill, added) for fill in (-np.inf, *FILLS)
             for added in (False, True) if not (added and fill == -np.inf)}),
)  # fmt: skip
