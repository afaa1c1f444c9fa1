"""The report of a comparison: a row for each array, the first that differs, and why; it prints as a table."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from mha.names import FloatName
from mha.parity.same.rules import fraction
from mha.parity.why.pictures import LEGEND
from mha.tables import counted, lines, number, plain_table, text

BARELY, NARROW = 0.5, 2.0  # from here to 1 a mistake barely passes, from 1 to here it is narrowly caught
LISTED = 8  # so many names of mistakes stand in a line


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an array differs.

    index: of the worst number, in their own layout; theirs, expected: that number, and float64 NumPy's.
    count: how many numbers exceed the bound; of: how many there are. where: which samples, heads and rows, in padding
    or not, in words. picture: the same as lines of characters.
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

    name: a step of `trace`, or "gradient." and the name of a gradient. place: None if it is the same, or if the shape
    differs. note: further words, in a line. rows: of an output in half precision, the largest root mean square of a
    row's errors, by its own bound.
    """

    name: str
    error: float
    bound: float
    place: Place | None = None
    note: str = ""
    rows: float = 0.0

    @property
    def ratio(self) -> float:
        """Error by bound, of the largest number or row: the same if at most 1."""
        return max(fraction(self.error, self.bound), self.rows)

    @property
    def passed(self) -> bool:
        """Whether the error is within its bound."""
        return self.ratio <= 1


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Mistakes that together give their numbers.

    mistakes: the names; how: the form of each ("" if it has one form); what: the effect of each; ratio: how far theirs
    is from the numbers with these mistakes, by the rule: at most 1 is the same; left: the share of the error that they
    leave; sure: whether they explain it. With mistakes of rounding, the ratio may be above 1.
    """

    mistakes: tuple[str, ...]
    how: tuple[str, ...]
    what: tuple[str, ...]
    ratio: float
    left: float
    sure: bool

    def __str__(self) -> str:
        each = zip(self.mistakes, self.how, self.what, strict=True)
        named = [f"{name}{f' ({how})' if how else ''}: {what}" for name, how, what in each]
        fit = f"ratio {number(self.ratio)}" if self.ratio <= 1 else f"leaves {self.left:.0%} of the error"
        return f"{'; and '.join(named)} [{fit}]"


@dataclasses.dataclass(frozen=True, repr=False)
class Diagnosis:
    """Why theirs differs: explanations, best first; several if the given arrays fit them all.

    note: further words, in a line; tried: how many mistakes and combinations were tried.
    """

    explanations: tuple[Explanation, ...]
    note: str
    tried: int

    @property
    def known(self) -> bool:
        """Whether an explanation is sure."""
        return any(one.sure for one in self.explanations)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The names of all mistakes in explanations that are sure, best first."""
        return tuple(dict.fromkeys(name for one in self.explanations if one.sure for name in one.mistakes))

    def __str__(self) -> str:
        return text(self)

    __repr__ = __str__

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sure = [one for one in self.explanations if one.sure]
        if len(sure) > 1:
            yield from lines("why: one of these, which all fit what was given", options)
        for one in sure:
            yield from lines(f"{'' if len(sure) > 1 else 'why: '}{one}", options)
        if self.note:
            yield from lines(self.note, options)
        for one in self.explanations:
            if not one.sure:
                yield from lines(f"perhaps: {one}", options)


@dataclasses.dataclass(frozen=True)
class Unseen:
    """A form of a known mistake that would have passed on the very inputs of a comparison.

    mistake, how: its name and its form ("" if it has one); ratio: the largest error that it makes, by its bound;
    shown_by: inputs that would show it, "" = none that were tried, None = there was no time to look for them.
    """

    mistake: str
    how: str
    ratio: float
    shown_by: str | None

    @property
    def barely(self) -> bool:
        """Whether it comes near to the bound, so that it may show with other rounding."""
        return self.ratio >= BARELY

    def __str__(self) -> str:
        return f"{self.mistake}{f' ({self.how})' if self.how else ''}"


