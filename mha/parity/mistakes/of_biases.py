"""Known mistakes with the bias of scores: its scale, sign, order of heads, and ALiBi's slopes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from mha.parity.mistakes.mistake import Mistake, one
from mha.parity.pipeline.pieces import Array
from mha.parity.pipeline.plan import Plan

ALIKE = 0.02  # biases are a rule's slopes times distances, if they are as near to it as this share of the largest


def biased_by(factor: Callable[[Plan], float], plan: Plan) -> Plan | None:
    """Multiply the bias of scores by a factor."""
    if plan.score_bias is None:
        return None
    hidden = plan.score_bias == -np.inf
    # Minus infinity stays: it hides, and 0 times infinity would be NaN.
    changed = np.where(hidden, plan.score_bias, np.where(hidden, 0, plan.score_bias) * factor(plan))
    return replace(plan, score_bias=changed.astype(plan.score_bias.dtype))


def mirrored(plan: Plan) -> Plan | None:
    """Take the bias at minus the distance; beyond the distances that there are, that of the furthest."""
    X, places = plan.score_bias, np.unique(plan.offsets)
    if X is None or min(X.shape[2:]) == 1 or len(places) > 1:
        return None
    Q, K = X.shape[2:]
    if not np.array_equal(X[:, :, 1:, 1:], X[:, :, :-1, :-1]):  # it goes not by the distance alone
        return replace(plan, score_bias=X.swapaxes(2, 3)) if Q == K else None  # (B or 1, H or 1, Q, K)
    by_distance = np.concatenate([X[:, :, :0:-1, 0], X[:, :, 0]], -1)  # (B or 1, H or 1, Q + K - 1), from -(Q - 1) on
    ahead = np.arange(K) - np.arange(Q)[:, None] - places[0]  # (Q, K)
    other = np.clip(-ahead + places[0] + Q - 1, 0, Q + K - 2)
    return replace(plan, score_bias=by_distance[:, :, other])  # (B or 1, H or 1, Q, K)


def repeated(plan: Plan) -> Plan | None:
    """Repeat the bias of each head for the samples, and split what comes of it into samples and heads."""
    X, B = plan.score_bias, len(plan.queries)
    if X is None or X.shape[:2] != (1, plan.heads):
        return None
    return replace(plan, score_bias=np.repeat(X[0], B, 0).reshape(B, *X.shape[1:]))  # (B, H, Q or 1, K or 1)


def slopes_of_paper(H: int) -> Array:
    """Return ALiBi's slopes: those of the next lower power of 2, then every other one of the next."""
    power = 2 ** int(np.log2(H))
    return np.array([2 ** (-8 * (h + 1) / power) for h in range(power)]
                    + [2 ** (-4 * (2 * h + 1) / power) for h in range(H - power)])  # fmt: skip


def slopes_of_number(H: int) -> Array:
    """Return the slopes by the formula for powers of 2."""
    return 2 ** (-8 * np.arange(1, H + 1) / H)


RULES = {"as of a power of 2": slopes_of_number, "with every other slope last": slopes_of_paper}


def of_slopes(name: str, plan: Plan) -> Plan | None:
    """Take ALiBi's slopes by another rule, if the bias goes by one, and their number is no power of 2."""
    X, H = plan.score_bias, plan.heads
    if X is None or X.shape[1] != H or H & (H - 1) == 0:
        return None
    seen, wide = np.isfinite(X), np.where(np.isfinite(X), X, 0).astype(np.float64)
    for other, rule in RULES.items():
        by_slope = wide / rule(H)[:, None, None]  # (B or 1, H, Q or 1, K)
        far = np.abs(by_slope - by_slope[:, :1]).max(initial=0)
        if other != name and far <= ALIKE * np.abs(by_slope).max(initial=0) and wide.any():
            changed = np.where(seen, by_slope * RULES[name](H)[:, None, None], X)
            return replace(plan, score_bias=changed.astype(X.dtype))
    return None


OF_BIASES = (
    Mistake("the bias is scaled too", "the bias of scores is multiplied by the scale", ("scores",),
            {"by the scale": partial(biased_by, lambda plan: plan.scale),
             "by 1 / sqrt(d)": partial(biased_by, lambda plan: plan.config.key_dim**-0.5)}),
    Mistake("the bias is not scaled", "the bias lacks the scale that the model gives it", ("scores",),
            {"by the scale": partial(biased_by, lambda plan: 1 / plan.scale),
             "by 1 / sqrt(d)": partial(biased_by, lambda plan: plan.config.key_dim**0.5)}),
    Mistake("the bias is ignored", "scores get no bias", ("scores",), one(partial(biased_by, lambda plan: 0.0))),
    Mistake("the bias has the other sign", "the bias of scores is subtracted", ("scores",),
            one(partial(biased_by, lambda plan: -1.0))),
    Mistake("the distance of the bias has the other sign", "the bias of query i and key j is that of i - j, not j - i",
            ("scores",), one(mirrored)),
    Mistake("the bias is repeated over the batch, not tiled", "heads get the bias of other heads", ("scores",),
            one(repeated)),
    Mistake("another rule of ALiBi's slopes", "for a number of heads that is no power of 2", ("scores",),
            {how: partial(of_slopes, how) for how in RULES}),
)  # fmt: skip
