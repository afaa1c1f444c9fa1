"""Known mistakes in the scores: their scale, cap and bias; its sign, order of heads, and ALiBi's slopes."""

from collections.abc import Callable
from functools import partial

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Mistake, around, one, only_where, with_weights
from mha.parity.diagnosis.pipeline.pieces import Array, Steps, finite_bias, widen
from mha.parity.diagnosis.pipeline.plan import Plan, replace

ALIKE = 0.02  # biases are a rule's slopes times distances, if they are as near to it as this share of the largest


def cap_last(plan: Plan) -> Plan | None:
    """Cap after the bias."""
    if plan.score_bias is None:
        return None

    def bend(plan: Plan, X: Array) -> Steps:
        biased = X + finite_bias(plan)
        return {"biased": biased, "capped": plan.cap(plan, biased) if plan.softcap else biased}

    return replace(plan, bend=bend)


def cap_first(plan: Plan) -> Plan | None:
    """Cap the dot products before the scale."""
    if plan.config.pooling != "dot":
        return None
    return around("cap", lambda right, plan, X: (right(plan, X / plan.scale) * plan.scale).astype(X.dtype), plan)


def by_turning_width(plan: Plan) -> Plan | None:
    """Scale by the width that turns, where that is a part of the head."""
    rotary = plan.config.rotary
    if rotary is None or rotary.dim is None or rotary.dim == plan.config.key_dim:
        return None
    return multiply_scale(rotary.dim**-0.5 / plan.scale, plan)


def scale_before_bias(plan: Plan) -> Plan | None:
    """Scale the product with W_q alone, and add its bias afterwards."""
    bias = plan.weights.get("W_q.bias")
    if bias is None or plan.config.pooling != "dot" or "q" in plan.norms or plan.scale == 1:
        return None
    return with_weights(plan, {"W_q.bias": bias / bias.dtype.type(plan.scale)})


def multiply_scale(factor: float, plan: Plan) -> Plan | None:
    """Multiply the scale by a factor."""
    return replace(plan, scale=plan.scale * factor) if plan.config.pooling == "dot" else None


def of_scale(scale: float, plan: Plan) -> Plan | None:
    """Take another scale."""
    return replace(plan, scale=scale) if plan.config.pooling == "dot" else None


def multiply(times: float, plan: Plan) -> Plan:
    """Multiply scores, capped and biased, and sinks, before their softmax."""
    if "sinks" in plan.weights:
        plan = with_weights(plan, {"sinks": (widen(plan.weights["sinks"]) * times).astype(plan.queries.dtype)})
    return around("softmax", lambda right, plan, X, visible: right(plan, X * X.dtype.type(times), visible), plan)


# Of any number, see `search.numbers`.
ANOTHER_SCALE = Mistake("another scale", "dot products are multiplied by another number",
                        "multiply the dot products by the model's scale, 1 / sqrt(d) if it has no other",
                        ("scores",), {})  # fmt: skip
SCORES_MULTIPLIED = Mistake("scores are multiplied", "by a number, after the cap and the bias",
                            "give scores to the softmax as they are after the cap and the bias",
                            ("weights",), {})  # fmt: skip


OF_SCALE = (
    Mistake("no scale", "dot products are not scaled",
            "multiply the dot products by the scale: 1 / sqrt(d), d the width of a head, or the model's own",
            ("scores",), one(lambda plan: multiply_scale(1 / plan.scale, plan))),
    Mistake("the scale of D for that of d", "dot products are multiplied by 1 / sqrt(D), D the width of the model",
            "multiply the dot products by 1 / sqrt(d), d the width of a head", ("scores",),
            one(lambda plan: multiply_scale(plan.config.num_hiddens**-0.5 / plan.scale, plan))),
    Mistake("the scale is applied twice", "dot products are scaled twice",
            "multiply the dot products by the scale once: 1 / sqrt(d), or the model's own",
            ("scores",), one(lambda plan: multiply_scale(plan.scale, plan))),
    Mistake("the scale lacks its root", "dot products are multiplied by 1 / d",
            "multiply the dot products by 1 / sqrt(d), d the width of a head", ("scores",),
            one(lambda plan: multiply_scale(plan.config.key_dim**-1 / plan.scale, plan))),
    Mistake("the bias of W_q is not scaled", "queries are scaled before their bias is added",
            "add the bias of W_q first, then scale queries", ("q",),
            one(scale_before_bias)),
    Mistake("the scale of the rotated width",
            "dot products are multiplied by 1 / sqrt(dim) of the components that turn",
            "multiply the dot products by 1 / sqrt(d), d the whole width of a head",
            ("scores",), one(by_turning_width)),
)  # fmt: skip


