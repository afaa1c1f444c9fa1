"""Known mistakes with positions: the rotation of queries and keys, its frequencies, its magnitude; the temperature.

Where a part of a head turns, it is the first `dim` components, paired as halves of this part; or, as in the rotation of
type "proportional", the first of the pairs of the whole head, behind which frequencies are 0.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Mistake, around, one, only_where
from mha.parity.diagnosis.pipeline import pieces
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.pipeline.plan import Plan, replace
from mha.parity.rule.rounding import through

BASES = (10000.0, 500000.0, 1e6, 100000.0, 1e7, 160000.0, 50000.0, 25000.0, 1000.0, 100.0)
FACTORS = (8, 32, 4, 2, 16)  # of linear scaling
TABLES = (512, 1024, 2048, 4096, 8192)  # positions


def rotates(plan: Plan) -> bool:
    """Return whether queries and keys are rotated."""
    return plan.frequencies is not None


def turn_by(places: Callable[[Plan, str, Array], Array], plan: Plan) -> Plan:
    """Turn by other positions; places: a function of the plan, the role and those without this mistake."""
    before = plan.rotary_offsets
    if before is None:
        return replace(plan, rotary_offsets=places)
    return replace(plan, rotary_offsets=lambda plan, role, X: places(plan, role, before(plan, role, X)))


def of_base(base: float | None, plan: Plan) -> Plan:
    """Take the frequencies of another base; None = those of the same base, without the model's own scaling."""
    n = len(plan.frequencies)
    frequencies = (base or plan.base) ** (-np.arange(n) / n)
    kept = frequencies if base is None else np.where(plan.frequencies == 0, 0, frequencies)
    return replace(plan, base=base or plan.base, frequencies=kept)


def of_usual_base(base: float, plan: Plan) -> Plan | None:
    """Take the frequencies of another base, unless they are those of the whole head: that is a mistake of its own."""
    of_head = np.isclose(base, plan.base ** (2 * len(plan.frequencies) / plan.config.key_dim), rtol=1e-9)
    return None if of_head else of_base(base, plan)


def slower(factor: float, base: float | None, plan: Plan) -> Plan | None:
    """Divide all frequencies of a base by a factor; None = the layer's base, the only one if they are plain."""
    if base and plan.config.rotary and plan.config.rotary.frequencies is None:
        return None
    made = of_base(base, plan)
    return replace(made, frequencies=made.frequencies / factor)


def mix_up(plan: Plan) -> Plan | None:
    """Slow the fast pairs down by the factors of the slow ones, and the other way round."""
    plain = of_base(None, plan).frequencies
    shares = plan.frequencies / plain
    if np.ptp(shares) < 1e-6:
        return None
    return replace(plan, frequencies=plain * (shares.max() + shares.min() - shares))


def frequency_ratios(plan: Plan) -> Array | None:
    """Return the model's own frequencies by those of its base alone; None if these are the same."""
    shares = plan.frequencies / of_base(None, plan).frequencies
    return None if np.abs(shares - 1).max() < 1e-6 else shares


def scale_back(gradual: bool, plan: Plan) -> Plan | None:
    """Multiply frequencies by the factor that the model divides them by; gradual: blend 1 and it as the model does.

    Pairs that do not turn stay so.
    """
    if (shares := frequency_ratios(plan)) is None or not (turning := shares > 0).any():
        return None
    inverse = np.divide(1, shares, out=np.zeros_like(shares), where=turning)
    if gradual:
        least = shares[turning].min()
        inverse = np.where(turning, 1 + (1 - shares) / least, 0)  # 1 - s + s * f for 1 - s + s / f
        if least == 1 or (np.ptp(shares[turning]) < 1e-6):
            return None
    return replace(plan, frequencies=plan.frequencies / np.where(turning, shares, 1) * inverse)


def upside_down(plain: bool, plan: Plan) -> Plan | None:
    """Take base ** (2i / dim) for base ** (-2i / dim); plain: with the model's own scaling as it is.

    Such angles are large, and their rounding is that of float32 in an implementation in a lower precision.
    """
    if plain and frequency_ratios(plan) is None:
        return None
    inverse = np.divide(1, plan.frequencies, out=np.zeros_like(plan.frequencies), where=plan.frequencies != 0)
    if plain:
        inverse = plan.frequencies / of_base(None, plan).frequencies ** 2
    angles = plan.angles if plan.queries.dtype == np.float64 else np.dtype("float32")
    return replace(plan, frequencies=inverse, angles=angles)


def whole_heads(plan: Plan) -> Plan | None:
    """Multiply the scores by the square of the magnitude, where only some components turn."""
    if 2 * len(plan.frequencies) == plan.config.key_dim:
        return None
    return replace(plan, magnified=(), scale=plan.scale * plan.magnitude**2)


def values_too(plan: Plan) -> Plan | None:
    """Turn values by the positions of keys, if their heads are wide enough."""
    if plan.config.value_dim < 2 * len(plan.frequencies):
        return None
    places = plan.key_places[0, 0]
    return around("share_values", lambda right, X, times: right(pieces.rotate(plan, "v", X, places), times), plan)


