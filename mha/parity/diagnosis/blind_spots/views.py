"""Find the known mistakes that would have passed a comparison on its very inputs, and inputs that show them."""

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mha.parity.diagnosis.blind_spots.probes import FEATURES, Probe, in_samples, longer, probes, shrink
from mha.parity.diagnosis.blind_spots.sight import NARROW, Sight, Unseen
from mha.parity.diagnosis.mistakes.bench import ALL, Bench
from mha.parity.diagnosis.mistakes.catalogue import FORMS
from mha.parity.diagnosis.mistakes.equivalent_masks import only_hides
from mha.parity.diagnosis.mistakes.mistake import Form
from mha.parity.diagnosis.pipeline.parts import PART_OF
from mha.parity.diagnosis.pipeline.plan import equal_plans
from mha.parity.rule.layouts import GRADIENT
from mha.parity.rule.problem import Problem

USUAL = [form for form in FORMS if not form.mistake.rare]
SECONDS = 5.0  # for all of it, about
FIRST, SPREAD, LAST = 4, 4, 16  # queries that are looked at, of many
PAIRS = 1e6  # of more pairs, a few are looked at first
CLEAR = 20.0  # a mistake with such a ratio in coordinates of the tokens has one above 1 in those of the layer
PROBED = 67  # tokens at most, of a call that is changed to show more
OTHER_NUMBERS = Probe("other numbers", lambda asked: asked)  # as those of the shorter call are


class View:
    """The compared arrays of a call, and how far forms of mistakes move them: all numbers, or some.

    samples, rows, features: as of a `Bench`. In some numbers, errors are at most those of all.
    """

    def __init__(
        self, asked: Problem, names: Iterable[str], samples: Any = ALL, rows: Any = ALL, features: Any = ALL
    ) -> None:
        self.asked, self.samples, self.rows, self.features = asked, samples, rows, features
        self.names = [name for name in names if name in PART_OF]
        # Some numbers need no imitation of rounding, which takes long in half precision.
        whole = rows == features == ALL
        wide = np.result_type(asked.queries, np.float32)
        self.bench = Bench(asked, asked.config.dtype if whole else wide, samples, rows, features)

    @property
    def arguments(self) -> int:
        """Return the number of arguments of the call."""
        return len(self.asked.call.nondefaults()) + self.asked.call.causal

    @functools.cached_property
    def of_all_rows(self) -> "View":
        """Return the same view with all queries."""
        return View(self.asked, self.names, self.samples, ALL, self.features)

    def possible(self, form: Form) -> bool:
        """Return whether there is such a mistake in this call."""
        return self.bench.plan_with((form,)) is not None

    def ratio(self, form: Form) -> float | None:
        """Return the largest error of a form by its bound; None if it is impossible here, or needs queries left out."""
        with np.errstate(all="ignore"):
            plan = self.bench.plan_with((form,))
            possible = plan is not None and plan.rows == self.rows
            changes = possible and not self.without_change(form)
            ratio = max(self.of(form, name) for name in self.names) if changes else 0.0
        self.bench.forget()
        return ratio if possible else None

    def shows(self, form: Form) -> bool:
        """Return whether a form clearly differs here."""
        ratio = self.ratio(form)
        if ratio is None and self.rows != ALL and self.possible(form):
            ratio = self.of_all_rows.ratio(form)
        return (ratio or 0.0) > NARROW

    def without_change(self, form: Form) -> bool:
        """Return whether a form leaves all inputs of the computation the same, as scales of norms that are all 1 do.

        So does a part of a mask that hides what something else hides, too.
        """
        plan, right = self.bench.plan_with((form,)), self.bench.plan
        if plan is None or equal_plans(plan, right):
            return plan is not None
        anew = bool(plan.hiding.keys() - right.hiding.keys())
        return anew and only_hides(plan, right) and np.array_equal(plan.visible(), right.visible())

    def of(self, form: Form, name: str) -> float:
        """Return the error of one array by its bound; 0 if the mistake leaves no such array."""
        if not form.mistake.touches(PART_OF[name]) or (wrong := self.bench.steps((form,), name)) is None:
            return 0.0
        right = self.bench.expected(name, by_rows=self.features == ALL)  # only a mean over all features has a bound
        if wrong.shape != right.X.shape:
            return np.inf
        wrong = np.where(self.bench.matters(name), wrong.astype(np.float64), 0)
        return right.ratio_of_mistake(wrong, NARROW, lambda: self.bench.steps((), name))


def view_in_part(asked: Problem, names: Iterable[str]) -> View:
    """Return the view of a few numbers of a call: of many queries some, and the first features of the output."""
    Q = asked.sizes.Q
    rows = {*range(FIRST), *np.linspace(0, Q - 1, SPREAD).astype(int).tolist(), *range(Q - LAST, Q)}
    features = slice(FEATURES) if asked.config.num_hiddens > FEATURES else ALL
    return View(asked, names, ALL, ALL if len(rows) >= Q else tuple(sorted(rows)), features)