OF_SCORES = (
    *only_where(
        lambda plan: plan.config.scale is not None,
        Mistake("the default scale for the model's own", "dot products are multiplied by 1 / sqrt(d)",
                "multiply the dot products by the scale of the model's configuration", ("scores",),
                one(lambda plan: multiply_scale(plan.config.key_dim**-0.5 / plan.scale, plan))),
        Mistake("the default scale on top of the model's own", "both scales are applied",
                "apply the model's own scale alone; give scale=1 to a function that scales by itself", ("scores",),
                one(lambda plan: multiply_scale(plan.config.key_dim**-0.5, plan)))),
    *only_where(
        lambda plan: plan.softcap is not None,
        Mistake("the cap comes after the bias", "the bias is capped too",
                "cap the scaled dot products first, then add the bias", ("scores",), one(cap_last)),
        Mistake("the cap comes before the scale", "dot products are capped, then scaled",
                "scale the dot products first, then cap them", ("scores",), one(cap_first)),
        Mistake("the cap is not multiplied back", "scores are tanh(scores / cap), between -1 and 1",
                "compute cap * tanh(scores / cap)", ("scores",),
                one(partial(around, "cap", lambda right, plan, X: right(plan, X) / plan.softcap))),
        Mistake("the cap is forgotten", "scores are not capped",
                "compute cap * tanh(scores / cap) of the scaled dot products",
                ("scores",), one(partial(replace, softcap=None)))),
)  # fmt: skip


# Biases


def multiply_bias(factor: Callable[[Plan], float], plan: Plan) -> Plan:
    """Multiply the bias of scores by a factor."""
    hidden = plan.score_bias == -np.inf
    # Minus infinity stays: it hides, and 0 times infinity would be NaN.
    changed = np.where(hidden, plan.score_bias, np.where(hidden, 0, plan.score_bias) * factor(plan))
    return replace(plan, score_bias=changed.astype(plan.score_bias.dtype))


def mirror(plan: Plan) -> Plan | None:
    """Take the bias at minus the distance; beyond the known distances, that of the furthest."""
    X, places = plan.score_bias, np.unique(plan.offsets)
    if min(X.shape[2:]) == 1 or len(places) > 1:
        return None
    Q, K = X.shape[2:]
    if not np.array_equal(X[:, :, 1:, 1:], X[:, :, :-1, :-1]):  # it goes not by the distance alone
        return replace(plan, score_bias=X.swapaxes(2, 3)) if Q == K else None  # (B or 1, H or 1, Q, K)
    by_distance = np.concatenate([X[:, :, :0:-1, 0], X[:, :, 0]], -1)  # (B or 1, H or 1, Q + K - 1), from -(Q - 1) on
    ahead = np.arange(K) - np.arange(Q)[:, None] - places[0]  # (Q, K)
    other = np.clip(-ahead + places[0] + Q - 1, 0, Q + K - 2)
    return replace(plan, score_bias=by_distance[:, :, other])  # (B or 1, H or 1, Q, K)


def repeat_for_samples(plan: Plan) -> Plan | None:
    """Repeat the bias of each head for the samples, and split the result into samples and heads."""
    X, B = plan.score_bias, len(plan.queries)
    if X.shape[:2] != (1, plan.heads):
        return None
    return replace(plan, score_bias=np.repeat(X[0], B, 0).reshape(B, *X.shape[1:]))  # (B, H, Q or 1, K or 1)


def slopes_of_paper(H: int, first: int = 1) -> Array:
    """Return ALiBi's slopes: those of the next lower power of 2, then every other one of the next.

    first: of the numbers that the heads have.
    """
    power = 2 ** int(np.log2(H))
    return np.array([2 ** (-8 * (h + first) / power) for h in range(power)]
                    + [2 ** (-4 * (2 * h + first) / power) for h in range(H - power)])  # fmt: skip


