"""Known mistakes between the split and the merge: in the scale, in what hides keys, in the softmax and the pooling."""

from dataclasses import replace
from functools import partial

import numpy as np

from mha.parity.why import pipeline
from mha.parity.why.mistakes import Mistake, hiding, one, scaled
from mha.parity.why.pipeline import Array, Plan

FILLS = (-1e9, -1e6, -1e5, -1e4, -1e3, -100.0, -50.0, -30.0, -20.0, -10.0)

# What hides


def longer(by: int, plan: Plan) -> Array:
    """Whether key j is below a length that is longer by so many."""
    return plan.key_places < plan.lengths + by


def tiled(plan: Plan) -> Array:
    """Whether key j is below the length at b * H + h in the lengths tiled, instead of repeated, for the heads."""
    B = len(plan.queries)
    lengths = np.tile(plan.lengths[:, 0], (plan.heads, 1, 1)).reshape(B, plan.heads, -1, 1)
    return plan.key_places < lengths


def lower_right(plan: Plan) -> Array:
    """Whether the order allows key j, if the last query sees the last key."""
    more = plan.keys.shape[1] - plan.queries.shape[1]
    return plan.key_places <= plan.query_places - plan.offsets[:, :, None, None] + more


def without_offset(plan: Plan) -> Array:
    """Whether the order allows key j, if queries begin at position 0."""
    return plan.key_places <= plan.query_places - plan.offsets[:, :, None, None]


def inverted(name: str, plan: Plan) -> Plan | None:
    """Invert one condition for a key to be seen."""
    if name not in plan.hiding:
        return None
    right = plan.hiding[name]
    return hiding(name, lambda plan: ~right(plan), plan)


# Softmax


def along(axis: int, plan: Plan) -> Plan:
    """Take the softmax over another axis."""

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        shares = pipeline.normalized(np.where(visible, scores, -np.inf).astype(scores.dtype), axis)
        return np.where(visible, shares, 0).astype(scores.dtype)

    return replace(plan, softmax=softmax, rows=slice(None))


def filled(fill: float, added: bool, plan: Plan) -> Plan | None:
    """Set hidden scores to a number, or add it to them, and hide nothing else."""
    if not plan.hiding:
        return None

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        low = fill if np.isfinite(fill) else np.finfo(scores.dtype).min
        hidden = scores + scores.dtype.type(low) if added else low
        return pipeline.normalized(np.where(visible, scores, hidden).astype(scores.dtype), -1)

    return replace(plan, softmax=softmax)


def uniform_over(all_keys: bool, plan: Plan) -> Plan | None:
    """Let a query that sees no key see all keys, with equal weights or by its scores."""
    if not plan.hiding:
        return None

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        empty = ~visible.any(-1, keepdims=True)
        shares = pipeline.softmax(plan, scores, visible)
        instead = 1 / scores.shape[-1] if all_keys else pipeline.normalized(scores, -1)
        return np.where(empty, instead, shares).astype(scores.dtype)

    return replace(plan, softmax=softmax)


def divided_by_nothing(plan: Plan) -> Plan | None:
    """Give NaN, which is 0 / 0, to a query that sees no key."""
    if not plan.hiding:
        return None

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        shares = pipeline.softmax(plan, scores, visible)
        return np.where(visible.any(-1, keepdims=True), shares, np.nan).astype(scores.dtype)

    return replace(plan, softmax=softmax)


def renormalised_late(plan: Plan) -> Plan | None:
    """Blank hidden keys after the softmax over all keys, so that weights do not add up to 1."""
    if not plan.hiding:
        return None

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        return np.where(visible, pipeline.normalized(scores, -1), 0).astype(scores.dtype)

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

OF_POOLING = (
    Mistake("no scale", "dot products are not scaled", ("scores",), one(partial(scaled, lambda plan: 1 / plan.scale))),
    Mistake("the scale of D for that of d", "1 / sqrt(D) of the model instead of 1 / sqrt(d) of a head", ("scores",),
            one(partial(scaled, lambda plan: plan.config.num_hiddens**-0.5 / plan.scale))),
    Mistake("the scale is applied twice", "dot products are scaled twice", ("scores",),
            one(partial(scaled, lambda plan: plan.scale))),
    Mistake("the scale lacks its root", "1 / d instead of 1 / sqrt(d)", ("scores",),
            one(partial(scaled, lambda plan: plan.config.key_dim**-1 / plan.scale))),
    Mistake("the mask is inverted", "True is taken as hide", ("weights",),
            {"": partial(inverted, "mask"), "that of the lengths": partial(inverted, "lengths"),
             "that of the causal order": partial(inverted, "order")}),
    Mistake("the mask is ignored", "no mask is applied", ("weights",),
            {"": partial(hiding, "mask", None)}),
    Mistake("the lengths are ignored", "padding is attended to", ("weights",), one(partial(hiding, "lengths", None))),
    Mistake("lengths are one too long", "j <= length instead of j < length", ("weights",),
            one(partial(hiding, "lengths", partial(longer, 1)))),
    Mistake("lengths are one too short", "j < length - 1 instead of j < length", ("weights",),
            one(partial(hiding, "lengths", partial(longer, -1)))),
    Mistake("lengths are tiled, not repeated", "heads get the lengths of other samples", ("weights",),
            one(partial(hiding, "lengths", tiled))),
    Mistake("causal order is ignored", "queries see what follows them", ("weights",),
            one(partial(hiding, "order", None))),
    Mistake("causal order is aligned to the lower right", "the last query sees the last key", ("weights",),
            one(partial(hiding, "order", lower_right))),
    Mistake("causal order is off by one", "j <= i + 1, or j < i, instead of j <= i", ("weights",),
            {"one too many": partial(hiding, "order", lambda plan: plan.key_places <= plan.query_places + 1),
             "one too few": partial(hiding, "order", lambda plan: plan.key_places < plan.query_places)}),
    Mistake("causal order begins again at every offset", "the offset is left out of the causal order", ("weights",),
            one(partial(hiding, "order", without_offset))),
    Mistake("everything is seen", "nothing hides keys", ("weights",),
            one(lambda plan: replace(plan, hiding={}) if plan.hiding else None)),
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
