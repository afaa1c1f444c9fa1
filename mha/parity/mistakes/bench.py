"""The pipeline with mistakes in it: a part that several sets of mistakes share is computed once."""

from collections.abc import Iterable, Sequence
from typing import Any

from mha.parity.mistakes.mistake import Form, Mistake
from mha.parity.pipeline.parts import PART_OF, PARTS, compute
from mha.parity.pipeline.pieces import Array, Steps
from mha.parity.pipeline.plan import Plan, plan_of, same
from mha.parity.same.problem import Problem

State = tuple[Form, ...]


class Bench:
    """The pipeline of some samples in one dtype, with mistakes; a part that several of them share is computed once."""

    def __init__(self, problem: Problem, dtype: Any, samples: Any, rows: slice = slice(None)) -> None:
        self.plan = plan_of(problem, dtype, samples, rows)
        self.parts: dict[tuple[str, State], tuple[Steps, Array]] = {}
        self.plans: dict[State, Plan | None] = {(): self.plan}

    def planned(self, state: State) -> Plan | None:
        """Return the plan with these mistakes, None if one of them is impossible here."""
        if state not in self.plans:
            before = self.planned(state[:-1])
            made = None if before is None else state[-1].change(before)
            if len(state) > 1:
                return made
            self.plans[state] = made
        return self.plans[state]

    def forget(self) -> None:
        """Keep only what has no mistakes."""
        self.parts = {key: made for key, made in self.parts.items() if not key[1]}
        self.plans = {(): self.plan}

    def possible(self, mistakes: Sequence[Mistake]) -> list[Form]:
        """List the forms of mistakes that change the plan."""
        made = (Form(at, one, how, change) for at, one in enumerate(mistakes) for how, change in one.forms.items())
        return [form for form in made if (plan := self.planned((form,))) is not None and not same(plan, self.plan)]

    def steps(self, state: State, name: str) -> Array | None:
        """Return a step with these mistakes, None if there is no such step or they are impossible here."""
        plan = self.planned(state)
        return None if plan is None else self.part(state, plan, PART_OF[name])[0].get(name)

    def all_of(self, state: State, names: Iterable[str]) -> Steps | None:
        """Return several steps by name; None if one of them is missing."""
        found = {name: X for name in names if (X := self.steps(state, name)) is not None}
        return found if found.keys() == set(names) else None

    def counts(self, state: State, name: str, right: Array) -> Array:
        """Return which numbers of a step matter with these mistakes; right: those that matter without, booleans.

        Scores that the mistakes hide do not: many implementations have minus infinity there, or scores of blank keys.
        """
        plan = self.planned(state) if PART_OF[name] == "scores" else None
        if plan is None or plan.hiding is self.plan.hiding or plan.heads != self.plan.heads:
            return right
        return right & plan.visible()

    def part(self, state: State, plan: Plan, part: str) -> tuple[Steps, Array]:
        """Compute one part: its steps, and its result."""
        key = part, tuple(form for form in state if form.mistake.touches(part))
        if key in self.parts:
            return self.parts[key]
        before = {name: self.part(state, plan, name)[1] for name in PARTS[part]}
        made = compute(part, plan, before)
        if len(key[1]) <= 1:
            self.parts[key] = made
        return made
