"""The pipeline with mistakes in it: a part that several sets of mistakes share is computed once.

A mistake that hides all keys of a query has other forms: NaN there, or a mean, is no second mistake. Where every query
sees a key, it does not matter how a mask is applied: as minus infinity, or as a number that is set or added. Once a
mistake hides all the keys of a query, or all the queries of a key for a softmax over these, it shows.
"""

import functools
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Change, Form, State
from mha.parity.diagnosis.mistakes.of_softmax import divide_by_nothing, fill_hidden
from mha.parity.diagnosis.pipeline.parts import PART_OF, PARTS, ROLES, WHOLE, compute
from mha.parity.diagnosis.pipeline.pieces import Array, Steps
from mha.parity.diagnosis.pipeline.plan import OF_HIDING, Plan, equal_plans, make_plan
from mha.parity.rule.problem import Expected, Problem

LARGE = (-np.inf, -1e9, -1e6, -1e5, -1e4, -1e3)  # numbers that are added
SEEN = "where it hides all, all are seen"
ALL = slice(None)
APPLIED: tuple[tuple[str, Change], ...] = (
    ("where it hides all, there is NaN", divide_by_nothing),
    *((SEEN, partial(fill_hidden, number, True)) for number in LARGE),
)


@functools.cache
def other_forms(form: Form) -> tuple[Form, ...]:
    """List the forms that a mistake has in implementations that apply their masks otherwise."""

    def apply_first(applied: Change, plan: Plan) -> Plan | None:
        return None if (other := applied(plan)) is None else form.change(other)

    return tuple(
        Form(form.place, form.mistake, f"{form.how}{'; ' * bool(form.how)}{words}", partial(apply_first, applied), True)
        for words, applied in APPLIED
    )


class Bench:
    """The pipeline of some samples and queries in one dtype, with mistakes; their common work is done once.

    samples: a slice, or a list of integers; rows: the queries, a slice or a tuple of integers; features: of the output,
    a slice or a list of integers.
    """

    def __init__(self, problem: Problem, dtype: Any, samples: Any = ALL, rows: Any = ALL, features: Any = ALL) -> None:
        self.problem = problem
        self.samples, self.rows, self.plan = samples, rows, make_plan(problem, dtype, samples, rows, features)
        self.parts: dict[tuple[str, bool, State], tuple[Steps, Array]] = {}
        self.plans: dict[State, Plan | None] = {(): self.plan}
        self.latest: tuple[State, Plan | None] = (), self.plan

    def plan_with(self, state: State) -> Plan | None:
        """Return the plan with these mistakes, None if one of them is impossible here."""
        if state in self.plans:
            return self.plans[state]
        if state != self.latest[0]:
            before = self.plan_with(state[:-1])
            self.latest = state, None if before is None else state[-1].change(before)
            if len(state) == 1:
                self.plans[state] = self.latest[1]
        return self.latest[1]

    def forget(self) -> None:
        """Free all results but those without mistakes."""
        self.parts = {key: made for key, made in self.parts.items() if not key[2]}
        self.plans = {(): self.plan}

    def possible(self, forms: Sequence[Form]) -> list[Form]:
        """List the forms of mistakes that change the plan."""
        return [
            form for form in forms if (plan := self.plan_with((form,))) is not None and not equal_plans(plan, self.plan)
        ]

    def same_fields(self, plan: Plan, *names: str) -> bool:
        """Return whether these fields of a plan are the very ones of the plan without mistakes."""
        return all(getattr(plan, name) is getattr(self.plan, name) for name in names)

    def empties(self, form: Form) -> bool:
        """Return whether a mistake hides every key of a query, or what else its softmax goes over."""
        plan = self.plan_with((form,))
        if plan is None or (plan.axis == self.plan.axis and self.same_fields(plan, *OF_HIDING)):
            return False
        return not plan.visible().any(plan.axis).all()

    def work(self, state: State) -> tuple[bool, int]:
        """Return the work for mistakes, to sort by: whether all queries are needed, and how many projections change."""
        several = [role for role in ROLES if sum(form.mistake.touches(role) for form in state) > 1]
        plans = [self.plan_with((form,)) for form in state]
        return any(plan is not None and plan.rows != self.rows for plan in plans), len(several)

    def steps(self, state: State, name: str) -> Array | None:
        """Return a step with these mistakes, None if there is no such step or they are impossible here."""
        plan = self.plan_with(state)
        X = None if plan is None else self.part(state, plan, PART_OF[name])[0].get(name)
        return X if X is None or plan is None or plan.rows == self.rows else self.of_rows(name, X)

    def all_of(self, state: State, names: Iterable[str]) -> Steps | None:
        """Return several steps by name; None if one of them is missing."""
        found = {name: X for name in names if (X := self.steps(state, name)) is not None}
        return found if found.keys() == set(names) else None

    def counts(self, state: State, name: str, right: Array) -> Array:
        """Return which numbers of a step matter with these mistakes; right: those that matter without, booleans.

        Scores that the mistakes hide do not: many implementations have minus infinity there, or scores of blank keys.
        """
        plan = self.plan_with(state) if PART_OF[name] == "scores" else None
        if plan is None or plan.heads != self.plan.heads or self.same_fields(plan, *OF_HIDING, "score_bias"):
            return right
        seen = plan.by_slots(plan.visible())
        return right & (seen if plan.rows == self.rows else self.of_rows(name, seen))

    def cut(self, name: str, X: Array) -> Array:
        """Take the part to compute from a step of the whole call, or from an array that broadcasts to it."""
        if X.ndim == 0:
            return X
        X = self.plan.of_samples(X)
        if PART_OF[name] in WHOLE:
            return X
        if name == "output" and X.shape[2] > 1:
            X = X[..., self.plan.features]
        return X if X.shape[1 if X.ndim == 3 else 2] == 1 else self.of_rows(name, X)

    def matters(self, name: str) -> Array:
        """Return which numbers of a step matter, in the part to compute."""
        return self.cut(name, self.problem.matters(name))

    def expected(self, name: str, by_rows: bool = True) -> Expected:
        """Return the expected numbers of the part to compute, of a step without mistakes; by_rows: as `Expected.of`."""
        right = self.problem.expected(name)
        if self.samples == self.rows == self.plan.features == ALL:
            return right
        return right.part(functools.partial(self.cut, name), self.samples, self.rows, by_rows)

    def of_rows(self, name: str, X: Array) -> Array:
        """Take the queries to compute from a step (B, Q, D) or (B, H, Q, any) that has all."""
        if PART_OF[name] in WHOLE or self.rows == ALL:
            return X
        return X[:, self.rows] if X.ndim == 3 else X[:, :, self.rows]

    def part(self, state: State, plan: Plan, part: str) -> tuple[Steps, Array]:
        """Compute one part: its steps, and its result."""
        usual = plan.rows == self.rows or part in WHOLE
        key = part, usual, tuple(form for form in state if form.mistake.touches(part))
        if key in self.parts:
            return self.parts[key]
        before = {name: self.part(state, plan, name)[1] for name in PARTS[part]}
        made = compute(part, plan, before)
        if len(key[2]) <= usual:
            self.parts[key] = made
        return made
