"""Compute a few queries of a call with other arguments: they tell whether theirs are near, before all is computed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mha.core.call import Call
from mha.parity.diagnosis.pipeline.parts import PART_OF, PARTS, compute
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.pipeline.plan import hiding_fields, make_plan
from mha.parity.diagnosis.search.sample import blank_unused, features_of
from mha.parity.rule.problem import Problem

FEW = 8  # queries with the largest errors, and as many at the end
WORK = 2e9  # numbers to read for all values of an argument, at most
EARLY = ("q", "k", "v")  # parts that no argument of a call changes, but for the rotation


class Near:
    """A few queries of a call with other arguments: how far theirs are from that, in each sample."""

    def __init__(self, asked: Problem, theirs: Mapping[str, Array], few: int = FEW) -> None:
        self.asked = asked
        late = {name: X for name, X in theirs.items() if PART_OF.get(name, "q") not in EARLY}
        self.rows, features = worst_rows(asked, late, few), features_of(asked, late)
        self.theirs = {name: X[:, self.rows] if X.ndim == 3 else X[:, :, self.rows] for name, X in late.items()}
        if "output" in late:
            self.theirs["output"] = self.theirs["output"][..., features]
        kind = np.float64 if asked.config.dtype == "float64" else np.float32
        rows: Any = self.rows
        blanked = not np.isfinite(asked.values).all()
        plan = replace(make_plan(asked, kind, rows=rows, features=features), blanked=blanked)  # which takes long
        results: dict[str, Array] = {}
        for part in ("q", "k", "v", "scores"):
            results[part] = np.ascontiguousarray(compute(part, plan, results)[1])
        shared = {part: plan.share(results[part], plan.heads // plan.groups) for part in ("k", "v")}
        self.plan, self.results = replace(plan, groups=plan.heads), results | shared
        self.limits = {name: 4 * asked.expected(name).limit for name in self.theirs}

    def to(self, call: Call) -> bool:
        """Return whether theirs are near to another call, in each sample of which rows count, one at least."""
        far = self.far(call)
        return not np.isnan(far).all() and not bool((far > 1).any())

    def far(self, call: Call) -> Array:
        """Return the largest error of each sample under another call, by 4 bounds, (B,); NaN where no row counts."""
        plan, results = replace(self.plan, **hiding_fields(call)), dict(self.results)
        turned = plan.frequencies is not None and not np.array_equal(plan.offsets, self.plan.offsets)
        steps: dict[str, Array] = {}
        for part in PARTS:
            if part not in results or (turned and part in ("q", "scores")):
                some, results[part] = compute(part, plan, results)
                steps |= some
        visible = plan.visible()  # (B, H, rows, K)
        rows = np.asarray(visible.any((1, 3))) | self.asked.empty_rows  # (B, rows)
        if self.asked.rows is not None:
            rows = rows & self.asked.rows[:, self.rows]
        worst = np.where(rows.any(1), 0.0, np.nan)  # (B,)
        for name, there in self.theirs.items():
            if name not in steps:
                continue
            counts = rows[..., None] if there.ndim == 3 else rows[:, None, :, None]
            counts = counts & visible if PART_OF[name] == "scores" else counts
            far = np.where(counts & (there != steps[name]), np.abs(there - steps[name]), 0)
            far = np.nan_to_num(far, nan=np.inf).reshape(len(far), -1).max(1, initial=0.0) / self.limits[name]
            worst = np.maximum(worst, far)
        return worst

    def best(self, call: Call, name: str, values: list[int]) -> Array | None:
        """Find for each sample the first of the values that are nearest; None if any sample has none that is near."""
        B, k, v = self.asked.sizes.B, self.results["k"], self.results["v"]
        if not B or len(values) * (k.size + v.size) > WORK:
            return None
        column = (B, 1) if name == "offset" else (B,)
        far = np.stack([self.far(call._replace(**{name: np.full(column, value)})) for value in values])  # (values, B)
        far = np.where(np.isnan(far), np.inf, far)
        nearest = far <= np.maximum(3 * far.min(0), 0.05)
        return np.array(values)[nearest.argmax(0)] if (far.min(0) <= 1).all() else None


def worst_rows(asked: Problem, theirs: Mapping[str, Array], few: int) -> Array:
    """Choose a few queries: those with the largest errors in theirs, and as many at the end."""
    Q = asked.sizes.Q
    if 2 * few >= Q:
        return np.arange(Q)
    far = np.zeros(Q)
    for name, X in theirs.items():
        distance = np.nan_to_num(np.abs(blank_unused(asked, name, X) - asked.expected(name).X), nan=np.inf)
        far = np.maximum(far, distance.max((0, 2) if X.ndim == 3 else (0, 1, 3)) / asked.expected(name).limit)
    return np.unique([*np.argsort(-far, kind="stable")[:few], *range(Q - few, Q)])
