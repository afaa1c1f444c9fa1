"""The search for known mistakes that, alone or together, give another implementation's numbers."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from mha.parity.diagnosis.mistakes.bench import Bench, other_forms
from mha.parity.diagnosis.mistakes.mistake import Form, State
from mha.parity.diagnosis.pipeline.parts import PART_OF
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.search.sample import Focus, features_of, telling, worst_first
from mha.parity.diagnosis.search.time_budget import Effort, describe_untried
from mha.parity.diagnosis.search.verdicts import Judge, MistakeVerdict
from mha.parity.rule.problem import Problem
from mha.parity.rule.rules import error, fraction, largest

NEAR = 0.02  # mistakes in float32 are near if they leave at most this share of the largest number
NEAR_IN_HALF = 0.3
MOST = 6  # mistakes at once, if steps show one after the other
BRANCHES = 8  # sets of mistakes that are followed at once
CONFIRMED = 12  # near sets of mistakes that are computed in all samples
SAMPLES, ROUNDS = 3, 6  # of searches, at most


class Search:
    """The search for mistakes that give their numbers, in a few samples and queries.

    theirs: their arrays by name, as they are compared, in the order of `trace`; focus: the samples, queries and
    features to compute; before: the search with a narrower focus, if there was one: what it refuted is not tried again.
    """

    def __init__(
        self,
        problem: Problem,
        theirs: Mapping[str, Array],
        forms: Sequence[Form],
        focus: Focus,
        effort: Effort,
        before: "Search | None" = None,
    ) -> None:
        self.problem, self.theirs, self.focus, self.effort = problem, theirs, focus, effort
        kind = np.float64 if problem.config.dtype == "float64" else np.float32
        self.bench = Bench(problem, kind, *focus)
        self.small = {name: self.bench.cut(name, X).astype(kind) for name, X in theirs.items()}
        self.counts = {name: self.bench.matters(name) for name in theirs}
        # Whether every query that counts sees a key.
        self.all_see = bool((problem.visible.any(3) | ~problem.rows_that_count[:, None]).all())
        self.limits = {name: self.limit(name) for name in theirs}
        seen = [] if before is None else [state for state in before.known if state and before.progress(state) == 0]
        self.known: dict[State, list[float]] = {state: [np.inf] for state in seen}
        self.tried, self.untried, self.rare = len(self.known), {1: 0, 2: 0}, False
        self.forms: list[Form] = self.applicable(forms, () if before is None else before.forms)

    def limit(self, name: str) -> float:
        """Return how far mistakes may be from one array to count as near: much nearer than the right answer."""
        expected, there = self.bench.expected(name), np.where(self.counts[name], self.small[name], 0)
        verdict, bound = expected.judge(there), expected.limit
        if verdict.ratio <= 1:
            return 4 * bound
        if (far := verdict.error) <= bound:  # only the mean of a row differs
            return 0.75 * far
        near = (NEAR_IN_HALF if "16" in self.problem.config.dtype else NEAR) * largest(there)
        return min(near, max(far / 4, bound))

    def applicable(self, forms: Sequence[Form], known: Sequence[Form]) -> list[Form]:
        """List the forms of mistakes that are possible here and change something, as far as the time reaches.

        known: those that change something already with a narrower focus.
        """
        self.unlooked = len(forms)
        found = []
        for form in self.effort.within(forms):
            self.unlooked -= 1
            if self.bench.possible([form]):
                others = other_forms(form) if self.all_see and self.bench.empties(form) else ()
                found += [one for one in (form, *others) if one in known or self.changes(one)]
        return found

    def changes(self, form: Form) -> bool:
        """Return whether a mistake changes any of the given arrays, in the samples and queries of the search."""
        for name in self.small:
            if form.mistake.touches(PART_OF[name]):
                right, wrong = self.bench.steps((), name), self.bench.steps((form,), name)
                if wrong is None or right is None or not np.array_equal(right, wrong, equal_nan=True):
                    return True
        return False

    def distances(self, state: State) -> Iterator[float]:
        """Yield for each array in order how far these mistakes are from it, as a share of the limit."""
        far = self.known.setdefault(state, [])
        for at, (name, X) in enumerate(self.small.items()):
            if at == len(far):
                found, counts = self.bench.steps(state, name), self.bench.counts(state, name, self.counts[name])
                if found is None or found.shape != X.shape:
                    far.append(np.inf)
                else:
                    far.append(error(np.where(counts, found, 0), np.where(counts, X, 0)))
            yield fraction(far[at], self.limits[name])

    def progress(self, state: State) -> int:
        """Count the arrays, from the first on, that these mistakes give."""
        self.tried += state not in self.known
        return sum(1 for _ in itertools.takewhile(lambda distance: distance <= 1, self.distances(state)))

    def run(self, pairs: bool) -> list[State]:
        """Find the sets of mistakes that give most arrays, from the first on, best first."""
        frontier: list[State] = [()]
        reached = self.progress(())
        while reached < len(self.small) and len(frontier[0]) < MOST:
            further = self.furthest(frontier, [(form,) for form in (self.forms if self.rare else self.usual)])
            if further[0] <= reached and len(self.usual) < len(self.forms):
                further = self.furthest(frontier, [(form,) for form in self.forms])
            if pairs and further[0] <= reached and len(frontier[0]) < MOST - 1:
                further = self.furthest(frontier, self.pairs)
            if further[0] <= reached:
                break
            reached, frontier = further
        if reached < len(self.small) and len(self.usual) < len(self.forms):  # one rare mistake, before several
            alone = self.furthest([()], [(form,) for form in self.forms])
            reached, frontier = alone if alone[0] > reached else (reached, frontier)
        self.reached = reached
        return sorted((state for state in frontier if state), key=lambda state: round(max(self.distances(state)), 2))

    def tighten(self, state: State) -> bool:
        """Lower the limits to a quarter of the errors that these mistakes leave; return whether any fell clearly."""
        room = False
        for name, distance in zip(self.small, self.distances(state), strict=True):
            limit = max(distance * self.limits[name] / 4, 4 * self.problem.expected(name).limit)
            room |= limit < 0.9 * self.limits[name] and distance * self.limits[name] > limit
            self.limits[name] = min(limit, self.limits[name])
        return room

    def with_rare(self) -> bool:
        """Try rare mistakes beside the others from now on; return whether that is new."""
        known, self.rare = self.rare, len(self.usual) < len(self.forms)
        return self.rare and not known

    @functools.cached_property
    def classes(self) -> list[list[Form]]:
        """Return the forms of mistakes that are not rare and come with others, grouped by their numbers."""
        found: dict[tuple[bytes | None, ...], list[Form]] = {}
        for form in self.together:
            made = [self.bench.steps((form,), name) for name in self.small]
            key = tuple(None if X is None else np.round(X.astype(np.float64), 4).tobytes() for X in made)
            found.setdefault(key, []).append(form)
        return list(found.values())

    @functools.cached_property
    def usual(self) -> list[Form]:
        """Return the forms of mistakes that are not rare."""
        return [form for form in self.forms if not form.mistake.rare]

    @property
    def together(self) -> list[Form]:
        """Return the forms that are not rare and may be tried together with others."""
        return [form for form in self.usual if not form.alone]

    def alike(self, state: State) -> list[State]:
        """List other pairs of mistakes that may give the same numbers as this pair."""
        if len(state) != 2:
            return []
        near = [next((forms for forms in self.classes if form in forms), [form]) for form in state]
        return [one for one in itertools.product(*near) if one[0].place != one[1].place][:CONFIRMED]

    @functools.cached_property
    def pairs(self) -> list[State]:
        """Return the pairs of mistakes that give different numbers, those first that are soon computed.

        Two that give the same numbers alone may differ behind another change of the same window.
        """
        first = {forms[0] for forms in self.classes}
        pairs: list[State] = list(itertools.combinations([form for form in self.together if form in first], 2))
        plans = ((form, self.bench.plan_with((form,))) for form in self.together)
        windows = [form for form, plan in plans if plan is not None and plan.window != self.bench.plan.window]
        pairs += [pair for pair in itertools.combinations(windows, 2) if not first.issuperset(pair)]
        return sorted(pairs, key=self.bench.work)

    def furthest(self, states: Sequence[State], additions: Sequence[State]) -> tuple[int, list[State]]:
        """Return how many arrays the best of these sets of mistakes give, each with any addition, and these sets."""
        further = dict.fromkeys(itertools.chain.from_iterable(extend(state, additions) for state in states))
        for state in self.effort.within([state for state in further if state not in self.known]):
            self.progress(state)
        reached = {state: self.progress(state) for state in further if state in self.known}
        if additions:
            self.untried[len(additions[0])] = len(further) - len(reached)
        best = max(reached.values(), default=0)
        found = [state for state, count in reached.items() if count == best > 0]
        return best, found if best == len(self.small) else found[:BRANCHES]


def extend(state: State, additions: Iterable[State]) -> Iterable[State]:
    """Yield the state with each addition, in the order of the catalogue, without two forms of one mistake."""
    for addition in additions:
        places = {form.place for form in (*state, *addition)}
        if len(places) == len(state) + len(addition):
            yield tuple(sorted((*state, *addition), key=lambda form: form.place))


class Searches:
    """The searches for the mistakes in their arrays, one after the other, as far as the time reaches.

    found: the sets of mistakes that came near, each with its verdict; tried: how many were tried.
    """

    def __init__(self, problem: Problem, theirs: Mapping[str, Array], forms: Sequence[Form], effort: Effort) -> None:
        self.problem, self.theirs, self.forms, self.effort = problem, theirs, forms, effort
        self.order = worst_first(problem, theirs)
        self.first = Focus(self.order[:1], telling(problem, theirs, self.order[0]), features_of(problem, theirs))
        self.verdict_on = functools.cache(Judge(problem, theirs, self.first).verdict_on)  # of all samples
        self.made: list[Search] = []

    @property
    def tried(self) -> int:
        """Return how many sets of mistakes were tried."""
        return max((search.tried for search in self.made), default=0)

    def search(self, focus: Focus, before: Search | None = None) -> Search:
        """Return the search with a focus."""
        known = [search for search in self.made if search.focus == focus]
        if not known:
            self.made.append(Search(self.problem, self.theirs, self.forms, focus, self.effort, before))
        return (known or self.made)[-1]

    def run(self, pairs: bool) -> list[tuple[State, MistakeVerdict]]:
        """Search for mistakes, and judge what comes near in all samples; pairs: whether to try two at a time.

        If nothing near is the same, search again with lower limits, or with one sample and query more.
        """
        found: list[tuple[State, MistakeVerdict]] = []
        search = self.last = self.search(self.first)
        for _ in range(ROUNDS):
            states = search.run(pairs)
            self.last = search
            if not states and search.reached == len(self.theirs):
                break
            if search.reached < len(self.theirs):  # perhaps a mistake alone changes nothing in these samples
                more = next((sample for sample in self.order if sample not in search.focus.samples), None)
                if more is None or len(search.focus.samples) == SAMPLES or self.effort.over:
                    break
                wider = self.search(search.focus.wider(more, None), search)
                if len(wider.forms) <= len(search.forms):
                    break
                search = wider
                continue
            judged = [(state, self.verdict_on(state)) for state in states[:CONFIRMED]]
            found += judged
            if same := [state for state, verdict in judged if verdict.same]:
                known = {state for state, _ in found}
                alike = dict.fromkeys(other for state in same for other in search.alike(state) if other not in known)
                return [*found, *((state, self.verdict_on(state)) for state in alike)]
            if not search.tighten(states[0]):
                focus = self.counterexample(search.focus, [verdict for _, verdict in judged])
                if focus != search.focus and len(focus.samples) <= SAMPLES:
                    search = self.search(focus, search)
                elif not search.with_rare():  # nothing near is the same, so a rare mistake may be it
                    break
        return found

    def counterexample(self, focus: Focus, verdicts: Sequence[MistakeVerdict]) -> Focus:
        """Widen the focus by the sample and query in which the best of what came near is worst."""
        for one in sorted(verdicts, key=lambda one: one.left):
            if (wider := focus.wider(one.sample, one.row)) != focus:
                return wider
        return focus

    @property
    def untried_note(self) -> str:
        """Return the words for mistakes that were not tried, since there was no time; "" if all were."""
        return describe_untried(self.last.unlooked + self.last.untried[1], self.last.untried[2])
