"""Known mistakes that a comparison could not see: they would have passed on its very inputs; and what shows them."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mha.parity.mistakes.bench import Bench
from mha.parity.mistakes.catalogue import FORMS
from mha.parity.mistakes.mistake import Form
from mha.parity.pipeline.parts import PART_OF
from mha.parity.pipeline.plan import same
from mha.parity.same.layouts import GRADIENT
from mha.parity.same.problem import Expected, Problem
from mha.parity.unseen.probes import Probe, longer, probes
from mha.parity.unseen.sight import NARROW, Sight, Unseen

SECONDS = 5.0  # for all of it, about
FEW = 16  # queries of one sample that are looked at first
PAIRS = 1e6  # from so many pairs on
PROBED = 67  # tokens at most, of a call that is changed to show more
OTHER_NUMBERS = Probe("other numbers", lambda asked: asked)  # as those of the shorter call are


class View:
    """The arrays of a call that are compared, and how far forms of mistakes move them, in some samples and queries."""

    def __init__(self, asked: Problem, names: Iterable[str], samples: Any = slice(None), rows: slice = slice(None)):
        self.asked, self.samples, self.rows = asked, samples, rows
        self.names = [name for name in names if name in PART_OF]
        # In a few rows rounding need not be imitated, which takes long in half precision.
        wide = np.result_type(asked.queries, np.float32)
        self.bench = Bench(asked, asked.config.dtype if rows == slice(None) else wide, samples, rows)

    @property
    def arguments(self) -> int:
        """The number of arguments of the call."""
        return len(self.asked.call.given()) + self.asked.call.causal

    def ratio(self, form: Form) -> float | None:
        """The largest error of a form by its bound; None if it is impossible here, or needs queries left out."""
        with np.errstate(all="ignore"):
            plan = self.bench.planned((form,))
            possible = plan is not None and plan.rows == self.rows
            changes = possible and not self.without_change(form)
            ratio = max(self.of(form, name) for name in self.names) if changes else 0.0
        self.bench.forget()
        return ratio if possible else None

    def without_change(self, form: Form) -> bool:
        """Whether a form leaves the very numbers from which all is computed, as scales of norms that are all 1 do."""
        plan = self.bench.planned((form,))
        return plan is not None and same(plan, self.bench.plan)

    def of(self, form: Form, name: str) -> float:
        """The error of one array by its bound; 0 for an array that there is not with this mistake."""
        if not form.mistake.touches(PART_OF[name]) or (wrong := self.bench.steps((form,), name)) is None:
            return 0.0
        X, limit, rows = self.asked.expected(name)
        counts = np.broadcast_to(self.asked.matters(name), X.shape)
        X, counts = (self.bench.of_rows(name, Y[self.samples]) for Y in (X, counts))
        rows = rows if rows is None else rows[self.samples][:, self.rows]  # (B, Q)
        return Expected(X, limit, rows).ratio(np.where(counts, wrong, 0)) if wrong.shape == X.shape else np.inf


class Judged(NamedTuple):
    """The largest ratio of a form, and the call with most arguments in which it is possible."""

    ratio: float
    view: View


def sight(calls: Sequence[tuple[Callable[[], Problem], Sequence[str]]]) -> Sight:
    """Find the known mistakes that leave the compared arrays the same, in each of these calls that has room for them.

    calls: each as a function that makes the problem, and the names of the arrays.
    """
    end = time.monotonic() + SECONDS
    judged: dict[Form, Judged] = {}
    untried: set[Form] = set()
    for made, names in calls:
        view = View(made(), names)
        left = [form for form in FORMS if form not in judged or judged[form].ratio <= NARROW]
        ratios = measured(view, left, end - SECONDS / 3) if view.names else {}
        untried |= {*left} - {*ratios} if view.names else set()
        for form, ratio in ratios.items():
            if ratio is not None:
                known = judged.get(form, Judged(ratio, view))
                fuller = max(view, known.view, key=lambda view: view.arguments)
                judged[form] = Judged(max(ratio, known.ratio), fuller)
    untried -= {form for form in judged if judged[form].ratio > 1}
    unseen = {form: one for form, one in judged.items() if one.ratio <= 1 and form not in untried}
    shown = shown_by(unseen, end)
    # What changes nothing, here or with the inputs that were tried, is no mistake in such a layer.
    nothing = {form for form, one in unseen.items() if not shown.get(form) and one.view.without_change(form)}
    unseen = {form: one for form, one in unseen.items() if form not in nothing}
    return Sight(
        tuple(found(form, one, shown.get(form)) for form, one in unseen.items()),
        tuple(found(form, one, None) for form, one in judged.items() if 1 < one.ratio <= NARROW),
        len(judged.keys() - untried - nothing),
        len(untried),
        any(name.startswith(GRADIENT) for _, names in calls for name in names),
    )


def found(form: Form, judged: Judged, shown: str | None) -> Unseen:
    """Describe a form for a report."""
    return Unseen(form.mistake.name, form.how, judged.ratio, shown)


def measured(view: View, forms: Sequence[Form], end: float) -> dict[Form, float | None]:
    """Measure how far forms move the arrays, those that are reached before the end; None = not possible here.

    Forms that a few queries show clearly are not computed in all of them.
    """
    asked = view.asked
    seen: dict[Form, float | None] = {}
    if asked.visible.size > PAIRS:
        few = View(asked, view.names, [0], slice(max(0, asked.sizes.Q - FEW), asked.sizes.Q))
        for form in forms:
            if time.monotonic() < end and (ratio := few.ratio(form)) is not None and ratio > NARROW:
                seen[form] = ratio
    for form in forms:
        if form not in seen and time.monotonic() < end:
            seen[form] = view.ratio(form)
    return seen


def shown_by(unseen: Mapping[Form, Judged], end: float) -> dict[Form, str]:
    """Find what inputs would show each form, as far as the time reaches; "" = none that were tried."""
    shown: dict[Form, str] = {}
    for first in dict.fromkeys(one.view for one in unseen.values()):
        forms = [form for form, one in unseen.items() if one.view is first]
        long = max(first.asked.sizes.Q, first.asked.sizes.K) > PROBED
        for probe in (*[OTHER_NUMBERS] * long, *probes(first.asked.config)):
            left = [form for form in forms if form not in shown and probe.about in form.mistake.name]
            if not left or time.monotonic() > end or (other := probe.made(smaller(first.asked))) is None:
                continue
            view = View(other, first.names)
            for form in left:
                if time.monotonic() > end:
                    return shown
                if (view.ratio(form) or 0.0) > NARROW:
                    shown[form] = probe.words
        if time.monotonic() < end:
            shown |= {form: "" for form in forms if form not in shown}
    return shown


def smaller(asked: Problem) -> Problem:
    """A call of a few tokens for a long one; a short one as it is."""
    Q, K = asked.sizes.Q, asked.sizes.K
    return asked if max(Q, K) <= PROBED else longer(2 * FEW + 5, int(np.clip(K - Q, -FEW, FEW)), asked)
