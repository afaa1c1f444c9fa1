"""Known mistakes in the scores: their scale and cap."""

from functools import partial

from mha.parity.diagnosis.mistakes.mistake import Mistake, multiply_scale, one, with_weights
from mha.parity.diagnosis.pipeline.pieces import Array, Steps, finite_bias, widen
from mha.parity.diagnosis.pipeline.plan import Plan, replace
from mha.parity.rule.problem import Problem


def cap_last(plan: Plan) -> Plan | None:
    """Cap after the bias."""
    if plan.softcap is None or plan.score_bias is None:
        return None

    def bend(plan: Plan, X: Array) -> Steps:
        biased = X + finite_bias(plan)
        return {"biased": biased, "capped": plan.cap(plan, biased) if plan.softcap else biased}

    return replace(plan, bend=bend)


def cap_first(plan: Plan) -> Plan | None:
    """Cap the dot products before the scale."""
    if plan.softcap is None or plan.config.pooling != "dot":
        return None
    right = plan.cap
    return replace(plan, cap=lambda plan, X: (right(plan, X / plan.scale) * plan.scale).astype(X.dtype))


def cap_alone(plan: Plan) -> Plan | None:
    """Leave tanh(scores / cap) between -1 and 1."""
    right = plan.cap
    return None if plan.softcap is None else replace(plan, cap=lambda plan, X: right(plan, X) / plan.softcap)


def by_turning_width(plan: Plan) -> Plan | None:
    """Scale by the width that turns, where that is a part of the head."""
    rotary = plan.config.rotary
    if rotary is None or rotary.dim is None or rotary.dim == plan.config.key_dim:
        return None
    width = rotary.dim
    return multiply_scale(lambda plan: width**-0.5 / plan.scale, plan)


def scale_before_bias(plan: Plan) -> Plan | None:
    """Scale the product with W_q alone, and add its bias afterwards."""
    bias = plan.weights.get("W_q.bias")
    if bias is None or plan.config.pooling != "dot" or "q" in plan.norms or plan.scale == 1:
        return None
    return with_weights(plan, {"W_q.bias": bias / bias.dtype.type(plan.scale)})


def default_scale(plan: Plan) -> float:
    """Return the factor from the layer's scale to 1 / sqrt(d)."""
    return plan.config.key_dim**-0.5 / plan.scale


def own_scale(problem: Problem) -> float | None:
    """Return the scale of dot products; None with another pooling."""
    config = problem.config
    if config.pooling != "dot":
        return None
    return config.key_dim**-0.5 if config.scale is None else config.scale


def of_scale(scale: float, plan: Plan) -> Plan | None:
    """Take another scale."""
    return replace(plan, scale=scale) if plan.config.pooling == "dot" else None


def multiply(times: float, plan: Plan) -> Plan:
    """Multiply scores, capped and biased, and sinks, before their softmax."""
    right = plan.softmax
    if "sinks" in plan.weights:
        plan = with_weights(plan, {"sinks": (widen(plan.weights["sinks"]) * times).astype(plan.queries.dtype)})
    return replace(plan, softmax=lambda plan, scores, visible: right(plan, scores * scores.dtype.type(times), visible))


# Of any number, see `search.numbers`.
ANOTHER_SCALE = Mistake("another scale", "dot products are multiplied by another number", ("scores",), {})
SCORES_MULTIPLIED = Mistake("scores are multiplied", "by a number, after the cap and the bias", ("weights",), {})


OF_SCALE = (
    Mistake("no scale", "dot products are not scaled", ("scores",),
            one(partial(multiply_scale, lambda plan: 1 / plan.scale))),
    Mistake("the scale of D for that of d", "1 / sqrt(D) of the model instead of 1 / sqrt(d) of a head", ("scores",),
            one(partial(multiply_scale, lambda plan: plan.config.num_hiddens**-0.5 / plan.scale))),
    Mistake("the scale is applied twice", "dot products are scaled twice", ("scores",),
            one(partial(multiply_scale, lambda plan: plan.scale))),
    Mistake("the scale lacks its root", "1 / d instead of 1 / sqrt(d)", ("scores",),
            one(partial(multiply_scale, lambda plan: plan.config.key_dim**-1 / plan.scale))),
    Mistake("the bias of W_q is not scaled", "queries are scaled before their bias is added", ("q",),
            one(scale_before_bias)),
    Mistake("the scale of the rotated width", "1 / sqrt(dim) of the components that turn instead of 1 / sqrt(d)",
            ("scores",), one(by_turning_width)),
)  # fmt: skip


OF_SCORES = (
    Mistake("the default scale for the model's own", "1 / sqrt(d) where the model has another scale", ("scores",),
            one(lambda plan: None if plan.config.scale is None else multiply_scale(default_scale, plan))),
    Mistake("the default scale on top of the model's own", "both scales are applied", ("scores",),
            one(lambda plan: None if plan.config.scale is None
                else multiply_scale(lambda plan: plan.config.key_dim**-0.5, plan))),
    Mistake("the cap comes after the bias", "the bias is capped too", ("scores",), one(cap_last)),
    Mistake("the cap comes before the scale", "dot products are capped, then scaled", ("scores",), one(cap_first)),
    Mistake("the cap is not multiplied back", "tanh(scores / cap) without the factor cap", ("scores",), one(cap_alone)),
    Mistake("the cap is forgotten", "scores are not capped", ("scores",),
            one(lambda plan: None if plan.softcap is None else replace(plan, softcap=None))),
)  # fmt: skip
