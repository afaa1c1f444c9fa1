"""Known mistakes in the scores: their scale, cap and bias."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from mha.parity.mistakes.mistake import Mistake, one, scaled
from mha.parity.pipeline import pieces
from mha.parity.pipeline.pieces import Array, Steps, widen
from mha.parity.pipeline.plan import Plan


def cap_last(plan: Plan) -> Plan | None:
    """Cap after the bias."""
    if plan.softcap is None or plan.score_bias is None:
        return None

    def bend(plan: Plan, X: Array) -> Steps:
        biased = X + widen(plan.of_pairs(plan.score_bias))
        capped = plan.softcap * np.tanh(biased / plan.softcap) if plan.softcap else biased
        return {"biased": biased, "capped": np.where(np.isinf(biased), biased, capped)}

    return replace(plan, bend=bend)


def cap_first(plan: Plan) -> Plan | None:
    """Cap the dot products before the scale."""
    if plan.softcap is None or plan.config.pooling != "dot":
        return None

    def bend(plan: Plan, X: Array) -> Steps:
        capped = plan.softcap * np.tanh(X / plan.scale / plan.softcap) * plan.scale if plan.softcap else X
        capped = capped.astype(X.dtype)
        return {"capped": capped} | pieces.bend(replace(plan, softcap=None), capped)

    return replace(plan, bend=bend)


def biased_by(factor: Callable[[Plan], float], plan: Plan) -> Plan | None:
    """Multiply the bias of scores by a factor."""
    if plan.score_bias is None:
        return None
    hidden = plan.score_bias == -np.inf
    # Minus infinity stays: it hides, and 0 times infinity would be NaN.
    changed = np.where(hidden, plan.score_bias, np.where(hidden, 0, plan.score_bias) * factor(plan))
    return replace(plan, score_bias=changed.astype(plan.score_bias.dtype))


def default_scale(plan: Plan) -> float:
    """Return the factor from the layer's scale to 1 / sqrt(d)."""
    return plan.config.key_dim**-0.5 / plan.scale


OF_SCALE = (
    Mistake("no scale", "dot products are not scaled", ("scores",), one(partial(scaled, lambda plan: 1 / plan.scale))),
    Mistake("the scale of D for that of d", "1 / sqrt(D) of the model instead of 1 / sqrt(d) of a head", ("scores",),
            one(partial(scaled, lambda plan: plan.config.num_hiddens**-0.5 / plan.scale))),
    Mistake("the scale is applied twice", "dot products are scaled twice", ("scores",),
            one(partial(scaled, lambda plan: plan.scale))),
    Mistake("the scale lacks its root", "1 / d instead of 1 / sqrt(d)", ("scores",),
            one(partial(scaled, lambda plan: plan.config.key_dim**-1 / plan.scale))),
)  # fmt: skip


OF_SCORES = (
    Mistake("the default scale for the model's own", "1 / sqrt(d) where the model has another scale", ("scores",),
            one(lambda plan: None if plan.config.scale is None else scaled(default_scale, plan))),
    Mistake("the default scale on top of the model's own", "both scales are applied", ("scores",),
            one(lambda plan: None if plan.config.scale is None
                else scaled(lambda plan: plan.config.key_dim**-0.5, plan))),
    Mistake("the cap comes after the bias", "the bias is capped too", ("scores",), one(cap_last)),
    Mistake("the cap comes before the scale", "dot products are capped, then scaled", ("scores",), one(cap_first)),
    Mistake("the cap is forgotten", "scores are not capped", ("scores",),
            one(lambda plan: None if plan.softcap is None else replace(plan, softcap=None))),
    Mistake("the bias is scaled too", "the bias of scores is multiplied by the scale", ("scores",),
            {"by the scale": partial(biased_by, lambda plan: plan.scale),
             "by 1 / sqrt(d)": partial(biased_by, lambda plan: plan.config.key_dim**-0.5)}),
    Mistake("the bias is not scaled", "the bias lacks the scale that the model gives it", ("scores",),
            {"by the scale": partial(biased_by, lambda plan: 1 / plan.scale),
             "by 1 / sqrt(d)": partial(biased_by, lambda plan: plan.config.key_dim**0.5)}),
    Mistake("the bias is ignored", "scores get no bias", ("scores",), one(partial(biased_by, lambda plan: 0.0))),
    Mistake("the bias has the other sign", "the bias of scores is subtracted", ("scores",),
            one(partial(biased_by, lambda plan: -1.0))),
)  # fmt: skip