@dataclasses.dataclass(frozen=True)
class Sight:
    """What a comparison that found no difference could see.

    unseen: mistakes that would have passed; narrow: those that differ by at most twice the bound; of: the number of
    forms of mistakes that were tried; untried: of those for which there was no time; gradients: whether some were
    compared, too.
    """

    unseen: tuple[Unseen, ...]
    narrow: tuple[Unseen, ...]
    of: int
    untried: int
    gradients: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.of and not self.untried:
            yield from lines("known mistakes were not tried with gradients alone", options)
            return
        known = f"{self.of} forms of known mistakes"
        if not self.of:
            yield from lines("no known mistake was tried", options)
        elif not self.unseen:
            yield from lines(f"each of {known} would differ here", options)
        else:
            barely = sum(one.barely for one in self.unseen)
            also = f", {barely} of them barely" if barely else ""
            yield from lines(f"{len(self.unseen)} of {known} would pass here, too{also}:", options)
        for words, some in self.groups().items():
            yield from lines(f"- {words}: {listed(some)}", options)
        if self.narrow:
            yield from lines(f"narrowly caught: {listed(self.narrow)}", options)
        if self.untried:
            yield from lines(f"not tried, there was no time: {counted(self.untried, 'form')}", options)
        if not self.gradients:
            yield from lines("gradients were not compared", options)
        elif self.unseen:
            yield from lines("gradients were compared, too, which may show some of these", options)

    def groups(self) -> dict[str, list[Unseen]]:
        """The mistakes that would have passed, by what shows them, in words."""
        found: dict[str, list[Unseen]] = {}
        for one in sorted(self.unseen, key=lambda one: (one.shown_by == "", one.shown_by is None)):
            words = "shown by other inputs" if one.shown_by is None else f"shown by {one.shown_by}"
            found.setdefault(words if one.shown_by != "" else "shown by no inputs that were tried", []).append(one)
        return found


def few(forms: list[str]) -> list[str]:
    """Keep the first of many forms."""
    return forms if len(forms) <= 4 else [*forms[:3], "..."]


def listed(some: Sequence[Unseen]) -> str:
    """Put the names of mistakes, each once, into a line, those of a long list in part."""
    by_name: dict[str, list[str]] = {}
    for one in some:
        by_name.setdefault(one.mistake, []).append(one.how)
    names = [
        name + (f" ({', '.join(few([*filter(None, hows)]))})" if any(hows) else "") for name, hows in by_name.items()
    ]
    more = f"; and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return "; ".join(names[:LISTED]) + more


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
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
        """The first row, in the order of `trace`, that leaves its bound; None if all is the same."""
        return next((row for row in self.rows if not row.passed), None)

    @property
    def ratio(self) -> float:
        """The largest ratio: the same if at most 1."""
        return max(row.ratio for row in self.rows)

    @functools.cached_property
    def diagnosis(self) -> Diagnosis:
        """The known mistakes that give their numbers; computed when it is first used, or printed."""
        return self.explain()

    @functools.cached_property
    def sight(self) -> Sight | None:
        """What the comparison could see if it found no difference; None if it did, or if nothing was looked for."""
        return self.look() if self and self.look else None

    @property
    def unseen(self) -> tuple[Unseen, ...]:
        """The known mistakes that would have passed on these very inputs; () if something differs.

        They are worked out when they are first asked for, or printed, in five seconds at most.
        """
        return self.sight.unseen if self.sight else ()

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
            if self.sight:
                yield self.sight
            return
        yield Text("")
        yield from lines(f"first to differ: {said(first)}", options)
        if first.place is not None:
            for line in (*first.place.picture, LEGEND):
                yield Text(f"  {line}", no_wrap=True, overflow="ignore")
        yield self.diagnosis


def said(row: Row) -> str:
    """Put a row that differs into a sentence."""
    if row.place is None:
        return f"{row.name}: {row.note}"
    place = row.place
    return (
        f"{row.name}, {place.count} of {place.of} numbers; worst at {place.index}: theirs "
        f"{number(place.theirs)}, expected {number(place.expected)}"
    )
