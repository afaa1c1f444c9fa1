"""The search for known mistakes that, alone or together, give another implementation's numbers."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mha.parity.same.problem import Problem
from mha.parity.same.rules import UNIT, bound, error, fraction, largest, ratio_of, row_bounds
from mha.parity.why.mistakes import Change, Mistake
from mha.parity.why.pipeline import PART_OF, PARTS, Array, Plan, Steps, compute, plan_of, same

NEAR = 0.02  # mistakes in float32 are near if they leave at most this share of the largest number
NEAR_IN_HALF = 0.3
MOST = 6  # mistakes at once, if steps show one after the other
BRANCHES = 8  # sets of mistakes that are followed at once
CONFIRMED = 12  # near sets of mistakes that are computed in all samples
LEFT = 0.25  # the share of the error that an explanation may leave
NOISE = 2.0  # times NumPy's own rounding that it may leave in half precision
LONG = 1.5e11  # multiplications for pairs, at most


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """One form of a mistake, and the mistake's place in the catalogue."""

    place: int
    mistake: Mistake
    how: str
    change: Change


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


class Search:
    """The search for mistakes that give their numbers, in a few samples.

    theirs: their arrays by name, as they are compared, in the order of `trace`; samples: those to compute; tried: how
    many mistakes were tried before.
    """

    def __init__(
        self,
        problem: Problem,
        theirs: Mapping[str, Array],
        mistakes: Sequence[Mistake],
        samples: list[int],
        tried: int = 0,
    ) -> None:
        self.problem, self.dtype, self.theirs, self.samples = problem, problem.config.dtype, theirs, samples
        kind = np.float64 if self.dtype == "float64" else np.float32
        self.small = {name: X[samples].astype(kind) for name, X in theirs.items()}
        self.counts = {name: self.of_small(problem.matters(name)) for name in theirs}
        self.limits = {name: self.limit(name) for name in theirs}
        self.bench, self.tried, self.skipped = Bench(problem, kind, samples), tried, False
        self.forms = self.applicable(mistakes)

    def of_small(self, X: Array) -> Array:
        """Take the samples of the search from an array (B, ...), or one that broadcasts."""
        return X[self.samples] if X.ndim and len(X) > 1 else X

    def limit(self, name: str) -> float:
        """Return how far mistakes may be from one array to count as near: much nearer than the right answer."""
        expected, bound, rows = self.problem.expected(name)
        there, rows = np.where(self.counts[name], self.small[name], 0), None if rows is None else self.of_small(rows)
        far = error(there, self.of_small(expected))
        if ratio_of(there, self.of_small(expected), bound, rows) <= 1:
            return 4 * bound
        if far <= bound:  # only the mean of a row differs
            return 0.75 * far
        near = (NEAR_IN_HALF if "16" in self.dtype else NEAR) * largest(there)
        return min(near, max(far / 4, bound))

    def applicable(self, mistakes: Sequence[Mistake]) -> list[Form]:
        """List the forms of mistakes that are possible here and change something."""
        return [form for form in self.bench.possible(mistakes) if self.changes(form)]

    def changes(self, form: Form) -> bool:
        """Whether a mistake changes any of the given arrays, in the samples of the search."""
        for name in self.small:
            if form.mistake.touches(PART_OF[name]):
                right, wrong = self.bench.steps((), name), self.bench.steps((form,), name)
                if wrong is None or right is None or not np.array_equal(right, wrong, equal_nan=True):
                    return True
        return False

    def distances(self, state: State) -> Iterator[float]:
        """Give for each array in order how far these mistakes are from it, as a share of the limit."""
        for name, X in self.small.items():
            found, counts = self.bench.steps(state, name), self.bench.counts(state, name, self.counts[name])
            if found is None or found.shape != X.shape:
                yield np.inf
            else:
                yield fraction(error(np.where(counts, found, 0), np.where(counts, X, 0)), self.limits[name])

    def progress(self, state: State) -> int:
        """Count the arrays, from the first on, that these mistakes give."""
        self.tried += 1
        return sum(1 for _ in itertools.takewhile(lambda distance: distance <= 1, self.distances(state)))

    def run(self, pairs: bool) -> list[State]:
        """Find the sets of mistakes that give most arrays, from the first on, best first."""
        frontier: list[State] = [()]
        reached = self.progress(())
        while reached < len(self.small) and len(frontier[0]) < MOST:
            further = self.furthest(extended(state, [(form,) for form in self.forms]) for state in frontier)
            if pairs and further[0] <= reached and len(frontier[0]) < MOST - 1:
                two = self.pairs()
                further = self.furthest(extended(state, two) for state in frontier)
            if further[0] <= reached:
                break
            reached, frontier = further
        self.reached = reached
        return sorted((state for state in frontier if state), key=lambda state: round(max(self.distances(state)), 2))

    def tightened(self, state: State) -> bool:
        """Lower the limits to a quarter of the errors that these mistakes leave; whether any is clearly lower now."""
        room = False
        for name, distance in zip(self.small, self.distances(state), strict=True):
            limit = max(distance * self.limits[name] / 4, 4 * self.problem.expected(name).limit)
            room |= limit < 0.9 * self.limits[name] and distance * self.limits[name] > limit
            self.limits[name] = min(limit, self.limits[name])
        return room

    @functools.cached_property
    def classes(self) -> list[list[Form]]:
        """The forms of mistakes, grouped by the numbers that they give."""
        found: dict[tuple[bytes | None, ...], list[Form]] = {}
        for form in self.forms:
            made = [self.bench.steps((form,), name) for name in self.small]
            key = tuple(None if X is None else np.round(X.astype(np.float64), 4).tobytes() for X in made)
            found.setdefault(key, []).append(form)
        return list(found.values())

    def alike(self, state: State) -> list[State]:
        """List other pairs of mistakes that may give the same numbers as this pair."""
        if len(state) != 2:
            return []
        near = [next(forms for forms in self.classes if form in forms) for form in state]
        return [one for one in itertools.product(*near) if one[0].place != one[1].place][:CONFIRMED]

    def pairs(self) -> list[State]:
        """List pairs of mistakes that give different numbers; none if they would take too long."""
        pairs: list[State] = list(itertools.combinations([forms[0] for forms in self.classes], 2))
        self.skipped = len(pairs) * work(self.problem) * len(self.samples) > LONG
        return [] if self.skipped else pairs

    def furthest(self, states: Iterable[Iterable[State]]) -> tuple[int, list[State]]:
        """Return how many arrays the best of these sets of mistakes give, and these sets."""
        best = 0
        found: list[State] = []
        for state in dict.fromkeys(itertools.chain.from_iterable(states)):
            reached = self.progress(state)
            if reached > best:
                best, found = reached, []
            if reached == best and reached:
                found.append(state)
        return best, found if best == len(self.small) else found[:BRANCHES]


