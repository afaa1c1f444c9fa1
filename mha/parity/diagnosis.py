"""Why another implementation differs: the known mistakes, alone or together, that give its numbers."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult

from mha import dispatch
from mha.layer import MultiHeadAttention
from mha.parity import precision
from mha.parity.comparison import compare
from mha.parity.mistakes import GENERAL, Change, Mistake, of_another_layer
from mha.parity.mistakes_of_models import OF_MODELS
from mha.parity.pipeline import PART_OF, PARTS, Array, Plan, Steps, compute, plan_of
from mha.parity.problem import Problem
from mha.parity.report import Row, lines, number, said, text
from mha.parity.rules import bound, error, fraction, largest

CATALOGUE: tuple[Mistake, ...] = (*GENERAL, *OF_MODELS)
SURE = 4.0  # how far outside its bound the right answer has to be, for a mistake to be named with confidence
NEAR = 0.02  # how near to theirs, by their largest number, a mistake has to come in float32 to be looked at closely
NEAR_IN_HALF = 0.3
MOST = 6  # so many mistakes at once, where steps tell one from another
BRANCHES = 8
CONFIRMED = 12  # so many of those that come near are confirmed
SAMPLES = 3
LONG = 1.5e11  # multiplications that pairs may take


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Mistakes that together give their numbers.

    mistakes: the names, how: the form of each ("" where there is one); what: what each does; ratio: how far theirs is
    from what these mistakes give, by the rule: at most 1 is the same; sure: whether nothing else is to be expected.
    """

    mistakes: tuple[str, ...]
    how: tuple[str, ...]
    what: tuple[str, ...]
    ratio: float
    sure: bool

    def __str__(self) -> str:
        each = zip(self.mistakes, self.how, self.what, strict=True)
        named = [f"{name}{f' ({how})' if how else ''}: {what}" for name, how, what in each]
        return "; and ".join(named)


