"""Known mistakes with the temperature: the factor of queries that grows with their positions."""

import dataclasses
from functools import partial

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Mistake, one, only_where
from mha.parity.diagnosis.pipeline.plan import Plan, replace


def change_temperature(plan: Plan, **options: float) -> Plan:
    """Take a temperature with other options."""
    return replace(plan, temperature=dataclasses.replace(plan.temperature, **options))


OF_TEMPERATURE = only_where(
    lambda plan: plan.temperature is not None,
    Mistake("the temperature is forgotten", "queries are not multiplied by the factor of their position", ("q",),
            one(partial(replace, temperature=None))),
    Mistake("the temperature has the other shift", "0 is added to positions for 1, as Ministral 3 has it, or 1 for 0, "
            "as Llama 4", ("q",),
            one(lambda plan: change_temperature(plan, shift=0 if plan.temperature.shift else 1))),
    Mistake("the temperature goes by rows", "by the number of a query's row, or its slot, for its position", ("q",),
            one(partial(replace, tempered_places=lambda plan, places: np.arange(places.shape[1])[None]))),
    Mistake("the temperature grows at every position", "the positions are not divided by the floor", ("q",),
            one(partial(change_temperature, floor=1))),
    Mistake("the temperature is inverted", "queries are divided by the factor of their position", ("q",),
            one(partial(replace, factors=lambda X: 1 / X))),
    Mistake("the temperature is that of keys", "keys are multiplied by the factor of their position", ("q", "k"),
            {"not of queries": partial(replace, tempered=("k",)),
             "of queries, too": partial(replace, tempered=("q", "k"))}),
)  # fmt: skip