class Verdict(NamedTuple):
    """How well these mistakes explain their arrays, in all samples.

    ratio: the worst, by the rule; left: the largest share of the error that they leave; noise: the same, divided by
    NumPy's own rounding; sample: the worst one.
    """

    ratio: float
    left: float
    noise: float
    sample: int

    @property
    def same(self) -> bool:
        """Whether these mistakes give their numbers: within the bound, and little but noise is left of the error."""
        return self.ratio <= 1 and self.left <= LEFT and self.noise <= NOISE


def confirmed(problem: Problem, theirs: Mapping[str, Array], state: State) -> Verdict:
    """Compute these mistakes in all samples, and judge how far their arrays are from that."""
    oracle, base = (Bench(problem, dtype, slice(None)) for dtype in ("float64", problem.config.dtype))
    worst, left, noise, sample = 0.0, 0.0, 0.0, 0
    for name, X in theirs.items():
        counts = oracle.counts(state, name, problem.matters(name))
        wide, narrow = oracle.steps(state, name), base.steps(state, name)
        if wide is None or narrow is None or wide.shape != X.shape:
            return Verdict(np.inf, np.inf, np.inf, 0)
        wide, narrow, there = (np.where(counts, Y, 0).astype(np.float64) for Y in (wide, narrow, X))
        rows = row_bounds(problem.config.dtype, wide, narrow) if name == "output" else None
        ratio = ratio_of(there, wide, bound(problem.config.dtype, wide, narrow), rows)
        if ratio > worst:
            worst, sample = ratio, int(errors(there, wide).argmax())
        right = problem.expected(name)
        right = right._replace(X=np.where(counts, right.X, 0))
        if right.ratio(there) > 1:
            left = max(left, apart(there, wide) / apart(there, right.X)) if np.isfinite(apart(there, wide)) else np.inf
        if "16" in problem.config.dtype:  # its bounds are so wide that a similar mistake is within them
            floor = apart(narrow, wide) + 2 * UNIT[problem.config.dtype] * apart(wide, 0 * wide)
            noise = max(noise, fraction(apart(there, wide), floor))
    return Verdict(worst, left, noise, sample)


def errors(X: Array, expected: Array) -> Array:
    """Sum the errors of each sample, (B,)."""
    far = np.where((expected == X) | (np.isnan(X) & np.isnan(expected)), 0, np.abs(X - expected))
    return np.nan_to_num(far, nan=1e300, posinf=1e300).reshape(len(X), -1).sum(1)


def work(problem: Problem) -> int:
    """Estimate the multiplications for a sample."""
    sizes, config = problem.sizes, problem.config
    pairs = 2 * config.num_heads * sizes.Q * sizes.K * (config.key_dim + 8)  # 8: for the softmax
    kernels = sum(X.size for X in problem.layer.weights.values())
    return pairs + max(sizes.Q, sizes.K) * kernels


def extended(state: State, additions: Iterable[State]) -> Iterable[State]:
    """Give the state with each addition, in the order of the catalogue, without two forms of one mistake."""
    for addition in additions:
        places = {form.place for form in (*state, *addition)}
        if len(places) == len(state) + len(addition):
            yield tuple(sorted((*state, *addition), key=lambda form: form.place))


def apart(X: Array, Y: Array) -> float:
    """Return the root mean square of the differences, infinite if only one of the two is NaN or infinite somewhere."""
    if error(X, Y) == np.inf:
        return np.inf
    far = np.where((X == Y) | (np.isnan(X) & np.isnan(Y)), 0, X - Y)
    return float(np.sqrt((far * far).mean()))