def turn_cached_again(plan: Plan, role: str, places: Array) -> Array:
    """Return the positions of keys doubled, if they are before the first query: those that a cache holds."""
    return np.where(places < plan.offsets[:, :1], 2 * places, places) if role == "k" else places


# Of bases beyond these, see `search.numbers`.
ANOTHER_BASE = Mistake("another base", "frequencies of another base of the rotation",
                       "take the base and its scaling from the model's configuration (rope_theta, rope_scaling)",
                       ("q", "k"), {f"{base:g}": partial(of_usual_base, base) for base in BASES}
                       | {"the same, without the model's own scaling": partial(of_base, None)})  # fmt: skip


OF_ROTATIONS = only_where(
    rotates,
    Mistake("rotary components are paired the other way", "halves for neighbours, or neighbours for halves",
            "pair (i, i + d / 2) where the model has halves, (2i, 2i + 1) where it has neighbours", ("q", "k"),
            one(lambda plan: replace(plan, interleaved=not plan.interleaved))),
    Mistake("the rotation is off by one", "queries or keys turn as their neighbours should",
            "turn row i by position offset + i, counted from 0, in queries and keys alike", ("q", "k"),
            {"queries one further": partial(turn_by, lambda plan, role, places: places + (role == "q")),
             "queries one back, or keys one further":
                 partial(turn_by, lambda plan, role, places: places + (role == "k")),
             "both, from position 1 on": partial(turn_by, lambda plan, role, places: places + 1)}),
    Mistake("the rotation begins again at every offset", "positions of queries start at 0 after a cache",
            "turn query i by position offset + i, offset the number of tokens before", ("q", "k"),
            {"of queries": partial(turn_by, lambda plan, role, X: X - plan.offsets if role == "q" else X)}),
    Mistake("the rotation goes by rows", "the positions that are given are left out of the rotation",
            "turn by the positions that are given, not by rows", ("q", "k"),
            one(lambda plan: turn_by(lambda plan, role, places: np.arange(places.shape[1])[None], plan)
                if plan.places_are_given else None)),
    Mistake("all samples turn as the first", "positions of the first sample are taken for all",
            "turn each sample by its own positions, (B, T)", ("q", "k"),
            one(lambda plan: turn_by(lambda plan, role, places: places[:1], plan) if len(plan.queries) > 1 else None)),
    Mistake("the rotation goes backwards", "sines have the other sign",
            "turn a pair (a, b) into (a * cos - b * sin, b * cos + a * sin)", ("q", "k"),
            one(partial(turn_by, lambda plan, role, places: -places))),
    Mistake("the rotation is forgotten", "queries or keys do not turn",
            "turn queries and keys by their positions, before the dot products", ("q", "k"),
            {"of both": partial(turn_by, lambda plan, role, places: 0 * places),
             "of queries": partial(turn_by, lambda plan, role, places: places * (role != "q")),
             "of keys": partial(turn_by, lambda plan, role, places: places * (role != "k"))}),
    ANOTHER_BASE,
    Mistake("frequencies are scaled linearly", "all are divided by one factor, where the model has its own, or none is",
            "scale frequencies by the model's own rule (rope_scaling) alone, if it has one",
            ("q", "k"),
            {f"by {factor}{f', base {base:g}' if base else ''}": partial(slower, factor, base)
             for base in (None, 500000.0) for factor in FACTORS}),
    Mistake("keys turn twice", "as a cache stores them, and again as they are read",
            "turn keys once: as they are stored or as they are read, not both", ("q", "k"),
            {"": partial(turn_by, lambda plan, role, places: places * (1 + (role == "k"))),
             "those before the first query": partial(turn_by, turn_cached_again),
             "queries, too": partial(turn_by, lambda plan, role, places: 2 * places)}),
    Mistake("values turn, too", "the rotation is applied to values as to keys",
            "turn queries and keys alone", ("pooled",), one(values_too)),
    Mistake("slow and fast pairs are mixed up", "the fast ones are slowed down by what the slow ones should, as where "
            "the ends of YaRN's ramp are swapped",
            "slow down the slow pairs, and leave the fast ones: swap the ends of the ramp", ("q", "k"), one(mix_up)),
    *only_where(
        lambda plan: plan.magnitude != 1,
        Mistake("the magnitude of the rotation is forgotten", "cosines and sines are not multiplied by it",
                "multiply cosines and sines by the magnitude (attention_factor), for queries and keys", ("q", "k"),
                {"": partial(replace, magnified=()), "of keys": partial(replace, magnified=("q",)),
                 "of queries": partial(replace, magnified=("k",))}),
        Mistake("the magnitude multiplies whole heads", "or scores by its square, where only some components turn",
                "multiply the components that turn by the magnitude, and no others",
                ("q", "k", "scores"), one(whole_heads))),
    Mistake("the scaling of frequencies is inverted", "multiplied by the factor that should divide them, or positions "
            "divided by what should multiply them",
            "divide frequencies by the factor of the scaling", ("q", "k"),
            {"": partial(scale_back, False), "the factor, where it is gradual": partial(scale_back, True)}),
    Mistake("frequencies are not inverted", "they are base ** (2i / dim)",
            "give the exponent its minus: base ** (-2i / dim)", ("q", "k"),
            {"": partial(upside_down, False), "but for the model's own scaling": partial(upside_down, True)},
            rare=True),
    Mistake("frequencies in half precision", "as where a whole model is cast, with its table of frequencies",
            "keep the table of frequencies in float32, whatever the model's dtype",
            ("q", "k"),
            {dtype: partial(lambda into, plan: replace(plan, frequencies=into(plan.frequencies)), through(dtype))
             for dtype in ("bfloat16", "float16")}),
    Mistake("positions in half precision", "positions beyond 256 are rounded to bfloat16 before they turn",
            "keep positions as integers or in float32 until they are multiplied by frequencies",
            ("q", "k"),
            one(partial(turn_by, lambda plan, role, places: through("bfloat16")(places.astype(np.float64))))),
    Mistake("the table of angles is too short", "positions beyond its end turn as the last one does",
            "make the table as long as the positions go, and do not clip them", ("q", "k"),
            {f"{size} positions": partial(turn_by, partial(lambda last, plan, role, X: np.minimum(X, last), size - 1))
             for size in TABLES}),
)  # fmt: skip