@dataclasses.dataclass(frozen=True, repr=False)
class Diagnosis:
    """Why theirs differs: explanations, best first; those that come together cannot be told apart by what was given.

    note: what there is to say besides, in a line; tried: how many mistakes and combinations were tried.
    """

    explanations: tuple[Explanation, ...]
    note: str
    tried: int

    @property
    def known(self) -> bool:
        """Whether there is an explanation to rely on."""
        return any(one.sure for one in self.explanations)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The names of all mistakes that an explanation to rely on has, best first."""
        return tuple(dict.fromkeys(name for one in self.explanations if one.sure for name in one.mistakes))

    def __str__(self) -> str:
        return text(self)

    __repr__ = __str__

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sure = [one for one in self.explanations if one.sure]
        if len(sure) > 1:
            yield from lines("why: one of these, which cannot be told apart by what was given", options)
        for one in sure:
            yield from lines(f"{'' if len(sure) > 1 else 'why: '}{one} (ratio {number(one.ratio)})", options)
        if self.note:
            yield from lines(self.note, options)
        for one in self.explanations:
            if not one.sure:
                yield from lines(f"perhaps: {one} (ratio {number(one.ratio)})", options)


def diagnose(
    attention: MultiHeadAttention,
    theirs: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: Any = None,
    *,
    mask: Any = None,
    score_bias: Any = None,
    causal: bool = False,
    offset: Any = 0,
    head_gates: Any = None,
    cotangent: Any = None,
    layout: str | None = None,
    others: Mapping[str, MultiHeadAttention] | None = None,
) -> Diagnosis:
    """Say which known mistakes give another implementation's numbers; arguments as for `parity.compare`.

    The output alone is enough for one or two mistakes; with steps, several can be told one after the other. Of
    gradients no use is made. A `Diagnosis` prints as text; a mistake that is not known is said to be unknown.
    """
    call = {"mask": mask, "score_bias": score_bias, "causal": causal, "offset": offset, "head_gates": head_gates}
    told = {"cotangent": cotangent, "layout": layout, "others": others}
    return compare(attention, theirs, queries, keys, values, valid_lens, **call, **told).diagnosis


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """One way of making a mistake, and its place in the catalogue."""

    place: int
    mistake: Mistake
    how: str
    change: Change


State = tuple[Form, ...]


class Bench:
    """The pipeline of some samples in one dtype, with mistakes; parts that several mistakes share are computed once."""

    def __init__(self, problem: Problem, dtype: Any, samples: Any, kept: int = 1) -> None:
        self.plan, self.kept = plan_of(problem, dtype, samples), kept
        self.parts: dict[tuple[str, State], tuple[Steps, Array]] = {}
        self.plans: dict[State, Plan | None] = {(): self.plan}

    def planned(self, state: State) -> Plan | None:
        """The plan with these mistakes, None if one of them cannot be made."""
        if state not in self.plans:
            before = self.planned(state[:-1])
            made = None if before is None else state[-1].change(before)
            if len(state) > self.kept:
                return made
            self.plans[state] = made
        return self.plans[state]

    def steps(self, state: State, name: str) -> Array | None:
        """A step with these mistakes, None if there is no such step or they cannot be made."""
        plan = self.planned(state)
        return None if plan is None else self.part(state, plan, PART_OF[name])[0].get(name)

    def part(self, state: State, plan: Plan, part: str) -> tuple[Steps, Array]:
        """What one part computes, and hands on."""
        key = part, tuple(form for form in state if form.mistake.touches(part))
        if key in self.parts:
            return self.parts[key]
        before = {name: self.part(state, plan, name)[1] for name in PARTS[part]}
        made = compute(part, plan, before)
        if len(key[1]) <= self.kept:
            self.parts[key] = made
        return made


class Search:
    """The search for mistakes that give theirs, in a few samples; confirmed in all.

    theirs: their arrays by name, as they are compared, in the order of `trace`; samples: those to look at.
    """

    def __init__(
        self, problem: Problem, theirs: Mapping[str, Array], mistakes: Sequence[Mistake], samples: list[int]
    ) -> None:
        self.problem, self.dtype, self.theirs, self.samples = problem, problem.config.dtype, theirs, samples
        kind = np.float64 if self.dtype == "float64" else np.float32
        self.small = {name: X[samples].astype(kind) for name, X in theirs.items()}
        self.counts = {name: self.of_small(problem.matters(name)) for name in theirs}
        self.limits = {name: self.limit(name) for name in theirs}
        self.bench, self.tried, self.skipped = Bench(problem, kind, samples), 0, False
        self.forms = self.applicable(mistakes)

    def of_small(self, X: Array) -> Array:
        """The samples that are looked at, of an array (B, ...) or one that broadcasts."""
        return X[self.samples] if X.ndim and len(X) > 1 else X

    def limit(self, name: str) -> float:
        """How near mistakes have to come in one array, to be looked at closely: much nearer than the right answer."""
        expected, bound = self.problem.expected(name)
        there = np.where(self.counts[name], self.small[name], 0)
        far = error(there, self.of_small(expected))
        if far <= bound:
            return 4 * bound
        near = (NEAR_IN_HALF if "16" in self.dtype else NEAR) * largest(there)
        return min(near, max(far / 4, bound))

    def applicable(self, mistakes: Sequence[Mistake]) -> list[Form]:
        """The forms of mistakes that can be made here and change something."""
        found = []
        for place, mistake in enumerate(mistakes):
            for how, change in mistake.forms.items():
                form = Form(place, mistake, how, change)
                if self.bench.planned((form,)) is not None and self.changes(form):
                    found.append(form)
        return found

    def changes(self, form: Form) -> bool:
        """Whether a mistake makes any of what was given another, in the samples that are looked at."""
        for name in self.small:
            if form.mistake.touches(PART_OF[name]):
                right, wrong = self.bench.steps((), name), self.bench.steps((form,), name)
                if wrong is None or right is None or not np.array_equal(right, wrong, equal_nan=True):
                    return True
        return False

    def distances(self, state: State) -> Iterator[float]:
        """For one array after the other, how far these mistakes are from it, as a part of the limit."""
        for name, X in self.small.items():
            found, counts = self.bench.steps(state, name), self.counts[name]
            if found is None or found.shape != X.shape:
                yield np.inf
            else:
                yield fraction(error(np.where(counts, found, 0), np.where(counts, X, 0)), self.limits[name])

    def progress(self, state: State) -> int:
        """How many of the arrays, from the first on, these mistakes give."""
        self.tried += 1
        return sum(1 for _ in itertools.takewhile(lambda distance: distance <= 1, self.distances(state)))

    def run(self) -> list[State]:
        """The sets of mistakes that give most of the arrays, from the first on, best first."""
        frontier: list[State] = [()]
        reached = self.progress(())
        while reached < len(self.small) and len(frontier[0]) < MOST:
            further = self.furthest(extended(state, [(form,) for form in self.forms]) for state in frontier)
            if further[0] <= reached and len(frontier[0]) < MOST - 1:
                pairs = self.pairs()
                further = self.furthest(extended(state, pairs) for state in frontier)
            if further[0] <= reached:
                break
            reached, frontier = further
        self.reached = reached
        return sorted((state for state in frontier if state), key=lambda state: max(self.distances(state)))

    def pairs(self) -> list[State]:
        """Pairs of mistakes that change the arrays to different numbers; none, if they would take too long."""
        pairs: list[State] = list(itertools.combinations(distinct(self.forms, self.bench, list(self.small)), 2))
        self.skipped = len(pairs) * work(self.problem) * len(self.samples) > LONG
        return [] if self.skipped else pairs

    def furthest(self, states: Iterable[Iterable[State]]) -> tuple[int, list[State]]:
        """Of these sets of mistakes those that get furthest, and how far."""
        best, found = 0, []
        for state in dict.fromkeys(itertools.chain.from_iterable(states)):
            reached = self.progress(state)
            if reached > best:
                best, found = reached, []
            if reached == best and reached:
                found.append(state)
        return best, found if best == len(self.small) else found[:BRANCHES]


class Verdict(NamedTuple):
    """What theirs is beside what some mistakes give, in all samples.

    ratio: the worst, by the rule; left: the part of the error that they leave, at worst; sample: the worst one.
    """

    ratio: float
    left: float
    sample: int


def confirmed(problem: Problem, theirs: Mapping[str, Array], state: State) -> Verdict:
    """How far theirs is from what these mistakes give."""
    oracle, base = (Bench(problem, dtype, slice(None)) for dtype in ("float64", problem.config.dtype))
    worst, left, sample = 0.0, 0.0, 0
    for name, X in theirs.items():
        counts = problem.matters(name)
        wide, narrow = oracle.steps(state, name), base.steps(state, name)
        if wide is None or narrow is None or wide.shape != X.shape:
            return Verdict(np.inf, np.inf, 0)
        wide, narrow, there = (np.where(counts, Y, 0).astype(np.float64) for Y in (wide, narrow, X))
        ratio = fraction(error(there, wide), bound(problem.config.dtype, wide, narrow))
        if ratio > worst:
            worst, sample = ratio, furthest_sample(there, wide)
        right, limit = problem.expected(name)
        if error(there, right) > limit:
            left = max(left, rms(there - wide) / (rms(there - right) or np.inf))
    return Verdict(worst, left, sample)


def furthest_sample(X: Array, expected: Array) -> int:
    """The sample with the largest error."""
    with np.errstate(invalid="ignore"):
        far = np.where((X == expected) | (np.isnan(X) & np.isnan(expected)), 0, np.abs(X - expected))
    return int(np.nan_to_num(far, nan=np.inf, posinf=1e300).reshape(len(X), -1).sum(1).argmax())


def work(problem: Problem) -> int:
    """About how many multiplications a sample takes."""
    sizes, config = problem.sizes, problem.config
    pairs = 2 * config.num_heads * sizes.Q * sizes.K * (config.key_dim + 8)  # 8: for the softmax
    kernels = sum(X.size for X in problem.layer.weights.values())
    return pairs + max(sizes.Q, sizes.K) * kernels


def extended(state: State, additions: Iterable[State]) -> Iterable[State]:
    """The state with each addition, in the order of the catalogue; never two forms of one mistake."""
    for addition in additions:
        places = {form.place for form in (*state, *addition)}
        if len(places) == len(state) + len(addition):
            yield tuple(sorted((*state, *addition), key=lambda form: form.place))


def distinct(forms: list[Form], bench: Bench, names: list[str]) -> list[Form]:
    """One form of those that change the same arrays to the same numbers."""
    found: dict[tuple[bytes | None, ...], Form] = {}
    for form in forms:
        made = [bench.steps((form,), name) for name in names]
        key = tuple(None if X is None else np.round(X.astype(np.float64), 4).tobytes() for X in made)
        found.setdefault(key, form)
    return list(found.values())


def rms(X: Array) -> float:
    """Root mean square of the finite numbers."""
    finite = X[np.isfinite(X)]
    return float(np.sqrt((finite * finite).mean())) if finite.size else 0.0


def explained(
    problem: Problem, theirs: Mapping[str, Array], rows: tuple[Row, ...], others: Mapping[str, Mapping[str, Array]]
) -> Diagnosis:
    """The diagnosis of arrays that were compared: theirs by name, in the shape that is compared; rows: of the report."""
    first = next((row for row in rows if not row.passed), None)
    if first is None:
        return Diagnosis((), "nothing to explain: all that was given is the same", 0)
    steps = {name: X for name, X in theirs.items() if name in PART_OF and X.shape == problem.sizes.shape(name)}
    wrong = [row for row in rows if not row.passed and row.name in steps]
    if not wrong:
        reason = "of gradients no known mistake is tried" if first.place is not None else "nothing can be tried"
        return Diagnosis((), f"why: unknown, {reason}; first to differ: {said(first)}", 0)
    with dispatch.load("numpy").context("float32"):
        found, search = searched(problem, steps, (*CATALOGUE, *of_another_layer(others)))
        far = max(row.ratio for row in wrong)
        explanations = [made(state, verdict, far) for state, verdict in found if verdict.ratio <= 1]
        explanations.sort(key=lambda one: (not one.sure, one.ratio))
        if not any(one.sure for one in explanations):
            explanations += precision.explanations(problem, steps)
            explanations.sort(key=lambda one: not one.sure)
    note = "" if any(one.sure for one in explanations) else unknown(problem, search, wrong[0])
    return Diagnosis(tuple(explanations), note, search.tried)


def searched(
    problem: Problem, steps: Mapping[str, Array], mistakes: Sequence[Mistake]
) -> tuple[list[tuple[State, Verdict]], Search]:
    """What the search found, confirmed, and the search; where it explains some samples only, it sees another too."""
    found: list[tuple[State, Verdict]] = []
    last = list(steps)[-1]
    samples = [furthest_sample(steps[last].astype(np.float64), problem.expected(last)[0])]
    tried = 0
    while True:
        search = Search(problem, steps, mistakes, samples)
        states = search.run()
        search.tried = tried = tried + search.tried
        if search.reached == len(steps):
            found = [(state, confirmed(problem, steps, state)) for state in states[:CONFIRMED]]
        if any(verdict.ratio <= 1 for _, verdict in found) or not found or len(samples) == SAMPLES:
            return found, search
        sample = min(found, key=lambda one: one[1].ratio)[1].sample
        if sample in samples:
            return found, search
        samples = [*samples, sample]


def unknown(problem: Problem, search: Search, first: Row) -> str:
    """What is said where no mistake is sure."""
    pairs = " (pairs were not tried, the call is too large: give one sample of few queries)" if search.skipped else ""
    return f"why: unknown, none of the {search.tried} tries among known mistakes gives these numbers{pairs}; first to " \
        f"differ: {said(first)}"


def made(state: State, verdict: Verdict, far: float) -> Explanation:
    """An explanation; far: the ratio of the right answer."""
    fields = ((form.mistake.name, form.how, form.mistake.what) for form in state)
    names, how, what = zip(*fields, strict=True)
    return Explanation(names, how, what, verdict.ratio, sure=far >= SURE and verdict.left <= 0.25)
