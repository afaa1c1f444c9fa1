"""The rule of "the same" in half precision: what the nearest style of right code leaves of an output.

Right code rounds in a few places, see `styles`. Once the nearest style is simulated and subtracted, little is left, so
that errors show which are far smaller than rounding: by their mean squares, and by their likeness to the change that a
mistake makes. All errors are divided by those that the style itself has in the same row.

Letters as in the lessons; R rows that count.
"""

import copy
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mha.parity.rule.heads import by_samples, finite, flat, merge
from mha.parity.rule.rules import UNIT, bound, ratio_of, row_bounds
from mha.parity.rule.simulation import Simulation
from mha.parity.rule.styles import EXACT, FAMILIES, FUSED, STEPS, WIDE, Border, Core, Family, Style

Array = np.ndarray
NEAR = 0.2  # a style that leaves so much of its own mean square is near enough
BLOCK = 16  # rows that are judged together
# The largest mean squares that right code leaves, times 1 + 4 / sqrt(n) + 8 / n for n numbers.
LIMITS = {"all rows": 1.7, "a sample": 1.8, "16 rows": 3.2, "a row": 12.0, "a feature": 3.5}
# The largest likeness to a change, in standard deviations, for n numbers: a constant, and a share of sqrt(n).
CONSTANT, SHARE = 10.0, 0.25
CHANCE = 4.0  # standard deviations of a sum of rows whose signs are by chance
TIES = 0.125  # where rounded scores are off by more, the softmax goes by chance
VERY_NEAR = 0.02  # a style that leaves so much is that of the code itself: it can judge ties, too
RARE = 0.5  # a rare style, which may err in one direction, has to leave less of its own mean square
CALM = 1 / 32  # so far rounding moves scores at most where styles leave little of each other
SEARCHES = 3  # of a style, at most
FAR = 8.0  # where the likeliest styles leave more, none is near: of right code, they left up to 3.3
UNKNOWN = 4.0  # where the nearest style of a search leaves more, no other search finds a near one
SEARCHED = 96  # rows by which the nearest style is found, about
# The usual error of a row may be small by chance: it is that of so many draws of rounding, if that is so much larger.
DRAWS, BY_CHANCE = 4, 3.0
USUAL = 16  # features for which the usual error of a row counts, beside its own


class Rounding(NamedTuple):
    """How an output rounds: the nearest style of right code, and what it leaves.

    Attributes:
        core, border: where that style rounds.
        left: the mean square of what it leaves, divided by that of its own error.
        ratio: the worst of what is measured, divided by its limit: the same if at most 1.
        worst: what that is, in words.
        ties: the number of rows that are not judged, since rounded scores cannot tell their keys apart.
        limit: the largest error that is allowed.
        rows: the queries in which it leaves most, booleans (B, Q); all that count if none stands out.
    """

    core: Core
    border: Border
    left: float
    ratio: float
    worst: str
    ties: int
    limit: float
    rows: Array

    def __str__(self) -> str:
        style = "nothing but the output, as code in float32 does" if self.border == WIDE else self.core
        words = f"{style} ({self.left:.2g} of its error's square is left)"
        return f"{words}; {self.ties} rows, whose rounded scores are ties, are not judged so" if self.ties else words


class Rows:
    """The rows that count of a call, or of some of its queries, and what styles give there.

    oracle: the output in float64, (B, Q, D). counts: the rows that count, (B, Q). queries: some; None = all.
    """

    def __init__(self, simulation: Simulation, oracle: Array, counts: Array, queries: Array | None = None) -> None:
        self.simulation, self.unit = simulation, UNIT[simulation.dtype]
        self.queries = None if queries is None else tuple(map(int, queries))
        self.counts = counts if queries is None else counts[:, queries]
        self.oracle = self.of(oracle)

    def of(self, X: Array) -> Array:
        """Return these rows of all queries', (R, any) of (B, Q, any)."""
        return np.asarray((X if self.queries is None else X[:, self.queries])[self.counts])

    def output(self, border: Border, core: Core) -> Array:
        """Return a style's output, (R, D)."""
        return np.asarray(self.simulation.output(border, core, self.queries)[self.counts])

    @functools.cached_property
    def usual(self) -> tuple[Array, Array]:
        """Return the errors of the likeliest fused style and of the likeliest in steps, each (R,)."""
        start = Border.usual(self.simulation.config)
        fused, steps = (row_errors(self.output(start, kind[0]), self.oracle) for kind in (FUSED, STEPS))
        return fused, steps

    def errors(self, border: Border, core: Core) -> Array:
        """Return the usual error of each number in a style, (R, D).

        It is that of its row, and its own rounding at least. That of the row is over what the style and the likeliest
        of its kind give, as either may be small by chance. What is near to no style is measured from exact numbers,
        with the errors of usual code.
        """
        if (border, core) == EXACT:
            rows = np.maximum(*self.usual)
        else:
            own = row_errors(self.output(border, core), self.oracle)
            rows = np.hypot(own, self.usual[core.rounds_scores]) / math.sqrt(2)
        return np.maximum(rows[:, None], self.unit * np.abs(self.oracle))


