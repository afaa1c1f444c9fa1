"""Known mistakes with the rotation of queries and keys: positions, frequencies, pairs of components."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from mha.parity.mistakes.mistake import Mistake, one
from mha.parity.pipeline.pieces import Array
from mha.parity.pipeline.plan import Plan

BASES = (10000.0, 500000.0, 1e6, 100000.0, 1e7, 160000.0, 50000.0, 25000.0, 1000.0, 100.0)


def turned_by(places: Callable[[Plan, str, Array], Array], plan: Plan) -> Plan | None:
    """Turn by other positions; places: a function of the plan, the role and the right ones."""
    return None if plan.frequencies is None else replace(plan, rotary_offsets=places)


def of_one(role: str, by: int) -> Callable[[Plan, str, Array], Array]:
    """Make a function that moves the positions of one role by so many."""
    return lambda plan, given, places: places + by * (given == role)


def begun_again(plan: Plan, role: str, places: Array) -> Array:
    """Return the positions of queries without the offset."""
    return places - plan.offsets if role == "q" else places


def paired(plan: Plan) -> Plan | None:
    """Pair the components the other way."""
    return None if plan.frequencies is None else replace(plan, interleaved=not plan.interleaved)


def of_base(base: float, plan: Plan) -> Plan | None:
    """Take the frequencies of another base."""
    if plan.frequencies is None or plan.config.rotary is None:
        return None
    n = len(plan.frequencies)
    return replace(plan, frequencies=base ** (-np.arange(n) / n))


def of_head(plan: Plan) -> Plan | None:
    """Count the frequencies over the whole head, if only a part of it turns."""
    rotary, d = plan.config.rotary, plan.config.key_dim
    if plan.frequencies is None or rotary is None or 2 * len(plan.frequencies) == d:
        return None
    return replace(plan, frequencies=rotary.base ** (-2 * np.arange(len(plan.frequencies)) / d))


def whole_head(plan: Plan) -> Plan | None:
    """Turn the whole head, if only a part of it should turn."""
    rotary, n = plan.config.rotary, plan.config.key_dim // 2
    if plan.frequencies is None or rotary is None or len(plan.frequencies) == n or plan.config.key_dim % 2:
        return None
    return replace(plan, frequencies=rotary.base ** (-np.arange(n) / n))


def coarse(plan: Plan) -> Plan | None:
    """Round positions to bfloat16, which changes those beyond 256."""
    if plan.frequencies is None:
        return None
    import ml_dtypes

    return turned_by(lambda plan, role, places: places.astype(ml_dtypes.bfloat16).astype(np.float64), plan)


OF_ROTATIONS = (
    Mistake("rotary components are paired the other way", "halves for neighbours, or neighbours for halves", ("q", "k"),
            one(paired)),
    Mistake("the rotation is off by one", "queries or keys turn as their neighbours should", ("q", "k"),
            {"queries one further": partial(turned_by, of_one("q", 1)),
             "queries one back, or keys one further": partial(turned_by, of_one("k", 1)),
             "both, from position 1 on": partial(turned_by, lambda plan, role, places: places + 1)}),
    Mistake("the rotation begins again at every offset", "positions of queries start at 0 after a cache", ("q", "k"),
            {"of queries": partial(turned_by, begun_again)}),
    Mistake("the rotation goes backwards", "sines have the other sign", ("q", "k"),
            one(partial(turned_by, lambda plan, role, places: -places))),
    Mistake("the rotation is forgotten", "queries or keys do not turn", ("q", "k"),
            {"of both": partial(turned_by, lambda plan, role, places: 0 * places),
             "of queries": partial(turned_by, lambda plan, role, places: places * (role != "q")),
             "of keys": partial(turned_by, lambda plan, role, places: places * (role != "k"))}),
    Mistake("another base", "frequencies of another base of the rotation", ("q", "k"),
            {f"{base:g}": partial(of_base, base) for base in BASES}
            | {"the same, without the model's own scaling": lambda plan: of_base(plan.config.rotary.base, plan)
               if plan.config.rotary else None}),
    Mistake("frequencies of the whole head", "base ** (-2i / d) where only `dim` components turn", ("q", "k"),
            one(of_head)),
    Mistake("the whole head turns", "all components turn, where only `dim` should", ("q", "k"), one(whole_head)),
    Mistake("positions in half precision", "positions beyond 256 are rounded to bfloat16 before they turn",
            ("q", "k"), one(coarse)),
)  # fmt: skip
