"""The search for known mistakes that, alone or together, give another implementation's numbers."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from mha.parity.mistakes.bench import Bench, State
from mha.parity.mistakes.mistake import Form, Mistake
from mha.parity.pipeline.parts import PART_OF
from mha.parity.pipeline.pieces import Array
from mha.parity.same.problem import Problem
from mha.parity.same.rules import error, fraction, largest, ratio_of

NEAR = 0.02  # mistakes in float32 are near if they leave at most this share of the largest number
NEAR_IN_HALF = 0.3
MOST = 6  # mistakes at once, if steps show one after the other
BRANCHES = 8  # sets of mistakes that are followed at once
CONFIRMED = 12  # near sets of mistakes that are computed in all samples
LONG = 1.5e11  # multiplications for pairs, at most


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
