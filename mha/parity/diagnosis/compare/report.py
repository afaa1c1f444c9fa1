"""The report of a comparison: a row for each array, the first that differs, and why; it prints as a table."""

import dataclasses
import functools
from collections.abc import Callable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from mha.core.options.names import FloatName
from mha.core.tables import Printed, lines, number, plain_table, plural
from mha.parity.diagnosis.blind_spots.sight import Sight, Unseen
from mha.parity.diagnosis.compare.places import LEGEND
from mha.parity.diagnosis.search.explanations import Diagnosis
from mha.parity.rule.half_precision import Rounding
from mha.parity.rule.rules import fraction


@dataclasses.dataclass(frozen=True)
class Place:
    """The place in an array where theirs differs.

    Attributes:
        index: of the worst number, in their own layout.
        theirs, expected: that number, and float64 NumPy's.
        count, of: how many numbers exceed the bound, and how many there are.
        where: which samples, heads and rows, in padding or not, in words.
        picture: the same as lines of characters.
    """

    index: tuple[int, ...]
    theirs: float
    expected: float
    count: int
    of: int
    where: str
    picture: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """One array of a report: how far theirs is from float64 NumPy, and how far rounding may carry it.

    Attributes:
        name: a step of `trace`, "gradient." and the name of a gradient, or "mean weights".
        place: None if it is the same, or if the shape differs.
        note: further words, in a line.
        rounding: of an output in half precision that is not far off, how it rounds: the nearest style of right code,
            what that leaves, and by what it is judged.
        title: its name in the report, "" = its own name.
        rest: in half precision, the worst of all that is measured, by its own bound.
    """

    name: str
    error: float
    bound: float
    place: Place | None = None
    note: str = ""
    rounding: Rounding | None = None
    rest: float = 0.0
    title: str = ""

    @property
    def ratio(self) -> float:
        """Return error by bound, or in half precision the worst of all that is measured: the same if at most 1."""
        return max(fraction(self.error, self.bound), self.rest)

    @property
    def passed(self) -> bool:
        """Return whether the error is within its bound."""
        return self.ratio <= 1


@dataclasses.dataclass(frozen=True, repr=False)
class Report(Printed):
    """A comparison: true if all arrays are the same, printed as a table, its rows as data.

    rows: a `Row` for each array that was given, in the order of `trace`, gradients last. dtype: of the layer.
    """

    rows: tuple[Row, ...]
    dtype: FloatName
    explain: Callable[[], Diagnosis] = dataclasses.field(compare=False)
    look: Callable[[], Sight] | None = dataclasses.field(default=None, compare=False)

    def __bool__(self) -> bool:
        return all(row.passed for row in self.rows)

    @property
    def first(self) -> Row | None:
        """Return the first row, in the order of `trace`, that leaves its bound; None if all is the same."""
        return next((row for row in self.rows if not row.passed), None)

    @property
    def ratio(self) -> float:
        """Return the largest ratio: the same if at most 1."""
        return max(row.ratio for row in self.rows)

    @property
    def rounding(self) -> Rounding | None:
        """Return how the output rounds, of half precision, unless it is far off; None of other arrays."""
        return next((row.rounding for row in self.rows if row.rounding), None)

    @functools.cached_property
    def diagnosis(self) -> Diagnosis:
        """Return the known mistakes that give their numbers; computed when it is first used, or printed."""
        return self.explain()

    @functools.cached_property
    def sight(self) -> Sight | None:
        """Return the known mistakes that would not differ here; None if something differs, or none were looked for."""
        return self.look() if self and self.look else None

    @property
    def unseen(self) -> tuple[Unseen, ...]:
        """Return the known mistakes that would have passed on these very inputs; () if something differs.

        They are worked out when they are first asked for, or printed, in five seconds at most.
        """
        return self.sight.unseen if self.sight else ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = plain_table("array", "ratio", "result", "worst at", "theirs", "expected", "where", folded="where")
        for row in self.rows:
            verdict = "same" if row.passed else "DIFFERS"
            if row.place is None:
                table.add_row(row.title or row.name, number(row.ratio), verdict, "", "", "", row.note)
            else:
                place = row.place
                values = number(place.theirs), number(place.expected)
                where = "; ".join(filter(None, [place.where, row.note]))
                table.add_row(row.title or row.name, number(row.ratio), verdict, str(place.index), *values, where)
        yield table
        first = self.first
        if first is None:
            yield from lines(f"the same: {plural(len(self.rows), 'array')} within what {self.dtype} explains", options)
            if self.rounding:
                yield from lines(f"the output rounds {self.rounding}", options)
            if self.sight:
                yield self.sight
            return
        yield Text("")
        yield from lines(f"first to differ: {describe_row(first)}", options)
        if first.place is not None:
            for line in (*first.place.picture, LEGEND):
                yield Text(f"  {line}", no_wrap=True, overflow="ignore")
        if first.rounding:
            yield from lines(f"the nearest style of right code rounds {first.rounding}", options)
        yield self.diagnosis


def describe_row(row: Row) -> str:
    """Describe a row that differs in a sentence."""
    if row.place is None:
        return f"{row.title or row.name}: {row.note}"
    place = row.place
    return (
        f"{row.title or row.name}, {place.count} of {place.of} numbers; worst at {place.index}: theirs "
        f"{number(place.theirs)}, expected {number(place.expected)}"
    )
