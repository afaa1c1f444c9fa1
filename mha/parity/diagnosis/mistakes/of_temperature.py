"""Known mistakes with the temperature: the factor of queries that grows with their positions."""

import dataclasses
from functools import partial

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Mistake, one
from mha.parity.diagnosis.pipeline.plan import Plan, replace


def without_factor(plan: Plan) -> Plan | None:
    """Multiply queries by no factor."""
    return None if plan.temperature is None else replace(plan, temperature=None)


def shift_positions(plan: Plan) -> Plan | None:
    """Add 0 to positions where 1 should be added, or 1 where none should."""
    if plan.temperature is None:
        return None
    return replace(plan, temperature=dataclasses.replace(plan.temperature, shift=0 if plan.temperature.shift else 1))


def temper_by_rows(plan: Plan) -> Plan | None:
    """Go by the numbers of rows, as where the slot of a token counts for its position."""
    if plan.temperature is None:
        return None
    return replace(plan, tempered_places=lambda plan, places: np.arange(places.shape[1])[None])


def grow_everywhere(plan: Plan) -> Plan | None:
    """Let the factor grow at every position."""
    if plan.temperature is None:
        return None
    return replace(plan, temperature=dataclasses.replace(plan.temperature, floor=1))


def divide_queries(plan: Plan) -> Plan | None:
    """Divide queries by the factor."""
    return None if plan.temperature is None else replace(plan, factors=lambda X: 1 / X)


def temper_keys(roles: tuple[str, ...], plan: Plan) -> Plan | None:
    """Multiply keys by the factors of their positions, and queries or not."""
    return None if plan.temperature is None else replace(plan, tempered=roles)


OF_TEMPERATURE = (
    Mistake("the temperature is forgotten", "queries are not multiplied by the factor of their position", ("q",),
            one(without_factor)),
    Mistake("the temperature has the other shift", "0 is added to positions for 1, as Ministral 3 has it, or 1 for 0, "
            "as Llama 4", ("q",), one(shift_positions)),
    Mistake("the temperature goes by rows", "by the number of a query's row, or its slot, for its position", ("q",),
            one(temper_by_rows)),
    Mistake("the temperature grows at every position", "the positions are not divided by the floor", ("q",),
            one(grow_everywhere)),
    Mistake("the temperature is inverted", "queries are divided by the factor of their position", ("q",),
            one(divide_queries)),
    Mistake("the temperature is that of keys", "keys are multiplied by the factor of their position", ("q", "k"),
            {"not of queries": partial(temper_keys, ("k",)), "of queries, too": partial(temper_keys, ("q", "k"))}),
)  # fmt: skip