def change_temperature(plan: Plan, **options: float) -> Plan:
    """Take a temperature with other options."""
    return replace(plan, temperature=dataclasses.replace(plan.temperature, **options))


OF_TEMPERATURE = only_where(
    lambda plan: plan.temperature is not None,
    Mistake("the temperature is forgotten", "queries are not multiplied by the factor of their position",
            "multiply each query by the factor of its position", ("q",),
            one(partial(replace, temperature=None))),
    Mistake("the temperature has the other shift", "0 is added to positions for 1, as Ministral 3 has it, or 1 for 0, "
            "as Llama 4",
            "add to positions what the model adds: 1 in Llama 4, 0 in Ministral 3", ("q",),
            one(lambda plan: change_temperature(plan, shift=0 if plan.temperature.shift else 1))),
    Mistake("the temperature goes by rows", "by the number of a query's row, or its slot, for its position",
            "take the factor of a query's position, not of its row or slot", ("q",),
            one(partial(replace, tempered_places=lambda plan, places: np.arange(places.shape[1])[None]))),
    Mistake("the temperature grows at every position", "the positions are not divided by the floor",
            "divide positions by the floor, and round down, before the logarithm", ("q",),
            one(partial(change_temperature, floor=1))),
    Mistake("the temperature is inverted", "queries are divided by the factor of their position",
            "multiply queries by the factor of their position", ("q",),
            one(partial(replace, factors=lambda X: 1 / X))),
    Mistake("the temperature is that of keys", "keys are multiplied by the factor of their position",
            "multiply queries by the factor of their position, and leave keys as they are", ("q", "k"),
            {"not of queries": partial(replace, tempered=("k",)),
             "of queries, too": partial(replace, tempered=("q", "k"))}),
)  # fmt: skip


Rotate = Callable[..., Array]


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

    def rotate(right: Rotate, plan: Plan, role: str, X: Array, places: Array) -> Array:
        turned = right(plan, role, X, places)
        return change(plan, turned) if role in roles else turned

    return around("rotate", rotate, plan)


def without_rest(plan: Plan, X: Array) -> Array:
    """Set the components that do not turn to 0."""
    m, n = turning(plan), len(plan.frequencies)
    firsts = np.arange(m) * (2 if plan.interleaved else 1)
    kept = np.zeros(X.shape[-1], bool)
    kept[firsts] = kept[firsts + (1 if plan.interleaved else n)] = True
    return np.where(kept, X, np.zeros_like(X))


def narrow_heads(plan: Plan) -> Plan | None:
    """Leave out the components that do not turn, and scale by the width of the others."""
    if plan.config.pooling != "dot" or plan.config.scale is not None:
        return None
    return replace(after_turning(without_rest, "qk", plan), scale=(2 * turning(plan)) ** -0.5)


def last_components(roles: str, plan: Plan) -> Plan:
    """Turn the last components of a head, of which only a part turns."""

    def rotate(right: Rotate, plan: Plan, role: str, X: Array, places: Array) -> Array:
        kept = X.shape[-1] - 2 * len(plan.frequencies) if role in roles else 0
        return np.concatenate([X[..., :kept], right(plan, role, X[..., kept:], places)], -1)

    return around("rotate", rotate, plan)


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
                {how: partial(after_turning, lambda plan, X: np.roll(X, -2 * len(plan.frequencies), -1), role)
                 for how, role in (("of queries", "q"), ("of keys", "k"))}, rare=True),
        Mistake("the last components turn", "the last `dim` components of a head turn instead of the first",
                "turn the first `dim` components of a head", ("q", "k"),
                {"": partial(last_components, "qk"), "of queries": partial(last_components, "q"),
                 "of keys": partial(last_components, "k")})),
)  # fmt: skip
