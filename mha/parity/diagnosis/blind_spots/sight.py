"""The sight of a comparison: known mistakes that it would catch, and those that would pass; it prints as text."""

import dataclasses
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult

from mha.core.tables import few, lines, plural

BARELY, NARROW = 0.5, 2.0  # from here to 1 a mistake barely passes, from 1 to here it is narrowly caught
LISTED = 8  # names of mistakes in a line, at most


@dataclasses.dataclass(frozen=True)
class Unseen:
    """A form of a known mistake that would have passed on the very inputs of a comparison.

    Attributes:
        mistake, how: its name and its form, "" if it has one.
        ratio: the largest error that it makes, by its bound.
        shown_by: inputs that would show it, "" = none that were tried, None = there was no time to look for them.
    """

    mistake: str
    how: str
    ratio: float
    shown_by: str | None

    @property
    def barely(self) -> bool:
        """Return whether it comes near to the bound, so that it may show with other rounding."""
        return self.ratio >= BARELY

    def __str__(self) -> str:
        return f"{self.mistake}{f' ({self.how})' if self.how else ''}"


@dataclasses.dataclass(frozen=True)
class Sight:
    """The sight of a comparison that found no difference: which known mistakes it would have caught."""

    unseen: tuple[Unseen, ...]  # mistakes that would have passed
    narrow: tuple[Unseen, ...]  # mistakes that differ by at most twice the bound
    of: int  # the number of forms of mistakes that were tried
    untried: int  # the number of those for which there was no time
    gradients: bool  # whether some were compared, too

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.of and not self.untried:
            where = "with gradients alone" if self.gradients else "without queries and keys"
            yield from lines(f"known mistakes were not tried {where}", options)
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
            yield from lines(f"- {words}: {list_names(some)}", options)
        if self.narrow:
            yield from lines(f"narrowly caught: {list_names(self.narrow)}", options)
        if self.untried:
            yield from lines(f"not tried, there was no time: {plural(self.untried, 'form')}", options)
        yield from lines("lower precision in some steps, such as keys rounded for a cache, was not tried", options)
        if not self.gradients:
            yield from lines("gradients were not compared", options)
        elif self.unseen:
            yield from lines("gradients were compared, too, which may show some of these", options)

    def groups(self) -> dict[str, list[Unseen]]:
        """Return the mistakes that would have passed, by the words for inputs that show them."""
        found: dict[str, list[Unseen]] = {}
        for one in sorted(self.unseen, key=lambda one: (one.shown_by == "", one.shown_by is None)):
            words = "shown by other inputs" if one.shown_by is None else f"shown by {one.shown_by}"
            found.setdefault(words if one.shown_by != "" else "shown by no inputs that were tried", []).append(one)
        return found


def list_names(some: Sequence[Unseen]) -> str:
    """List the names of mistakes, each once, in a line; of a long list, the first."""
    by_name: dict[str, list[str]] = {}
    for one in some:
        by_name.setdefault(one.mistake, []).append(one.how)
    names = [
        name + (f" ({', '.join(few([*filter(None, hows)]))})" if any(hows) else "") for name, hows in by_name.items()
    ]
    more = f"; and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return "; ".join(names[:LISTED]) + more
