"""Known mistakes with the rotation of a part of a head: its pairs, its frequencies, and what does not turn.

A part is the first `dim` components, paired as halves of this part; or, as in the rotation of type "proportional", the
first of the pairs of the whole head, behind which frequencies are 0.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Mistake, one, only_where
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.pipeline.plan import Plan, replace


def turning(plan: Plan) -> int:
    """Count the pairs up to the last one that turns; 0 without a rotation."""
    return 0 if plan.frequencies is None else len(np.trim_zeros(plan.frequencies, "b"))


def is_part(plan: Plan) -> bool:
    """Return whether only the first components turn, and are paired among themselves."""
    return plan.frequencies is not None and 2 * len(plan.frequencies) < plan.config.key_dim


def is_share(plan: Plan) -> bool:
    """Return whether all components are paired, and only the first pairs turn."""
    return 0 < turning(plan) < (0 if plan.frequencies is None else len(plan.frequencies))


def of_head(plan: Plan) -> Plan:
    """Count the frequencies over the whole head, of which only a part turns."""
    return replace(plan, frequencies=plan.base ** (-2 * np.arange(turning(plan)) / plan.config.key_dim))


def of_part(plan: Plan) -> Plan:
    """Count the frequencies over the pairs that turn, where they are counted over the whole head."""
    n, places = turning(plan), np.arange(len(plan.frequencies))
    return replace(plan, frequencies=plan.frequencies * plan.base ** (places / len(places) - places / n))


def over_head(last: bool, plan: Plan) -> Plan | None:
    """Pair the whole head, (i, i + d / 2), where a part is paired by itself; last: the last pairs turn."""
    if plan.config.key_dim % 2:
        return None
    rest = np.zeros(plan.config.key_dim // 2 - len(plan.frequencies))
    pairs = [rest, plan.frequencies] if last else [plan.frequencies, rest]
    return replace(plan, frequencies=np.concatenate(pairs), interleaved=False)


def over_part(plan: Plan) -> Plan:
    """Pair the turning components among themselves, (i, i + dim / 2), where the whole head is paired."""
    return replace(plan, frequencies=plan.frequencies[: turning(plan)], interleaved=False)


def whole_head(plan: Plan) -> Plan | None:
    """Turn the whole head, of which only a part should turn."""
    n = plan.config.key_dim // 2
    return None if plan.config.key_dim % 2 else replace(plan, frequencies=plan.base ** (-np.arange(n) / n))


def after_turning(change: Callable[[Plan, Array], Array], roles: str, plan: Plan) -> Plan:
    """Change heads that were turned, of these roles."""
    right = plan.rotate

    def rotate(plan: Plan, role: str, X: Array, places: Array) -> Array:
        turned = right(plan, role, X, places)
        return change(plan, turned) if role in roles else turned

    return replace(plan, rotate=rotate)


def without_rest(plan: Plan, X: Array) -> Array:
    """Set the components that do not turn to 0."""
    m, n = turning(plan), len(plan.frequencies)
    firsts = np.arange(m) * (2 if plan.interleaved else 1)
    kept = np.zeros(X.shape[-1], bool)
    kept[firsts] = kept[firsts + (1 if plan.interleaved else n)] = True
    return np.where(kept, X, 0)


def rest_first(plan: Plan, X: Array) -> Array:
    """Put the components that do not turn before the others."""
    return np.roll(X, -2 * len(plan.frequencies), -1)


def narrow_heads(plan: Plan) -> Plan | None:
    """Leave out the components that do not turn, and scale by the width of the others."""
    if plan.config.pooling != "dot" or plan.config.scale is not None:
        return None
    return replace(after_turning(without_rest, "qk", plan), scale=(2 * turning(plan)) ** -0.5)


def last_components(roles: str, plan: Plan) -> Plan:
    """Turn the last components of a head, of which only a part turns."""
    right = plan.rotate

    def rotate(plan: Plan, role: str, X: Array, places: Array) -> Array:
        kept = X.shape[-1] - 2 * len(plan.frequencies) if role in roles else 0
        return np.concatenate([X[..., :kept], right(plan, role, X[..., kept:], places)], -1)

    return replace(plan, rotate=rotate)


OF_ROTATED_PARTS = (
    *only_where(
        is_part,
        Mistake("frequencies of the whole head", "they are base ** (-2i / d), and only `dim` components turn",
                "take base ** (-2i / dim), dim the number of components that turn", ("q", "k"),
                one(of_head))),
    *only_where(
        is_share,
        Mistake("frequencies of the part that turns", "they are base ** (-2i / dim), dim the components that turn",
                "take base ** (-2i / d), d the width of the whole head",
                ("q", "k"), one(of_part))),
    *only_where(
        is_part,
        Mistake("the whole head turns", "all components turn, where only `dim` should",
                "turn the first `dim` components, and leave the others as they are", ("q", "k"), one(whole_head)),
        Mistake("pairs of the whole head", "components (i, i + d / 2) turn, not those within the first `dim`",
                "pair component i with i + dim / 2, among the first `dim`", ("q", "k"),
                {"": partial(over_head, False), "with its frequencies": lambda plan: over_head(False, of_head(plan)),
                 "the last of them": partial(over_head, True)})),
    *only_where(
        is_share,
        Mistake("pairs of the part that turns", "components (i, i + dim / 2) turn, not those of the whole head",
                "pair component i with i + d / 2, over the whole head",
                ("q", "k"), {"": over_part, "with its frequencies": lambda plan: over_part(of_part(plan))}),
        Mistake("the last pairs turn", "and the first ones do not",
                "turn the first pairs, and give the others, at the end, the frequency 0", ("q", "k"),
                one(lambda plan: replace(
                    plan, frequencies=np.roll(plan.frequencies, len(plan.frequencies) - turning(plan)))),
                rare=True)),
    *only_where(
        lambda plan: is_part(plan) or is_share(plan),
        Mistake("components that do not turn are dropped", "they count as 0, or the heads end before them",
                "put the components that do not turn behind those that do: all d count in the scores",
                ("q", "k", "scores"), {"": partial(after_turning, without_rest, "qk"),
                                       "and scaled by the width of the others": narrow_heads}, rare=True)),
    *only_where(
        is_part,
        Mistake("components that turn come last", "in queries or keys alone, the others are put first",
                "put what turns first and the others behind it, in queries and keys alike", ("q", "k"),
                {"of queries": partial(after_turning, rest_first, "q"),
                 "of keys": partial(after_turning, rest_first, "k")}, rare=True),
        Mistake("the last components turn", "the last `dim` components of a head turn instead of the first",
                "turn the first `dim` components of a head", ("q", "k"),
                {"": partial(last_components, "qk"), "of queries": partial(last_components, "q"),
                 "of keys": partial(last_components, "k")})),
)  # fmt: skip
