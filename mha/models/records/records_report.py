"""The report of two records: where their difference begins, and a row for each module; it prints as text."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from mha.core.tables import Printed, few, lines, number, plain_table, plural
from mha.models.audit.audit_report import AuditReport, LayerRow
from mha.models.records.doubts import path_pattern
from mha.models.records.stepping import StepRow, is_inside

NO_WEIGHTS = "record B with weights=True, and its attention is judged by float64 NumPy, too"
SHOWN = 40  # rows of a table; of more modules, those of whole blocks are shown


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """One of the two models: its class, framework, record and checkpoint."""

    name: str
    framework: str
    where: str
    checkpoint: Mapping[str, str] | None

    def __str__(self) -> str:
        read = f", from {self.checkpoint['name']}" if self.checkpoint else ""
        return f"{self.name} ({self.framework}, {self.where}{read})"


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class RecordsReport(Printed):
    """A comparison of two records: true if nothing differs beyond rounding.

    Attributes:
        models: A and B.
        rows: a `StepRow` for each input and output of a module, in the order of A's calls.
        partners: the path in B of each module of A.
        alone: the paths of modules that A alone called, and B alone.
        notes: further lines.
        left: which texts have no partner, in words.
        audits: of the attention layers of A and B by the oracle, None where it could not judge.
        unjudged: why it did not judge B, "" if it did.
        left_out: paths of B that do not count.
    """

    models: tuple[ModelFacts, ModelFacts]
    rows: tuple[StepRow, ...]
    partners: Mapping[str, str]
    alone: tuple[tuple[str, ...], tuple[str, ...]]
    notes: tuple[str, ...]
    left: str
    audits: tuple[AuditReport | None, AuditReport | None]
    unjudged: str = ""
    left_out: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return (
            bool(self.rows)
            and not (self.wrong or self.left)
            and all(row.verdict in ("same", "another cut") for row in self.rows)
        )

    @property
    def first(self) -> StepRow | None:
        """The first step that differs; None if none does."""
        return next((row for row in self.rows if row.verdict == "differs"), None)

    @property
    def blind(self) -> StepRow | None:
        """The first step where rounding alone may change everything; None if there is none."""
        return next((row for row in self.rows if row.verdict == "not told"), None)

    @property
    def cuts(self) -> tuple[str, ...]:
        """The modules that take or return another step of the other model."""
        rows = [row for row in self.rows if row.verdict == "another cut"]
        return tuple(dict.fromkeys(f"the {row.what} of {path_pattern(row.path) or 'the model'}" for row in rows))

    @property
    def wrong(self) -> tuple[LayerRow, ...]:
        """The attention layers of B that the oracle finds wrong, and right in A."""
        first, second = self.audits
        also: set[str | None] = {self.partners.get(row.path) for row in first.wrong} if first is not None else set()
        also |= self.left_out
        return tuple(row for row in second.wrong if row.path not in also) if second is not None else ()

    @property
    def layer(self) -> LayerRow | None:
        """The attention layer of B that the oracle finds wrong where the difference begins; None if there is none."""
        first = self.first
        if first is None:
            return self.wrong[0] if self.wrong else None
        return next((row for row in self.wrong if is_inside(first.other, row.path)), None)

    def bars(self) -> list[tuple[str, float | None, str]]:
        """Return the name, the ratio and the verdict of each module, for a picture."""
        return [(f"{row.path or 'the model'}, {row.what}", row.ratio, row.verdict) for row in self.shown]

    @property
    def begins(self) -> str:
        """Where the difference begins, in a sentence; "" if there is none."""
        first, layer = self.first, self.layer
        if first is None:
            return f"the difference begins at {layer.path}, by what the oracle says of it" if layer else ""
        name = first.path or "the model"
        also = f" ({first.other} in B)" if first.other != first.path else ""
        if first.what == "output" and first.leaf:
            said = f"the difference begins at {name}{also}: its input is the same, its output differs"
        elif first.what == "output":
            said = f"the difference begins at the end of {name}{also}: its parts are the same, its output differs"
        else:
            at = self.rows.index(first)
            earlier = self.rows[at - 1 :: -1] if at else ()
            before = next((one.path for one in earlier if one.what == "output" and one.path), "")
            where = f"between {before} and {name}{also}" if before else f"at {name}{also}"
            said = f"the difference begins {where}: what enters {name} differs"
        return f"{said}; {first.note}" if first.note else said

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        if self.first is not None or self.wrong:
            return self.begins
        same = [row for row in self.rows if row.verdict != "another cut"]
        worst = max((row.far for row in same), default=0.0)
        if self.blind is not None:
            told = (self.blind.path or "the model", self.blind.what)
            also = ", or with weights=True" if self.unjudged == NO_WEIGHTS else ""
            return (
                f"nothing differs beyond rounding, but from the {told[1]} of {told[0]} on nothing can be told, as "
                f"rounding alone may change all of it; record both models in float32{also}"
            )
        if not self.rows:
            return "nothing was compared"
        return f"the same: {plural(len(same), 'step')}; they differ by {number(worst)} at most, which is rounding"

    @property
    def shown(self) -> list[StepRow]:
        """The worst rows of each module; of many modules, those around the first that differs."""
        found: dict[tuple[str, str], StepRow] = {}
        for row in self.rows:
            before = found.setdefault((row.path, row.what), row)
            found[row.path, row.what] = max(before, row, key=lambda one: (one.verdict == "differs", one.ratio))
        rows = list(found.values())
        if len(rows) <= SHOWN:
            return rows
        at = next((at for at, row in enumerate(rows) if row.verdict == "differs"), None)
        blocks = {row.path: row for row in rows if row.path.split(".")[-1].isdigit() and row.what == "output"}
        near = rows[max(0, at - 6) : at + 6] if at is not None else []
        return [row for row in rows if row in near or row is blocks.get(row.path) or row is rows[-1]]

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps({
            "same": bool(self), "verdict": self.verdict, "first": self.first and as_json(self.first),
            "models": [dataclasses.asdict(one) for one in self.models],
            "rows": [as_json(row) for row in self.rows], "partners": dict(self.partners),
            "alone": [list(one) for one in self.alone], "notes": [*self.notes, *[self.left] * bool(self.left)],
            "attention": [None if one is None else json.loads(one.to_json()) for one in self.audits],
        }, indent=1)  # fmt: skip

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from lines(f"A: {self.models[0]}", options)
        yield from lines(f"B: {self.models[1]}", options)
        table = plain_table("module", "step", "differs by", "rounding", "ratio", "result")
        for row in self.shown:
            name = row.path or "the model"
            verdict = row.verdict.upper() if row.verdict == "differs" else row.verdict
            table.add_row(name, row.what, number(row.far), number(row.bound), number(row.ratio), verdict)
        yield table
        yield from lines(self.verdict, options)
        layer = self.layer
        if layer is not None and layer.report is not None:
            yield from lines(f"{layer.path} of B, judged by float64 NumPy on what entered it there:", options)
            yield layer.report
        elif self.unjudged and not self:
            also = "" if self.unjudged == NO_WEIGHTS else "the attention of B was not judged by float64 NumPy: "
            yield from lines(f"{also}{self.unjudged}", options)
        if self.cuts:
            yield from lines(f"cut elsewhere, which is no difference: {', '.join(few(list(self.cuts)))}", options)
        for side, paths in zip("AB", self.alone, strict=True):
            if paths:
                yield from lines(f"called in {side} alone: {', '.join(few(list(paths)))}", options)
        for note in (*self.notes, *[self.left] * bool(self.left)):
            yield from lines(note, options)


def as_json(row: StepRow) -> dict[str, Any]:
    """Return a row as plain data; infinite numbers as None."""
    found = dataclasses.asdict(row)
    return {name: None if isinstance(X, float) and not math.isfinite(X) else X for name, X in found.items()}