class HalfPrecision:
    """The rule for one call.

    simulation: of the call. oracle: its output in float64, (B, Q, D). counts: the rows that count, (B, Q). style: the
    kind of cores that is tried; None = all. num_heads: of a kernel, whose outputs are heads side by side: each head of
    a sample is a sample here.
    """

    def __init__(
        self, simulation: Simulation, oracle: Array, counts: Array, style: str | None = None, num_heads: int = 1
    ) -> None:
        self.simulation, self.style, self.start = simulation, style, Border.usual(simulation.config)
        self.num_heads, self.oracle_output, self.taken = num_heads, flat(oracle, num_heads), np.zeros(())
        self.counts = np.repeat(counts, num_heads, 0) & np.isfinite(self.oracle_output).all(-1)
        self.every = Rows(simulation, self.oracle_output, self.counts)
        self.samples = np.nonzero(self.counts)[0]  # (R,)

    def base(self) -> Array:
        """Return the output (B, Q, D) of usual code: in each row fused or in steps, whichever errs more."""
        found = self.simulation.output(self.start, FUSED[0]).copy()
        found[self.counts] = self.usual_output
        return found

    @functools.cached_property
    def usual_output(self) -> Array:
        """Return the rows of it that count, (R, D)."""
        fused, steps = (self.every.output(self.start, core) for core in (FUSED[0], STEPS[0]))
        return noisier(fused, steps, self.every.oracle)

    @np.errstate(all="ignore")
    def judge(self, theirs: Array) -> Rounding:
        """Judge an output (B, Q, D), finite where the oracle is, by the style that is nearest to it in a few queries.

        Where that leaves too much, another style may be nearer in the queries in which it leaves most.
        """
        theirs = flat(theirs + self.taken, self.num_heads)
        judged, queries = dict[Style, tuple[Rounding, Array]](), np.flatnonzero(self.counts.any(0))
        few = max(1, SEARCHED // len(self.counts))
        chosen = queries[np.unique(np.linspace(0, max(len(queries) - 1, 0), few).astype(int))]
        for _ in range(SEARCHES):
            search = Search(self, theirs, chosen, VERY_NEAR if judged else NEAR)
            for nearest in (search.nearest, search.nearest_of_all):  # the rare ones where the likely ones do not do
                style = nearest()
                rounding, left = judged[style] = judged.get(style) or self.judge_by(*style, theirs)
                if rounding.ratio <= 1 or search.ends:
                    break
            if rounding.ratio <= 1 or len(chosen) == len(queries) or (self.calm and search.least > UNKNOWN):
                break
            chosen = np.union1d(chosen[::2], np.argsort(-left.max(0), kind="stable")[: few // 2 + 1])
            chosen = chosen[self.counts.any(0)[chosen]]
        found = min(judged.values(), key=lambda one: float(one[1].sum()))[0]
        return found._replace(rows=np.asarray(by_samples(found.rows, self.num_heads).any(1)))  # (B, Q)

    def judge_by(self, border: Border, core: Core, theirs: Array) -> tuple[Rounding, Array]:
        """Judge an output (B, Q, D) by one style; return too what it leaves in each query, by usual errors, (B, Q)."""
        dtype, oracle, theirs = self.simulation.dtype, self.every.oracle, theirs[self.counts]  # (R, D)
        output, errors = self.every.output(border, core), self.every.errors(border, core)
        far, left = theirs - output, np.zeros(self.counts.shape)
        squares = mean_squares(over(far, errors))
        left[self.counts] = mean_squares(over(far, self.every.errors(*EXACT)))
        rows = ~(core.rounds_scores & self.ties(border)[self.counts]) | (squares.mean() <= VERY_NEAR)
        base = noisier(output, self.usual_output, oracle)
        limit = bound(dtype, oracle, base)
        outer = ratio_of(theirs, oracle, limit, row_bounds(dtype, oracle, base))
        measures = [*self.measures(output, errors, far, rows)] if rows.any() else []
        if max(measures, default=(0.0, ""))[0] > 1 and np.median(squares[rows]) <= 1:  # few rows, perhaps by chance
            errors = self.with_drawn(border, core, squares, errors)
            measures = [*self.measures(output, errors, far, rows)]
        ratio, worst = max([(outer, "the largest error"), *measures])
        most = self.counts.copy()
        if (squares > LIMITS["a row"]).any():
            most[self.counts] = squares > LIMITS["a row"]
        share = float(squares[rows].mean()) if rows.any() else 0.0
        return Rounding(core, border, share, ratio, worst, int((~rows).sum()), limit, most), left

    def with_drawn(self, border: Border, core: Core, squares: Array, errors: Array) -> Array:
        """Return usual errors (R, D), in the worst rows those of rounding by chance where these are far larger.

        squares: what the style leaves in each row, (R,).
        """
        worst, drawn = np.zeros(self.counts.shape), np.zeros(self.counts.shape)
        worst[self.counts] = squares
        queries = np.argsort(-worst.max(0), kind="stable")[: max(1, SEARCHED // len(self.counts))]
        rows = Rows(self.simulation, self.oracle_output, self.counts, queries)
        style = (self.start, FUSED[0]) if (border, core) == EXACT else (border, core)
        draws = [self.simulation.drawn(seed).output(*style, rows.queries)[rows.counts] for seed in range(DRAWS)]
        sample, query = np.nonzero(rows.counts)
        drawn[sample, queries[query]] = np.sqrt(np.mean([row_errors(X, rows.oracle) ** 2 for X in draws], 0))
        found = drawn[self.counts][:, None]  # (R, 1)
        return np.where(found > BY_CHANCE * errors, found, errors)

    def error_of(self, rounding: Rounding) -> Array:
        """Return the error of a style, (B, Q, D), 0 in rows that do not count."""
        error = finite(self.simulation.output(rounding.border, rounding.core) - self.oracle_output)
        return merge(by_samples(np.where(self.counts[..., None], error, 0), self.num_heads))

    def without(self, rounding: Rounding) -> "HalfPrecision":
        """Return the rule for outputs from which the error of a style was taken."""
        made = copy.copy(self)
        made.taken = self.error_of(rounding)
        return made

    @np.errstate(all="ignore")
    def ratio_of_change(self, change: Array) -> float:
        """Return the ratio of right code whose output is changed by so much, (B, Q, D), were its style simulated."""
        usual, rows = (self.start, FUSED[0]), np.ones(len(self.samples), bool)
        change = flat(change, self.num_heads)[self.counts]  # (R, D)
        measures = self.measures(self.every.output(*usual), self.every.errors(*usual), change, rows)
        return max((ratio for ratio, _ in measures), default=0.0)

    def ties(self, border: Border) -> Array:
        """Return which queries have scores so large that their rounding decides, (B, Q)."""
        return self.rounding_of_scores(border) > TIES

    def rounding_of_scores(self, border: Border) -> Array:
        """Return how far rounding moves the largest score of each query, (B, Q)."""
        largest = self.simulation.once("largest", self.simulation.largest_scores, border)
        return np.asarray(largest * self.every.unit)

    @functools.cached_property
    def calm(self) -> bool:
        """Return whether rounding moves all scores so little that no right style leaves much of another."""
        return bool((self.rounding_of_scores(self.start)[self.counts] <= CALM).all())

    @property
    def has_ties(self) -> bool:
        """Return whether any query has, so that errors may be as large as the numbers themselves."""
        return bool((self.ties(self.start) & self.counts).any())

    def measures(self, output: Array, errors: Array, far: Array, rows: Array) -> Iterator[tuple[float, str]]:
        """Measure what a style leaves, far (R, D), in rows that it judges: values by their limits, and what of.

        output, errors: the style's, and its usual errors, (R, D).
        """
        errors, samples, oracle = errors[rows], self.samples[rows], self.every.oracle[rows]  # (R, D), (R,), (R, D)
        left = over(far[rows], errors)  # (R, D)
        alike = rows_alike(over(finite(output[rows] - oracle), errors))
        (R, D), squares = left.shape, mean_squares(left)
        blocks = samples * R + (np.arange(R) - np.searchsorted(samples, samples)) // BLOCK
        groups = {"all rows": np.zeros(R, int), "a sample": samples, "16 rows": blocks, "a row": np.arange(R)}
        for name, group in groups.items():
            _, group, sizes = np.unique(group, return_inverse=True, return_counts=True)
            means = np.bincount(group, squares) / sizes
            yield by_limit(means, LIMITS[name], np.maximum(sizes / alike, 1.0) * D), f"the mean square of {name}"
        yield (
            by_limit((left * left).mean(0), LIMITS["a feature"], np.array(max(R / alike, 1.0))),
            "the mean square of a feature",
        )
        yield likeness(left.T[..., None], np.ones((D, R, 1))).max() / alike**0.5, "the mean of a feature"
        changes = {"the output's size": oracle}
        if (moved := self.simulation.once("change", self.simulation.change_of_scale, self.start)) is not None:
            changes["another scale"] = finite(moved[self.counts][rows])
        for name, change in changes.items():
            for own in (slice(None), *(samples == sample for sample in np.unique(samples))):
                yield float(likeness(left[own], over(change, errors)[own])) / alike**0.5, f"the likeness to {name}"


class Search:
    """The search for the style that comes nearest to an output (B, Q, D) in some queries.

    near_enough: what a style may leave of its own mean square to be taken at once.
    """

    def __init__(self, rule: HalfPrecision, theirs: Array, queries: Array, near_enough: float = NEAR) -> None:
        self.rule, self.config, self.start = rule, rule.simulation.config, rule.start
        self.rows = Rows(rule.simulation, rule.oracle_output, rule.counts, queries)
        self.theirs = self.rows.of(theirs).astype(np.float32)  # (R, D)
        ties = self.rows.of(rule.ties(rule.start))  # (R,)
        self.clear = ties if ties.all() else ~ties  # rows by which styles are compared, where none is near
        self.errors = self.rows.errors(*EXACT).astype(np.float32)  # the same for all, or the noisiest is nearest
        self.left: dict[Style, float] = {}  # of all rows
        self.left_clear: dict[Style, float] = {}
        self.near, self.near_enough = list[Style](), near_enough

    @property
    def families(self) -> list[Family]:
        """Return the families of styles that the call may have."""
        return [family for family in FAMILIES if family.serves(self.rule.style, self.rule.simulation.dtype)]

    @property
    def ends(self) -> bool:
        """Return whether there is no more to try: a style is near, or none can be."""
        return bool(self.near) or (self.rule.calm and self.least > FAR)

    def nearest(self) -> Style:
        """Return the nearest likely style: in each family of cores, go to the next nearest, until one is near."""
        likely = [self.cores(family) for family in self.families if family.borders is None]
        first = [(self.start, core) for cores in likely for core in cores[:3]]
        if self.attempt([*first, *[EXACT] * (self.rule.style != "steps")]):
            return self.best()
        if self.ends:  # the nearest is so by chance, and may be a noisy one, which hides a mistake
            usual = [(self.start, kind[0]) for kind in (FUSED, STEPS)]
            return min((style for style in usual if style in self.left), key=self.left_clear.__getitem__)
        for cores in sorted(likely, key=lambda cores: min(self.left[self.start, core] for core in cores[:3])):
            if self.climb(cores):
                break
        return self.best()

    def nearest_of_all(self) -> Style:
        """Return the nearest style after rare ones were tried, too; of these, only one that leaves little."""
        likely = self.best()
        for family in self.families:
            if family.borders and self.attempt(itertools.product(family.borders(self.config), family.cores)):
                return self.best()
        far = self.theirs - self.rows.output(*(found := self.best()))
        return found if mean_squares(over(far, self.rows.errors(*found))).mean() <= RARE else likely

    @property
    def least(self) -> float:
        """Return the least that a style leaves of those that were tried, in clear rows."""
        return min(self.left_clear.values())

    def cores(self, family: Family) -> list[Core]:
        """Return the cores of a family that the call has: tiles are smaller than the number of keys."""
        return [core for core in family.cores if core.tile < self.rule.simulation.num_keys or not core.tile]

    def climb(self, cores: Sequence[Core]) -> bool:
        """Change core and border in turn while that comes nearer; return whether a style was near enough."""
        style, before = (self.start, cores[0]), None
        while style != before:
            before, styles = style, [(style[0], core) for core in cores]
            if self.attempt(styles):
                return True
            border, core = min(styles, key=self.left_clear.__getitem__)
            styles = [(each, core) for each in (border, *border.variations(self.config))]
            if self.attempt(styles):
                return True
            style = min(styles, key=self.left_clear.__getitem__)
        return False

    def attempt(self, styles: Iterable[Style]) -> bool:
        """Try styles until one is near enough; return whether one was."""
        for style in styles:
            if style not in self.left:
                far, most = self.theirs - self.rows.output(*style), VERY_NEAR if style == EXACT else self.near_enough
                squares = mean_squares(over(far, self.errors))
                squares = np.where(np.isfinite(squares), squares, math.inf)
                self.left[style], self.left_clear[style] = float(squares.mean()), float(squares[self.clear].mean())
                if self.left[style] <= most and mean_squares(over(far, self.rows.errors(*style))).mean() <= most:
                    self.near.append(style)
            if style in self.near:
                return True
        return False

    def best(self) -> Style:
        """Return the nearest style of those that were tried: of all rows, among the nearest in clear ones."""
        if self.near:
            return self.near[0]
        most = max(NEAR, 1.1 * self.least)
        return min((style for style, left in self.left_clear.items() if left <= most), key=self.left.__getitem__)


def row_errors(output: Array, oracle: Array) -> Array:
    """Return the root mean square error of each row (R, D) of a style's output, (R,).

    With few features, it is drawn to the usual error, which is the same share of the numbers of each row.
    """
    squares, sizes, D = mean_squares(finite(output - oracle)), mean_squares(oracle), oracle.shape[1]
    usual = sizes * np.median(squares[sizes > 0] / sizes[sizes > 0]) if sizes.any() else sizes
    return np.sqrt((D * squares + USUAL * usual) / (D + USUAL))


def noisier(X: Array, Y: Array, oracle: Array) -> Array:
    """Take each row (R, D) of X, or of Y where that errs more and is finite."""
    further = (row_errors(Y, oracle) > row_errors(X, oracle)) & np.isfinite(Y).all(-1)
    return np.where(further[:, None], Y, X)


def by_limit(means: Array, limit: float, n: Array) -> float:
    """Return the largest mean square of groups of n numbers, by its limit, as a root."""
    return float(np.sqrt((means / (limit * (1 + 4 / np.sqrt(n) + 8 / n))).max()))


def likeness(left: Array, change: Array) -> Array:
    """Return how much of a change (..., R, D) is in what is left, by its limit, (...).

    It is the projection, in standard deviations, less what rows of any sign make of it by chance.
    """
    squares, products = change * change, (left * change).sum(-1)  # (..., R)
    size, n = squares.sum((-2, -1)), over(squares.sum((-2, -1)) ** 2, (squares * squares).sum((-2, -1)))
    found = np.abs(products.sum(-1)) - CHANCE * np.sqrt((products * products).sum(-1))
    return np.maximum(over(found, np.sqrt(size)) / (CONSTANT + SHARE * np.sqrt(n)), 0)


def rows_alike(noise: Array) -> float:
    """Return how many rows (R, D) have the same errors, on the average: 1 if they are independent."""
    R, D = noise.shape
    products = noise.T @ noise / D  # as many squares as those of all pairs of rows
    return float(np.clip((products * products).sum() / R - R / D, 1, R))


def mean_squares(X: Array) -> Array:
    """Return the mean square of each row of X (R, D), (R,)."""
    return np.asarray((X * X).mean(-1))


def over(X: Any, Y: Any) -> Array:
    """Divide, where 0 by 0 is 0."""
    return np.where(X == 0, 0.0, X / Y)
