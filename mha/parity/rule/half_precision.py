"""The rule of "the same" in half precision: what the nearest style of right code leaves of an output.

Right code rounds in a few places, see `styles`. Once the nearest style is simulated and subtracted, little is left, so
that errors show which are far smaller than rounding: by their mean squares, and by their likeness to the change that a
mistake makes. All errors are divided by those that the style itself has in the same row.

Letters as in the lessons; R rows that count.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mha.parity.rule.rules import UNIT, bound, ratio_of, row_bounds
from mha.parity.rule.simulation import Simulation
from mha.parity.rule.styles import EXACT, FUSED, HALVES, PLAIN, QUERIES, STEPS, SUMS, TILES, WIDE, Border, Core

Array = np.ndarray
Style = tuple[Border, Core]
NEAR = 0.2  # a style that leaves so much of its own mean square is near enough
BLOCK = 16  # rows that are judged together
# The largest mean squares that right code leaves, times 1 + 4 / sqrt(n) + 8 / n for n numbers.
LIMITS = {"all rows": 1.7, "a sample": 1.8, "16 rows": 3.2, "a row": 12.0, "a feature": 3.5}
# The largest likeness to a change, in standard deviations, for n numbers: a constant, and a share of sqrt(n).
CONSTANT, SHARE = 10.0, 0.25
CHANCE = 4.0  # standard deviations of a sum of rows whose signs are by chance
TIES = 0.125  # where rounded scores are off by more, the softmax goes by chance
VERY_NEAR = 0.02  # a style that leaves so much is that of the code itself: it can judge ties, too
SEARCHES = 3  # of a style, at most
SEARCHED = 96  # rows by which the nearest style is found, about
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


class HalfPrecision:
    """The rule for one call.

    simulation: of the call. oracle: its output in float64, (B, Q, D). counts: the rows that count, (B, Q). style: the
    kind of cores that is tried; None = all.
    """

    def __init__(self, simulation: Simulation, oracle: Array, counts: Array, style: str | None = None) -> None:
        self.simulation, self.unit, self.style = simulation, UNIT[simulation.dtype], style
        self.oracle_output, self.counts = oracle, counts & np.isfinite(oracle).all(-1)
        self.oracle, self.samples = oracle[self.counts], np.nonzero(self.counts)[0]  # (R, D), (R,)
        self.start = Border.usual(simulation.config)

    def base(self) -> Array:
        """Return the output (B, Q, D) of usual code: in each row fused or in steps, whichever errs more."""
        fused, steps = (self.simulation.output(self.start, core) for core in (FUSED[0], STEPS[0]))
        found = fused.copy()
        found[self.counts] = noisier(fused[self.counts], steps[self.counts], self.oracle)
        return found

    @np.errstate(all="ignore")
    def judge(self, theirs: Array) -> Rounding:
        """Judge an output (B, Q, D), finite where the oracle is, by the style that is nearest to it in a few queries.

        Where that leaves too much, another style may be nearer in the queries in which it leaves most.
        """
        judged, queries = list[tuple[float, Rounding]](), np.flatnonzero(self.counts.any(0))
        few = max(1, SEARCHED // len(self.counts))
        chosen = queries[np.unique(np.linspace(0, max(len(queries) - 1, 0), few).astype(int))]
        for _ in range(SEARCHES):
            rounding, left = self.judge_by(*Search(self, theirs, chosen).nearest(), theirs)
            judged.append((float(left.sum()), rounding))
            if rounding.ratio <= 1 or len(chosen) == len(queries):
                break
            chosen = np.union1d(chosen[::2], np.argsort(-left.max(0), kind="stable")[: few // 2 + 1])
            chosen = chosen[self.counts.any(0)[chosen]]
        return min(judged, key=lambda one: one[0])[1]

    def judge_by(self, border: Border, core: Core, theirs: Array) -> tuple[Rounding, Array]:
        """Judge an output (B, Q, D) by one style; return too what it leaves in each query, by usual errors, (B, Q)."""
        far, errors = theirs[self.counts] - self.output(border, core), self.errors(border, core)
        squares, left = mean_squares(over(far, errors)), np.zeros(self.counts.shape)
        left[self.counts] = mean_squares(over(far, self.errors(*EXACT)))
        rows = ~(core.rounds_scores & self.ties(border)[self.counts]) | (squares.mean() <= VERY_NEAR)
        dtype, base = self.simulation.dtype, noisier(self.output(border, core), self.base()[self.counts], self.oracle)
        limit = bound(dtype, self.oracle, base)
        outer = ratio_of(theirs[self.counts], self.oracle, limit, row_bounds(dtype, self.oracle, base))
        measures = self.measures(border, core, far, rows) if rows.any() else ()
        ratio, worst = max([(outer, "the largest error"), *measures])
        most = self.counts.copy()
        if (squares > LIMITS["a row"]).any():
            most[self.counts] = squares > LIMITS["a row"]
        share = float(squares[rows].mean()) if rows.any() else 0.0
        return Rounding(core, border, share, ratio, worst, int((~rows).sum()), limit, most), left

    @np.errstate(all="ignore")
    def ratio_of_change(self, change: Array) -> float:
        """Return the ratio of right code whose output is changed by so much, (B, Q, D), were its style simulated."""
        every = np.ones(len(self.oracle), bool)
        return max((ratio for ratio, _ in self.measures(self.start, FUSED[0], change[self.counts], every)), default=0.0)

    def output(self, border: Border, core: Core) -> Array:
        """Return the rows that count of a style's output, (R, D)."""
        return self.simulation.output(border, core)[self.counts]

    def errors(self, border: Border, core: Core) -> Array:
        """Return the usual error of each number in a style, (R, D)."""
        return self.usual_errors(border, core, self.output, self.oracle)

    def usual_errors(self, border: Border, core: Core, output: Callable[[Border, Core], Array], oracle: Array) -> Array:
        """Return the usual error of each number of an oracle in a style, (R, D); output: the function that gives it.

        It is that of its row, and its own rounding at least. That of the row is over what the style and the likeliest
        of its kind give, as either may be small by chance. What is near to no style is measured from exact numbers,
        with the errors of usual code.
        """
        usual = [row_errors(output(self.start, kind[0]), oracle) for kind in (FUSED, STEPS)]
        if (border, core) == EXACT:
            rows = np.maximum(*usual)
        else:
            rows = np.hypot(row_errors(output(border, core), oracle), usual[core.rounds_scores]) / math.sqrt(2)
        return np.maximum(rows[:, None], self.unit * np.abs(oracle))

    def ties(self, border: Border) -> Array:
        """Return which queries have scores so large that their rounding decides, (B, Q)."""
        largest = self.simulation.once("largest", self.simulation.largest_scores, border)
        return np.asarray(largest * self.unit > TIES)

    @property
    def has_ties(self) -> bool:
        """Return whether any query has, so that errors may be as large as the numbers themselves."""
        return bool((self.ties(self.start) & self.counts).any())

    def measures(self, border: Border, core: Core, far: Array, rows: Array) -> Iterator[tuple[float, str]]:
        """Measure what a style leaves, far (R, D), in rows that it judges: values by their limits, and what of."""
        errors, samples = self.errors(border, core)[rows], self.samples[rows]  # (R, D), (R,)
        left = over(far[rows], errors)  # (R, D)
        alike = rows_alike(over(finite(self.output(border, core) - self.oracle)[rows], errors))
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
        changes = {"the output's size": self.oracle[rows]}
        if (moved := self.simulation.once("change", self.simulation.change_of_scale, self.start)) is not None:
            changes["another scale"] = finite(moved[self.counts][rows])
        for name, change in changes.items():
            for own in (slice(None), *(samples == sample for sample in np.unique(samples))):
                yield float(likeness(left[own], over(change, errors)[own])) / alike**0.5, f"the likeness to {name}"


