"""The other forms of a mistake that hides all keys of a query: NaN there, or a mean, is no second mistake.

Where every query sees a key, it does not matter how a mask is applied: as minus infinity, or as a number that is set or
added. Once a mistake hides all the keys of a query, or all the queries of a key for a softmax over these, it shows.
"""

import functools
from collections.abc import Callable
from functools import partial

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Change, Form
from mha.parity.diagnosis.mistakes.of_softmax import divide_by_nothing, fill_hidden
from mha.parity.diagnosis.pipeline.plan import OF_HIDING, Plan

LARGE = (-np.inf, -1e9, -1e6, -1e5, -1e4, -1e3)  # numbers that are added
SEEN = "where it hides all, all are seen"
APPLIED: tuple[tuple[str, Callable[[Plan], Plan | None]], ...] = (
    ("where it hides all, there is NaN", divide_by_nothing),
    *((SEEN, partial(fill_hidden, number, True)) for number in LARGE),
)


@functools.cache
def other_forms(form: Form) -> tuple[Form, ...]:
    """List the forms that a mistake has in implementations that apply their masks otherwise."""
    return tuple(
        Form(
            form.place,
            form.mistake,
            "; ".join(filter(None, [form.how, words])),
            apply_first(applied, form.change),
            True,
        )
        for words, applied in APPLIED
    )


def apply_first(applied: Callable[[Plan], Plan | None], change: Change) -> Change:
    """Make a mistake in an implementation that applies its masks in this way."""
    return lambda plan: None if (other := applied(plan)) is None else change(other)


def empties(plan: Plan, right: Plan) -> bool:
    """Return whether a plan hides every key of a query, or what else its softmax goes over.

    right: the plan without the mistake.
    """
    if plan.axis == right.axis and all(getattr(plan, field) is getattr(right, field) for field in OF_HIDING):
        return False
    return not plan.visible().any(plan.axis).all()
