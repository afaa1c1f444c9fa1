"""The known mistake: a name, an effect, and functions that put it into a plan; and tools for many mistakes."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mha.parity.diagnosis.pipeline.parts import PARTS
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.pipeline.plan import Plan, replace

Change = Callable[[Any], Any]  # from a plan, or a `Backward`, to another one, or to None: it is impossible there


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One known mistake.

    Attributes:
        name: for a diagnosis.
        what: the effect, in words.
        fix: what right code does, as an order, in a line.
        parts: those of the pipeline that it changes; () = gradients alone.
        forms: functions by their words ("" if there is one): from a plan without the mistake, or a `Backward`, to one
            with it, or to None where the mistake is impossible.
        rare: whether it is tried only where no other mistake alone gives the numbers, and not together with others.
    """

    name: str
    what: str
    fix: str
    parts: tuple[str, ...]
    forms: Mapping[str, Change]
    rare: bool = False

    def touches(self, part: str) -> bool:
        """Return whether the result of a part may differ."""
        return part in self.reach

    @functools.cached_property
    def reach(self) -> frozenset[str]:
        """Return the parts whose results may differ."""
        found = set(self.parts)
        for part, before in PARTS.items():  # each comes after those that it takes
            if not found.isdisjoint(before):
                found.add(part)
        return frozenset(found)


def one(change: Change) -> dict[str, Change]:
    """Make the forms of a mistake that has one form."""
    return {"": change}


def only_where(possible: Callable[[Any], Any], *mistakes: Mistake) -> tuple[Mistake, ...]:
    """Make mistakes impossible in plans, or a `Backward`, that lack what they need, such as a rotation."""

    def change_where(change: Change, plan: Any) -> Any:
        return change(plan) if possible(plan) else None

    return tuple(
        dataclasses.replace(mistake, forms={how: partial(change_where, X) for how, X in mistake.forms.items()})
        for mistake in mistakes
    )


def around(piece: str, change: Callable[..., Any], plan: Plan) -> Plan:
    """Replace a piece of a plan by its name; change: takes the piece that was there, and then what that takes."""
    return replace(plan, **{piece: partial(change, getattr(plan, piece))})


def softmax_change(possible: Callable[[Plan], Any] = lambda plan: True) -> Callable[..., Callable[..., Plan | None]]:
    """Make a change of plans, where it is possible, from a function that takes the place of the softmax.

    The function takes numbers of its own, the right softmax, the plan, scores and what is visible; the change takes
    these numbers and the plan.
    """

    def decorate(softmax: Callable[..., Array]) -> Callable[..., Plan | None]:
        def change(*numbers: Any) -> Plan | None:
            *own, plan = numbers
            if not possible(plan):
                return None
            made = partial(softmax, *own, plan.softmax)
            return replace(plan, softmax=lambda plan, X, visible: made(plan, X, visible).astype(X.dtype))

        return change

    return decorate


def weights_of(plan: Plan, *beginnings: str) -> dict[str, Array]:
    """Return the weights of a plan whose names begin with one of these."""
    return {name: X for name, X in plan.weights.items() if name.startswith(beginnings)}


def with_weights(plan: Plan, changed: Mapping[str, Array | None]) -> Plan:
    """Change some weights of a plan; None takes one away."""
    weights = {**plan.weights, **changed}
    return replace(plan, weights={name: X for name, X in weights.items() if X is not None})


def hiding(name: str, condition: Callable[[Plan], Array] | None, plan: Plan) -> Plan | None:
    """Replace one condition for a key to be seen; None = drop it."""
    if name not in plan.hiding:
        return None
    kept = {key: X for key, X in plan.hiding.items() if key != name}
    return replace(plan, hiding=kept if condition is None else kept | {name: condition})


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """One form of a mistake, and the mistake's place in the catalogue; alone: not to be tried together with others."""

    place: int
    mistake: Mistake
    how: str
    change: Change
    alone: bool = False


State = tuple[Form, ...]  # a set of mistakes, in the order of the catalogue


def forms_of(mistakes: Sequence[Mistake]) -> tuple[Form, ...]:
    """List every form of these mistakes."""
    return tuple(
        Form(place, mistake, how, change)
        for place, mistake in enumerate(mistakes)
        for how, change in mistake.forms.items()
    )