class WithoutRounding(NamedTuple):
    """The rule for outputs from which the error of a style, (B, Q, D), was taken."""

    rule: HalfPrecision
    error: Array

    @classmethod
    def of(cls, rule: HalfPrecision, rounding: Rounding) -> "WithoutRounding":
        """Make it for the style that is nearest to an output; the error is 0 in rows that do not count."""
        error = finite(rule.simulation.output(rounding.border, rounding.core) - rule.oracle_output)
        return cls(rule, np.where(rule.counts[..., None], error, 0))

    @property
    def has_ties(self) -> bool:
        """Return whether any query has ties by rounding."""
        return self.rule.has_ties

    def judge(self, theirs: Array) -> Rounding:
        """Judge an output (B, Q, D) without the error."""
        return self.rule.judge(theirs + self.error)


class Search:
    """The search for the style that comes nearest to an output (B, Q, D) in some queries."""

    def __init__(self, rule: HalfPrecision, theirs: Array, queries: Array) -> None:
        self.rule, self.simulation = rule, rule.simulation
        self.rows, self.counts = tuple(map(int, queries)), rule.counts[:, queries]
        self.theirs, self.oracle = (X[:, queries][self.counts] for X in (theirs, rule.oracle_output))  # (R, D)
        clear = ~rule.ties(rule.start)[:, queries][self.counts]
        self.clear = clear if clear.any() else ~clear  # rows by which styles are compared, where none is near
        self.errors = rule.usual_errors(
            *EXACT, self.output, self.oracle
        )  # the same for all, or the noisiest is nearest
        self.left: dict[Style, float] = {}  # of all rows
        self.left_clear: dict[Style, float] = {}
        self.near: list[Style] = []

    def nearest(self) -> Style:
        """Return the nearest style: in each family of cores, go from one to the next nearest, until one is near."""
        tiles = tuple(core for core in TILES if core.tile < self.simulation.num_keys)
        families = {"fused": [(*FUSED, *tiles), QUERIES], "steps": [STEPS, *HALVES]}
        chosen = [family for name, some in families.items() if self.rule.style in (None, name) for family in some]
        first = [(self.rule.start, core) for family in chosen for core in family[:3]]
        if self.attempt([*first, *[EXACT] * (self.rule.style != "steps")]):
            return self.best()
        for family in sorted(chosen, key=lambda family: min(self.left[self.rule.start, core] for core in family[:3])):
            style, before = (self.rule.start, family[0]), None
            while style != before:
                before = style
                cores = [(style[0], core) for core in family]
                if self.attempt(cores):
                    return self.best()
                border, core = min(cores, key=self.left_clear.__getitem__)
                borders = [(each, core) for each in (border, *border.variations(self.simulation.config))]
                if self.attempt(borders):
                    return self.best()
                style = min(borders, key=self.left_clear.__getitem__)
        if self.simulation.dtype == "float16" and self.rule.style != "fused":
            around = self.rule.start, *self.rule.start.variations(self.simulation.config)
            self.attempt((border, core) for border in around for core in SUMS)
        if self.simulation.dtype == "bfloat16" and self.rule.style is None:
            bias = self.simulation.config.bias
            cut = dataclasses.replace(self.rule.start, products=bias, last=bias, cut=True)
            plain = dataclasses.replace(cut, angles=False, cosines=False, turns=False, norms=False)
            usual = PLAIN, FUSED[1], STEPS[4], STEPS[0], STEPS[7], HALVES[0][1], HALVES[1][1]
            places = dict.fromkeys((cut, plain, *plain.variations(self.simulation.config)))
            self.attempt((border, core) for border in places for core in usual)
        return self.best()

    def attempt(self, styles: Iterable[tuple[Border, Core]]) -> bool:
        """Try styles until one is near enough; return whether one was."""
        for style in styles:
            if style not in self.left:
                far, own = self.theirs - self.output(*style), self.rule.usual_errors(*style, self.output, self.oracle)
                squares = mean_squares(over(far, self.errors))
                squares = np.where(np.isfinite(squares), squares, math.inf)
                self.left[style], self.left_clear[style] = float(squares.mean()), float(squares[self.clear].mean())
                most = VERY_NEAR if style == EXACT else NEAR
                if max(self.left[style], mean_squares(over(far, own)).mean()) <= most:
                    self.near.append(style)
            if style in self.near:
                return True
        return False

    def best(self) -> Style:
        """Return the nearest style of those that were tried: of all rows, among the nearest in clear ones."""
        if self.near:
            return self.near[0]
        most = max(NEAR, 1.1 * min(self.left_clear.values()))
        return min((style for style, left in self.left_clear.items() if left <= most), key=self.left.__getitem__)

    def output(self, border: Border, core: Core) -> Array:
        """Return these rows of a style's output, (R, D)."""
        return self.simulation.output(border, core, self.rows)[self.counts]


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
    return np.asarray((X.astype(np.float64) ** 2).mean(-1))


def over(X: Any, Y: Any) -> Array:
    """Divide, where 0 by 0 is 0."""
    return np.where(X == 0, 0.0, X / Y)


def finite(X: Array) -> Array:
    """Return X with 0 where it is not finite."""
    return np.nan_to_num(X, nan=0.0, posinf=0.0, neginf=0.0)
