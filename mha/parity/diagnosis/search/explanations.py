"""The diagnosis of a difference: explanations of numbers by mistakes; it prints as text."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from mha.core.tables import Printed, few, lines, number
from mha.parity.diagnosis.mistakes.mistake import State


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Mistakes that together give their numbers.

    Attributes:
        mistakes: their names.
        how: the form of each, "" if it has one form.
        what: the effect of each.
        ratio: how far theirs is from the numbers with these mistakes, by the rule: at most 1 is the same. With mistakes
            of rounding it may be above 1.
        left: the share of the error that they leave.
        sure: whether they explain it.
        also: other names that one mistake has in this layer, as 1 / d is a scale that is applied twice.
        fix: what right code does instead of each, "" or () = not known.
    """

    mistakes: tuple[str, ...]
    how: tuple[str, ...]
    what: tuple[str, ...]
    ratio: float
    left: float
    sure: bool
    also: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()

    def __str__(self) -> str:
        here = f"the same here as {' and '.join(self.also)}" if self.also else ""
        hows = ["; ".join(filter(None, [how, here])) for how in self.how]
        each = zip(self.mistakes, hows, self.what, strict=True)
        named = [f"{name}{f' ({how})' if how else ''}: {what}" for name, how, what in each]
        fit = f"ratio {number(self.ratio)}" if self.ratio <= 1 else f"leaves {self.left:.0%} of the error"
        return f"{'; and '.join(named)} [{fit}]"


def explain(state: State, ratio: float, left: float, sure: bool) -> Explanation:
    """Make the explanation by a set of mistakes; ratio, left, sure: as of an `Explanation`."""
    fields = ((form.mistake.name, form.how, form.mistake.what, form.mistake.fix) for form in state)
    names, how, what, fix = zip(*fields, strict=True)
    return Explanation(names, how, what, ratio, left, sure, fix=fix)


def merge_alike(explanations: Sequence[Explanation]) -> list[Explanation]:
    """Join explanations of the same mistakes into one, with all forms; the rest is that of the first, the best."""
    together: dict[tuple[str, ...], list[Explanation]] = {}
    for one in explanations:
        together.setdefault((*one.mistakes, "sure" if one.sure else ""), []).append(one)
    found = []
    for alike in together.values():
        forms = zip(*(one.how for one in alike), strict=True)
        how = tuple(" or ".join(few(list(dict.fromkeys(each)))) for each in forms)
        found.append(dataclasses.replace(alike[0], how=how))
    return found


def fixes(sure: Sequence[Explanation]) -> list[str]:
    """Say what right code does, a line for each mistake, if one explanation alone is sure."""
    return [f"fix: {fix}" for fix in sure[0].fix if fix] if len(sure) == 1 else []


@dataclasses.dataclass(frozen=True, repr=False)
class Diagnosis(Printed):
    """The reasons why theirs differs: explanations, best first; several if the given arrays fit them all.

    Attributes:
        note: further words, in a line.
        tried: how many mistakes and combinations were tried.
        call: if the described call is not the one that was made, the arguments as they should have been, by name; {} =
            it is.
        more: what comes after attention in their output, in words; "" = nothing that was recognised.
    """

    explanations: tuple[Explanation, ...]
    note: str
    tried: int
    call: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    more: str = ""

    @property
    def known(self) -> bool:
        """Return whether an explanation is sure, or the reason is another call or more than attention."""
        return bool(self.call or self.more) or any(one.sure for one in self.explanations)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """Return the names of the mistakes in the best explanation that is sure; () if none is."""
        return next(iter(self.alternatives), ())

    @property
    def alternatives(self) -> tuple[tuple[str, ...], ...]:
        """Return the names of the mistakes in each explanation that is sure, the best first."""
        return tuple(dict.fromkeys(one.mistakes for one in self.explanations if one.sure))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sure = [one for one in self.explanations if one.sure]
        if len(sure) > 1:
            yield from lines("why: one of these, which all fit what was given", options)
        for one in sure:
            yield from lines(f"{'' if len(sure) > 1 else 'why: '}{one}", options)
        for line in fixes([] if self.call else sure):  # another call may be the reason, too
            yield from lines(line, options)
        if self.note:
            yield from lines(self.note, options)
        for one in self.explanations:
            if not one.sure:
                yield from lines(f"perhaps: {one}", options)
