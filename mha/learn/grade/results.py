"""The results of grading, as data and as text for a student: what passed, what differs first, why, and a hint."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from mha.core.tables import lines, text, wrap
from mha.learn.grade.levels import Level
from mha.learn.grade.mistakes import of_level
from mha.parity.diagnosis.mistakes.of_gradients import GRADIENT_MISTAKES
from mha.parity.diagnosis.search.explanations import Explanation, fixes

PASSED, MISSING = "passed", "missing"
STATUS = {
    PASSED: "passed", MISSING: "not done", "wrong": "differs", "raised": "raises an error", "left": "left early",
    "slow": "took too long", "memory": "took too much memory",
}  # fmt: skip
# By the part that a mistake changes, in the order of the steps: the step, and the axis to look at.
STEPS = {
    "q": "the projection or split of queries; look at the axes of features and heads",
    "k": "the projection or split of keys; look at the axes of features and heads",
    "v": "the projection or split of values; look at the axes of features and heads",
    "scores": "the scores (B*H, Q, K), before the softmax; look at their scale, and at the axis d that is summed over",
    "weights": "the attention weights (B*H, Q, K); look at the axis of keys, and at what is hidden there",
    "pooled": "the pooled heads (B*H, Q, d); look at which values are weighed",
    "output": "the merge of the heads, and W_o; look at the axes of heads and features",
    "cache": "the cache; look at the axis of slots, and at positions",
    "gradients": "the backward pass; the output is right",
    "heads": "the split or merge of heads; look at the order of the axes B, H, T, d",
}


@dataclasses.dataclass(frozen=True)
class LevelResult:
    """The result of one level.

    Attributes:
        status: a key of `STATUS`.
        differs: the first difference, or the error, in words.
        case: the case in which it came.
        explanations: mistakes that explain it, best first.
        note: further words.
    """

    level: Level
    status: str
    differs: str = ""
    case: str = ""
    explanations: tuple[Explanation, ...] = ()
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the level has passed."""
        return self.status == PASSED

    @property
    def points(self) -> int:
        """The points of the level, 0 if it has not passed."""
        return self.level.points if self.passed else 0

    @property
    def mistakes(self) -> tuple[tuple[str, ...], ...]:
        """The names of the mistakes in each explanation."""
        return tuple(dict.fromkeys(one.mistakes for one in self.explanations))

    @property
    def reason(self) -> str:
        """Why the level has not passed, in a few words for tables: the mistakes, or else the status."""
        if self.passed:
            return ""
        if self.mistakes:
            return " and ".join(self.mistakes[0])
        return (
            f"{STATUS[self.status]}{': ' * bool(self.differs)}{self.differs}" if self.status != "wrong" else "unknown"
        )

    def step(self) -> str:
        """The step and the axis to look at, as a hint."""
        if self.level.number == 3:
            return STEPS["heads"]
        if not self.mistakes:
            return ""
        name = self.mistakes[0][0]
        if any(one.name == name for one in GRADIENT_MISTAKES):
            return STEPS["gradients"]
        parts = next((one.parts for one in of_level(9) if one.name == name), ())
        return next((text for part, text in STEPS.items() if part in parts), "")

    def feedback(self, hints: int) -> Iterator[str]:
        """The lines for a student; hints: 0 names the level, 1 the step and axis as well, 2 the mistake, too."""
        head = f"level {self.level.number}, {self.level.title}: {STATUS[self.status]}"
        yield head + (f" ({self.note})" if self.note and self.passed else "")
        if self.passed:
            return
        if self.status != "wrong":
            where = f" [{self.case}]" if self.case and self.status != MISSING else ""
            if self.differs:
                yield f"  {self.differs}{where}"
            return
        where = f"in the case {self.case!r}, " if self.case else ""
        yield f"  {where}{self.differs}"
        if hints >= 1 and (step := self.step()):
            yield f"  hint: {step}"
        if hints >= 2:
            for one in self.explanations:
                each = zip(one.mistakes, one.how, one.what, strict=True)
                named = [f"{name}{f' ({how})' if how else ''}: {what}" for name, how, what in each]
                yield f"  {'why' if one is self.explanations[0] else 'or'}: {'; and '.join(named)}"
            yield from (f"  {line}" for line in fixes(self.explanations))
            if not self.explanations:
                yield "  why: none of the known mistakes gives these numbers"


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a submission: its name, its framework and its levels.

    problem: the error while it was loaded, "" = none; hints: how much is printed, see `LevelResult.feedback`.
    """

    name: str
    framework: str
    levels: tuple[LevelResult, ...]
    problem: str = ""
    hints: int = 2

    @property
    def points(self) -> int:
        """The points of all levels."""
        return sum(one.points for one in self.levels)

    @property
    def most(self) -> int:
        """The points of a submission in which all levels pass."""
        return sum(one.level.points for one in self.levels)

    def __bool__(self) -> bool:
        return all(one.passed for one in self.levels)

    def data(self) -> dict[str, Any]:
        """The whole result as data for JSON."""
        return {
            "name": self.name, "framework": self.framework, "points": self.points, "most": self.most,
            "problem": self.problem,
            "levels": [
                {
                    "level": one.level.number, "title": one.level.title, "status": one.status, "points": one.points,
                    "most": one.level.points, "differs": one.differs, "case": one.case, "note": one.note,
                    "mistakes": [list(names) for names in one.mistakes], "reason": one.reason,
                    "text": "\n".join(one.feedback(self.hints)),
                }
                for one in self.levels
            ],
        }  # fmt: skip

    def __str__(self) -> str:
        return text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from lines(f"{self.name}, {self.framework or 'not run'}: {self.points} of {self.most} points", options)
        if self.problem:
            yield from lines(f"while it was loaded: {self.problem}", options)
        for one in self.levels:
            for line in one.feedback(self.hints):
                for each in wrap(line.strip(), options.max_width, "  " * line.startswith("  ")):
                    yield Text(each, no_wrap=True, overflow="ignore")
