"""The report of an audit: a row for each attention layer, the first that is wrong, and why; it prints as text."""

import dataclasses
import functools
import json
import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult

from mha.core.tables import Printed, lines, number, plain_table, plural
from mha.models.audit.judging import JudgedCall
from mha.parity.cases.files import case_files
from mha.parity.diagnosis.blind_spots.sight import Sight, Unseen
from mha.parity.diagnosis.blind_spots.views import sight
from mha.parity.diagnosis.compare.report import Report

UNWEIGHED = (
    "weights were not judged, as no like= says what they should be: they are the model's own, so that a kernel which "
    "was transposed when it was loaded, or a bias which was left out, is not seen"
)
RUN = 4  # so many layers that are the same are one line
VerdictName = Literal["same", "differs", "not known", "not called"]


@dataclasses.dataclass(frozen=True, eq=False)
class LayerRow:
    """One layer of a model: its first wrong call, else its worst.

    Attributes:
        path: the path of its module.
        kind: its scheme, or its class; if its kernel alone was judged, the function.
        verdict: "same", "differs", "not known" or "not called".
        note: why it is not known, or further words.
        calls: how many of its calls were compared.
        judged: the call that is shown, None = none was compared.
    """

    path: str
    kind: str
    verdict: VerdictName
    note: str = ""
    calls: int = 0
    judged: JudgedCall | None = None

    @property
    def ratio(self) -> float | None:
        """Its output's error, as a multiple of what rounding explains: the same if at most 1. None if not compared."""
        return None if self.judged is None else self.judged.ratio

    @property
    def of_kernel(self) -> bool:
        """Whether it differs, and is the call of a kernel in no known layer."""
        return self.verdict == "differs" and self.judged is not None and self.judged.layer_call is None

    @property
    def call(self) -> int | None:
        """The number of the model's call that is shown."""
        return None if self.judged is None else self.judged.number

    @property
    def report(self) -> Report | None:
        """The `Report` of `parity.compare` for that call."""
        return None if self.judged is None else self.judged.report

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the layer as it should be, what entered it, what is expected, and bounds, as a case file.

        Raises ValueError if the layer does not differ, or if its kernel alone was judged, OSError if the file cannot be
        written.
        """
        if self.of_kernel:
            raise ValueError(f"{self.path} is a kernel's call, judged alone; only a layer that differs is saved")
        call = None if self.judged is None else self.judged.layer_call
        if call is None:
            raise ValueError(f"{self.path} is {self.verdict}; only a layer that differs is saved")
        if call.sizes.slots is not None:
            raise ValueError("the call has a cache, which a case file of one call cannot hold; save a call without one")
        ones = np.ones((*call.queries.shape[:2], call.config.num_hiddens), call.queries.dtype)
        inputs = call.queries, call.keys, call.values, ones if call.cotangent is None else call.cotangent
        given = call.call.nondefaults() | {"causal": call.call.causal}
        case_files.write(path, case_files.make("a layer of a model", call.layer, inputs, given))

    def as_json(self, why: bool) -> dict[str, Any]:
        """Return the row as plain data; why: with the explanation, which takes seconds to find."""
        names = ("path", "kind", "verdict", "ratio", "call", "calls", "note")
        found = {name: getattr(self, name) for name in names}
        reasons = [] if not why or self.report is None or self.report else self.report.diagnosis.explanations
        return found | ({"why": [str(one) for one in reasons if one.sure]} if why else {})


@dataclasses.dataclass(frozen=True)
class RepairEffect:
    """The effect on the model when each wrong layer gives the right output.

    Attributes:
        paths: the wrong layers.
        moved: how far the outputs of the model move, by their names.
        wrong: the layers that are wrong even so.
        explains: whether the outputs are those of the reference then, in words; "" without a reference.
    """

    paths: tuple[str, ...]
    moved: dict[str, float]
    wrong: tuple[str, ...]
    explains: str = ""

    def __str__(self) -> str:
        what = " and ".join(self.paths[:2]) if len(self.paths) < 3 else plural(len(self.paths), "layer")
        far = ", ".join(f"{name} by {number(X)}" for name, X in self.moved.items()) or "nothing"
        rest = f"then {', '.join(self.wrong)} differ, too" if self.wrong else "no other layer is wrong"
        words = f"with {what} right, the model's output moves ({far}), and {rest}"
        return f"{words}; {self.explains}" if self.explains else words


@dataclasses.dataclass(repr=False, eq=False)
class AuditReport(Printed):
    """An audit of a model: true if at least one layer was compared, and all that were called are known and the same.

    Attributes:
        model: the class of the model.
        layers: a `LayerRow` for each attention layer, in the order of the model; () as long as it is watched.
        truth: the source of the weights that the layers were compared with, in words.
        weighed: whether that source says what the weights should be.
        device: where the arrays of the model are, and whether float32 products may be in TF32 there; "" = not known.
        notes: further lines.
        mended: what changes if the wrong layers are right; None after `watch`, if nothing is wrong, or if the call
            changes a cache.
        kept: of layers that are the same, one call of each configuration.
    """

    model: str
    layers: tuple[LayerRow, ...] = ()
    truth: str = ""
    weighed: bool = False
    device: str = ""
    notes: tuple[str, ...] = ()
    mended: RepairEffect | None = None
    kept: Sequence[JudgedCall] = ()

    def __bool__(self) -> bool:
        verdicts = {row.verdict for row in self.layers if not self.left_out(row)}
        return "same" in verdicts and not verdicts & {"differs", "not known"}

    @staticmethod
    def left_out(row: LayerRow) -> bool:
        """Whether layers= leaves a layer out."""
        return row.kind == "left out"

    @property
    def first(self) -> LayerRow | None:
        """The first layer that differs; None if none does."""
        return next((row for row in self.layers if row.verdict == "differs"), None)

    @property
    def wrong(self) -> tuple[LayerRow, ...]:
        """All layers that differ."""
        return tuple(row for row in self.layers if row.verdict == "differs")

    @property
    def unknown(self) -> tuple[LayerRow, ...]:
        """The layers that could not be judged; `note` has the reason."""
        return tuple(row for row in self.layers if row.verdict == "not known" and not self.left_out(row))

    def bars(self) -> list[tuple[str, float | None, str]]:
        """Return the name, the ratio and the verdict of each layer, for a picture."""
        return [(row.path or "the model", row.ratio, row.verdict) for row in self.layers]

    @functools.cached_property
    def sight(self) -> Sight | None:
        """The mistakes that the calls of this audit could show, if it found no difference; else None."""
        calls = [(one.kept_call, ("output",)) for one in self.kept]
        return sight(calls) if self and calls else None

    @property
    def unseen(self) -> tuple[Unseen, ...]:
        """The known mistakes that would have passed in these very calls; () if something differs."""
        return self.sight.unseen if self.sight else ()

    @functools.cached_property
    def shared(self) -> bool:
        """Whether all compared layers differ by the same mistake, the model's."""
        compared = [row for row in self.layers if row.judged is not None]
        if len(self.wrong) < 2 or len(self.wrong) < len(compared):
            return False
        some = self.wrong[0], self.wrong[len(self.wrong) // 2], self.wrong[-1]
        found = [row.report.diagnosis.explanations if row.report is not None else () for row in some]
        return bool(set.intersection(*({one.mistakes for one in reasons if one.sure} for reasons in found)))

    def to_json(self) -> str:
        """The report as JSON."""
        first = self.first
        return json.dumps({
            "same": bool(self), "model": self.model, "truth": self.truth, "device": self.device,
            "notes": list(self.notes),
            "layers": [row.as_json(row is first or row.verdict != "differs") for row in self.layers],
            "first": first and first.path, "mended": self.mended and str(self.mended),
        }, indent=1)  # fmt: skip

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        place = "" if self.device in ("", "cpu") else f", computed at {self.device}"
        several = plural(len(self.layers), "attention layer")
        yield from lines(f"{self.model}: {several}, against {self.truth}{place}", options)
        table = plain_table("layer", "kind", "ratio", "result", "note")
        for run in equal_runs(self.layers):
            row = max(run, key=lambda one: one.ratio or 0)
            verdict = row.verdict.upper() if row.verdict == "differs" else row.verdict
            at = f"in call {row.call} of {row.calls}" if row.verdict == "differs" and row.calls > 1 else ""
            worst = f"{plural(len(run), 'layer')}, the worst {row.path}" if len(run) > 1 else ""
            path = path_range(run[0].path, run[-1].path) if len(run) > 1 else row.path or "the model"
            note = "; ".join(filter(None, [at, worst, row.note]))
            table.add_row(path, row.kind, "" if row.ratio is None else number(row.ratio), verdict, note)
        yield table
        yield from lines(self.verdict, options)
        if (first := self.first) is not None and first.report is not None:
            yield from lines(f"first to differ: {first.path}", options)
            if self.shared:
                yield from lines("all layers differ by the same mistake: it is the model's", options)
            yield first.report
        if self.mended:
            yield from lines(f"mended: {self.mended}", options)
        if self.sight:
            yield self.sight
        for note in self.notes:
            yield from lines(note, options)
        weights = "" if self.weighed else f"{UNWEIGHED}; "
        yield from lines(f"{weights}nothing outside of attention was compared", options)

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        compared = [row for row in self.layers if row.judged is not None]
        if self.wrong:
            found = f"{len(self.wrong)} of {len(compared)} layers that were compared differ"
        elif compared:
            found = f"the same: {plural(len(compared), 'layer')}"
        else:
            found = "no layer was compared"
        unknown = [f"{len(self.unknown)} not known"] if self.unknown else []
        silent = sum(row.verdict == "not called" for row in self.layers)
        out = sum(map(self.left_out, self.layers))
        more = [*unknown, *[f"{silent} not called"] * bool(silent), *[f"{out} left out"] * bool(out)]
        return f"{found}{'; ' * bool(more)}{', '.join(more)}"


def equal_runs(layers: Sequence[LayerRow]) -> list[list[LayerRow]]:
    """Group the rows as they are printed: equal layers that follow each other share one line."""
    found: list[list[LayerRow]] = []
    for row in layers:
        before = found[-1][0] if found else row
        alike = row.verdict == before.verdict == "same" and (row.kind, row.note) == (before.kind, before.note)
        if found and alike:
            found[-1].append(row)
        else:
            found.append([row])
    return [some for run in found for some in ([run] if len(run) >= RUN else [[row] for row in run])]


def path_range(first: str, last: str) -> str:
    """Join two paths to one range: layers.0 ... 23.attn, if one number differs."""
    ours, theirs = first.split("."), last.split(".")
    differ = [at for at, (X, Y) in enumerate(zip(ours, theirs, strict=False)) if X != Y]
    if len(ours) != len(theirs) or len(differ) != 1:
        return f"{first} ... {last}"
    (at,) = differ
    return ".".join([*ours[:at], f"{ours[at]} ... {theirs[at]}", *ours[at + 1 :]])
