"""The pipeline with mistakes in it: a part that several sets of mistakes share is computed once."""

from collections.abc import Iterable, Sequence
from typing import Any

from mha.parity.diagnosis.mistakes.emptied import empties
from mha.parity.diagnosis.mistakes.mistake import Form
from mha.parity.diagnosis.pipeline.parts import PART_OF, PARTS, ROLES, WHOLE, compute
from mha.parity.diagnosis.pipeline.pieces import Array, Steps
from mha.parity.diagnosis.pipeline.plan import OF_HIDING, Plan, equal_plans, make_plan
from mha.parity.rule.problem import Problem

State = tuple[Form, ...]
ALL = slice(None)


class Bench:
    """The pipeline of some samples and queries in one dtype, with mistakes; their common work is done once.

    samples: a slice, or a list of integers; rows: the queries, a slice or a tuple of integers; features: of the output,
    a slice or a list of integers.
    """

    def __init__(self, problem: Problem, dtype: Any, samples: Any = ALL, rows: Any = ALL, features: Any = ALL) -> None:
        self.plan, self.samples, self.rows = make_plan(problem, dtype, samples, rows, features), samples, rows
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

    def whole(self, state: State) -> bool:
        """Return whether these mistakes need queries beyond those that are computed."""
        plan = self.plan_with(state)
        return plan is not None and plan.rows != self.rows

    def empties(self, form: Form) -> bool:
        """Return whether a mistake hides everything somewhere, see the module `emptied`."""
        plan = self.plan_with((form,))
        return plan is not None and empties(plan, self.plan)

    def changes_window(self, form: Form) -> bool:
        """Return whether a mistake takes another window."""
        plan = self.plan_with((form,))
        return plan is not None and plan.window != self.plan.window

    def work(self, state: State) -> tuple[bool, int]:
        """Return the work for mistakes, to sort by: whether all queries are needed, and how many projections change."""
        several = [role for role in ROLES if sum(form.mistake.touches(role) for form in state) > 1]
        return any(self.whole((form,)) for form in state), len(several)

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
        if plan is None or plan.heads != self.plan.heads:
            return right
        if all(getattr(plan, field) is getattr(self.plan, field) for field in (*OF_HIDING, "score_bias")):
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

    def of_bounds(self, rows: Array | None) -> Array | None:
        """Take the samples and queries to compute from the bounds of rows (B, Q); None stays None."""
        return None if rows is None else rows[self.samples][:, self.rows]

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