class FormRatio(NamedTuple):
    """The largest ratio of a form, and the call with most arguments in which it is possible."""

    ratio: float
    view: View


def sight(calls: Sequence[tuple[Callable[[], Problem], Sequence[str]]]) -> Sight:
    """Find the known mistakes that leave the compared arrays the same in each of these calls where they are possible.

    calls: each as a function that makes the problem, and the names of the arrays.
    """
    end = time.monotonic() + SECONDS
    judged: dict[Form, FormRatio] = {}
    untried: set[Form] = set()
    for made, names in calls:
        asked = made()
        if not asked.visible.size:
            continue
        view = View(asked, names)
        left = [form for form in USUAL if form not in judged or judged[form].ratio <= NARROW]
        ratios = measure_forms(view, left, end - SECONDS / 3) if view.names else {}
        untried |= {*left} - {*ratios} if view.names else set()
        for form, ratio in ratios.items():
            if ratio is not None:
                known = judged.get(form, FormRatio(ratio, view))
                fuller = max(view, known.view, key=lambda view: view.arguments)
                judged[form] = FormRatio(max(ratio, known.ratio), fuller)
    untried -= {form for form in judged if judged[form].ratio > 1}
    unseen = {form: one for form, one in judged.items() if one.ratio <= 1 and form not in untried}
    shown = find_inputs(unseen, end)
    # A form that changes nothing, here or with the inputs that were tried, is no mistake in such a layer.
    nothing = {form for form, one in unseen.items() if not shown.get(form) and one.view.without_change(form)}
    unseen = {form: one for form, one in unseen.items() if form not in nothing}
    return Sight(
        tuple(unseen_row(form, one, shown.get(form)) for form, one in unseen.items()),
        tuple(unseen_row(form, one, None) for form, one in judged.items() if 1 < one.ratio <= NARROW),
        len(judged.keys() - untried - nothing),
        len(untried),
        any(name.startswith(GRADIENT) for _, names in calls for name in names),
    )


def unseen_row(form: Form, judged: FormRatio, shown: str | None) -> Unseen:
    """Make the row of a form for a report."""
    return Unseen(form.mistake.name, form.how, judged.ratio, shown)


def measure_forms(view: View, forms: Sequence[Form], end: float) -> dict[Form, float | None]:
    """Measure how far forms move the arrays, those that are reached before the end; None = not possible here.

    Forms that a few numbers show clearly are not computed in all of them.
    """
    asked = view.asked
    seen: dict[Form, float | None] = {}
    fewer = shrink(in_samples(2, asked))
    if fewer.config != asked.config or asked.visible.size > PAIRS:
        few, clear = view_in_part(fewer, view.names), CLEAR if fewer.config != asked.config else NARROW
        for form in forms:
            if time.monotonic() < end and (ratio := few.ratio(form)) is not None and ratio > clear:
                seen[form] = ratio
    for form in forms:
        if form not in seen and time.monotonic() < end:
            seen[form] = view.ratio(form)
    return seen


def find_inputs(unseen: Mapping[Form, FormRatio], end: float) -> dict[Form, str]:
    """Find inputs that would show each form, as far as the time reaches; "" = none that were tried."""
    shown: dict[Form, str] = {}
    for first in dict.fromkeys(one.view for one in unseen.values()):
        forms = [form for form, one in unseen.items() if one.view is first]
        asked = shorten(first.asked)
        long = asked.sizes != first.asked.sizes
        few = shrink(asked)
        there = View(few, first.names)
        narrow = [form for form in forms if there.possible(form)]
        # A layer of fewer features has no square kernels; mistakes that need them are tried in the whole layer.
        for of, some in ((few, narrow), (asked, [form for form in forms if form not in narrow])):
            if not search_probes(of, first.names, some, long, shown, end):
                return shown
        shown |= {form: "" for form in forms if form not in shown}
    return shown


def search_probes(
    asked: Problem, names: Sequence[str], forms: Sequence[Form], long: bool, shown: dict[Form, str], end: float
) -> bool:
    """Note in `shown` the changes of a call that show forms of mistakes; return whether the time sufficed.

    long: whether it has other numbers than the call that was compared.
    """
    for probe in (*[OTHER_NUMBERS] * long, *probes(asked.config)):
        left = [form for form in forms if form not in shown and probe.about in form.mistake.name]
        if left and time.monotonic() > end:
            return False
        if not left or (other := probe.made(asked)) is None:
            continue
        view = view_in_part(other, names)
        for form in left:
            if time.monotonic() > end:
                return False
            if view.shows(form):
                shown[form] = probe.words
    return True


def shorten(asked: Problem) -> Problem:
    """Return the call with two samples at most, and a few tokens if it is long."""
    asked = in_samples(2, asked)
    Q, K = asked.sizes.Q, asked.sizes.K
    return asked if max(Q, K) <= PROBED else longer(37, int(np.clip(K - Q, -16, 16)), asked)