Rule = Callable[..., Array]
RULES: dict[str, Rule] = {
    "as of a power of 2": lambda H, first=1: 2 ** (-8 * np.arange(first, H + first) / H),
    "with every other slope last": slopes_of_paper,
}


def change_slopes(slopes: Callable[[Rule, Plan], Array | None], plan: Plan) -> Plan | None:
    """Take other slopes, if the bias goes by a rule of ALiBi's; slopes: from this rule to those, or None."""
    X, H = plan.score_bias, plan.heads
    if X.shape[1] != H or H == 1:
        return None
    seen, wide = np.isfinite(X), np.where(np.isfinite(X), X.astype(np.float64), 0)
    for rule in RULES.values():
        by_slope = wide / rule(H)[:, None, None]  # (B or 1, H, Q or 1, K)
        far = np.abs(by_slope - by_slope[:, :1]).max(initial=0)
        if far <= ALIKE * np.abs(by_slope).max(initial=0) and wide.any() and (other := slopes(rule, plan)) is not None:
            return replace(plan, score_bias=np.where(seen, by_slope * other[:, None, None], X).astype(X.dtype))
    return None


def of_slopes(name: str, plan: Plan) -> Plan | None:
    """Take ALiBi's slopes by another rule, if the bias goes by one, and their number is no power of 2."""
    H, other = plan.heads, RULES[name]
    return change_slopes(lambda rule, plan: None if rule is other or H & (H - 1) == 0 else other(H), plan)


def slopes_of_keys(rule: Rule, plan: Plan) -> Array | None:
    """Return the slopes of the heads of keys, each for the heads of queries that share it; None if none is shared."""
    return None if plan.groups == plan.heads else np.repeat(rule(plan.groups), plan.heads // plan.groups)


OF_BIASES = only_where(
    lambda plan: plan.score_bias is not None,
    Mistake("the bias is scaled too", "the bias of scores is multiplied by the scale",
            "scale the dot products first, then add the bias", ("scores",),
            {"by the scale": partial(multiply_bias, lambda plan: plan.scale),
             "by 1 / sqrt(d)": partial(multiply_bias, lambda plan: plan.config.key_dim**-0.5)}),
    Mistake("the bias is not scaled", "the bias lacks the scale that the model gives it",
            "multiply the bias by the scale, too, as the model does", ("scores",),
            {"by the scale": partial(multiply_bias, lambda plan: 1 / plan.scale),
             "by 1 / sqrt(d)": partial(multiply_bias, lambda plan: plan.config.key_dim**0.5)}),
    Mistake("the bias is ignored", "scores get no bias",
            "add the bias to the scaled dot products", ("scores",), one(partial(multiply_bias, lambda plan: 0.0))),
    Mistake("the bias has the other sign", "the bias of scores is subtracted",
            "add the bias to the scaled dot products, do not subtract it", ("scores",),
            one(partial(multiply_bias, lambda plan: -1.0))),
    Mistake("the distance of the bias has the other sign", "the bias of query i and key j is that of i - j, not j - i",
            "count the distance as j - i, from the query to the key",
            ("scores",), one(mirror)),
    Mistake("the bias is repeated over the batch, not tiled", "heads get the bias of other heads",
            "tile the biases of heads over the samples: row b * H + h has that of head h", ("scores",),
            one(repeat_for_samples)),
    Mistake("another rule of ALiBi's slopes", "for a number of heads that is no power of 2",
            "make the slopes by the rule with which the model was trained", ("scores",),
            {how: partial(of_slopes, how) for how in RULES}),
    Mistake("ALiBi's slopes of other heads", "or of another number of heads, as where each of several devices makes "
            "its own",
            "give head h slope h of all H heads, on every device", ("scores",),
            {how: partial(change_slopes, slopes) for how, slopes in {
                "reversed": lambda rule, plan: rule(plan.heads)[::-1],
                "one head further": lambda rule, plan: rule(plan.heads, 2),
                "one head back": lambda rule, plan: rule(plan.heads, 0),
                "of half as many heads, again":
                    lambda rule, plan: None if plan.heads % 2 else np.tile(rule(plan.heads // 2), 2),
                "of twice as many heads": lambda rule, plan: rule(2 * plan.heads)[:plan.heads],
                "of the heads of keys": slopes_of_keys}.items()}),
)  # fmt: skip
