"""What a comparison comes to: a row for each array, the first that differs, and why; printed as a table."""

import dataclasses
import functools
import io
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.text import Text

from mha.names import FloatName
from mha.parity.pictures import LEGEND
from mha.parity.rules import fraction
from mha.tables import plain_table, wrapped

if TYPE_CHECKING:
    from mha.parity.diagnosis import Diagnosis


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an array differs.

    index: of the worst number, in their own layout; theirs, expected: what is there, and what float64 NumPy has.
    count: how many numbers are outside the bound; of: how many there are. where: in words, which samples, heads, rows,
    padding or not. picture: the same as lines of characters.
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
    """One array: how far theirs is from float64 NumPy, and how far rounding may carry it.

    name: a step of `trace`, or "gradient." and the name of a gradient. place: None where it is the same, or where the
    shape differs. note: what else there is to say, in a line.
    """

    name: str
    error: float
    bound: float
    place: Place | None = None
    note: str = ""

    @property
    def ratio(self) -> float:
        """Error by bound: the same if at most 1."""
        return fraction(self.error, self.bound)

    @property
    def passed(self) -> bool:
        """Whether the error is within its bound."""
        return self.ratio <= 1


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """A comparison: true if all arrays are the same, printed as a table, its rows as data.

    rows: a `Row` for each array that was given, in the order of `trace`, gradients last. dtype: of the layer.
    """

    rows: tuple[Row, ...]
    dtype: FloatName
    explain: Callable[[], "Diagnosis"] = dataclasses.field(compare=False)

    def __bool__(self) -> bool:
        return all(row.passed for row in self.rows)

    @property
    def first(self) -> Row | None:
        """The first row, in the order of `trace`, that leaves its bound; None if all is the same."""
        return next((row for row in self.rows if not row.passed), None)

    @property
    def ratio(self) -> float:
        """The largest ratio: the same if at most 1."""
        return max(row.ratio for row in self.rows)

    @functools.cached_property
    def diagnosis(self) -> "Diagnosis":
        """Which known mistakes give their numbers; worked out when it is asked for, or printed."""
        return self.explain()

    def __str__(self) -> str:
        return text(self)

    __repr__ = __str__

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = plain_table("array", "ratio", "result", "worst at", "theirs", "expected", "where", folded="where")
        for row in self.rows:
            verdict = "same" if row.passed else "DIFFERS"
            if row.place is None:
                table.add_row(row.name, number(row.ratio), verdict, "", "", "", row.note)
            else:
                place = row.place
                values = number(place.theirs), number(place.expected)
                where = "; ".join(filter(None, [place.where, row.note]))
                table.add_row(row.name, number(row.ratio), verdict, str(place.index), *values, where)
        yield table
        first = self.first
        if first is None:
            yield from lines(f"the same: {counted(len(self.rows), 'array')} within what {self.dtype} explains", options)
            return
        yield Text("")
        yield from lines(f"first to differ: {said(first)}", options)
        if first.place is not None:
            for line in (*first.place.picture, LEGEND):
                yield Text(f"  {line}", no_wrap=True, overflow="ignore")
        yield self.diagnosis


def said(row: Row) -> str:
    """A row that differs, as a sentence."""
    if row.place is None:
        return f"{row.name}: {row.note}"
    place = row.place
    return (
        f"{row.name}, {place.count} of {place.of} numbers; worst at {place.index}: theirs "
        f"{number(place.theirs)}, expected {number(place.expected)}"
    )


def counted(count: int, thing: str) -> str:
    """1 array, 2 arrays."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def number(value: float) -> str:
    """A number in few characters: 0.05, 3.3e+05, 12,000 never."""
    return "0" if value == 0 else f"{value:.3g}"


def lines(text: str, options: ConsoleOptions, indent: str = "") -> RenderResult:
    """A text broken between words."""
    for line in wrapped(text, options.max_width, indent) or [""]:
        yield Text(line, no_wrap=True, overflow="ignore")


def text(printed: ConsoleRenderable) -> str:
    """What `rich` prints, as plain text, as wide as the terminal; in a pipe 100 columns."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, markup=False, highlight=False, emoji=False).print(
        printed, overflow="ignore", crop=False
    )
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
