"""The output of `mha bench`: tables, and a picture of time and memory against T."""

import io
import itertools
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from mha.bench import cases, devices
from mha.bench.run import Measurement
from mha.core.tables import plain_table

# Colours of Okabe and Ito, for the colour-blind; the marks are for print without colours.
LOOKS = {
    "layer": ("#0072B2", "o"),
    "eager layer": ("#56B4E9", "o"),
    "readable": ("#E69F00", "s"),
    "native": ("#009E73", "^"),
    "eager native": ("#009E73", "<"),
    "second native": ("#CC79A7", "v"),
    "kernel": ("#D55E00", "D"),
    "recorded native": ("#009E73", "2"),
    "recorded call": ("#000000", "+"),
    "call": ("#000000", "P"),
    "NumPy call": ("#000000", "x"),
}
CALLS = ("call", "NumPy call")  # the roles of users' calls, for which the table shows the time above the layer's
AXES = {"milliseconds": "ms", "mebibytes": "peak memory, MiB"}


def about(machine: dict[str, Any]) -> str:
    """The machine and the versions, in three lines."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["frameworks"].items())
    return (
        f"{machine['processor']}, {machine['cores']} cores; no GPU was used\n{machine['system']}\n"
        f"mha {machine['mha']}, Python {machine['python']}, {versions}"
    )


def table(rows: list[Measurement]) -> Table:
    """The rows of one backend and kind, shape by shape."""
    numbers = "ms", "the layer is x times as fast", "us more", "MiB"
    found = _titled_table(f"{rows[0].backend}, {rows[0].kind}", ("shape", "implementation"), numbers)
    for shape, several in itertools.groupby(rows, lambda row: row.shape):
        listed = list(several)
        for row in listed:
            ratios = "" if row.ratios is None else "{1:.2f}  ({0:.2f} to {2:.2f})".format(*row.ratios)
            overhead = "" if row.overhead is None or row.role not in CALLS else f"{row.overhead:,.0f}"
            cells = _time(row.milliseconds), ratios, overhead, _number(row.mebibytes, ",.1f")
            found.add_row(shape, row.implementation, *cells)
        floor = next((row.floor for row in listed if row.floor is not None), None)
        if listed[0].kind != "decoding":
            found.add_row(shape, "matrix products alone", _time(floor), "", "", "")
        found.add_section()
    return found


def table_of_devices(rows: list[devices.SplitMeasurement], count: int) -> Table:
    """The rows of one backend and kind over so many devices, shape by shape."""
    numbers = "ms", "processor time", "busiest", "MiB", "of memory"
    title = f"{rows[0].backend}, {rows[0].kind}, {count} devices"
    found = _titled_table(title, ("shape", "way"), numbers, "note")
    for shape, several in itertools.groupby(rows, lambda row: row.shape):
        for row in several:
            cells = _time(row.milliseconds), _number(row.processor, ".2f"), _number(row.busiest, ".2f")
            memory, share = _number(row.mebibytes, ",.1f"), _number(row.share, ".2f")
            found.add_row(shape, row.way, *cells, memory, share, row.problem or "")
        found.add_section()
    return found


def _titled_table(title: str, names: Sequence[str], numbers: Sequence[str], *notes: str) -> Table:
    """A table with a title and these columns; those of numbers are at the right."""
    found = plain_table(*names, *numbers, *notes)
    found.title, found.title_justify, found.title_style = title, "left", "bold"
    for column in found.columns[len(names) : len(names) + len(numbers)]:
        column.justify = "right"
    return found


def formats() -> list[str]:
    """The suffixes that name a format of pictures."""
    from matplotlib.figure import Figure

    return sorted(Figure().canvas.get_supported_filetypes())


def picture(rows: list[Measurement], suffix: str) -> bytes:
    """Time and peak memory against T, a column for each backend, as a file in the format of the suffix."""
    from matplotlib.figure import Figure

    backends, kinds = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("backend", "kind"))
    lines = list(itertools.product(kinds, AXES))
    figure = Figure(figsize=(1 + 3 * len(backends), 1 + 2.6 * len(lines)), layout="constrained")
    first = next(iter(cases.SWEEP.values()))
    figure.suptitle(f"Self-attention, B = {first.B}, D = {first.D}, H = {first.H}, lengths of 3/4 of T")
    panels = figure.subplots(len(lines), len(backends), sharex=True, sharey="row", squeeze=False)
    for (kind, value), line in zip(lines, panels, strict=True):
        line[0].set_ylabel(f"{kind}\n{AXES[value]}")
        for backend, panel in zip(backends, line, strict=True):
            there = [row for row in rows if (row.backend, row.kind) == (backend, kind)]
            for name, role in {row.implementation: row.role for row in there}.items():
                points = [
                    (cases.SWEEP[row.shape].T, number)
                    for row in there
                    if row.implementation == name and (number := getattr(row, value))
                ]
                colour, mark = LOOKS[role]
                if points:
                    panel.plot(*zip(*points, strict=True), color=colour, marker=mark, markersize=4, label=name)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.grid(alpha=0.3)
    for backend, panel in zip(backends, panels[0], strict=True):
        panel.set_title(backend)
        panel.legend(fontsize="x-small")
    for panel in panels[-1]:
        panel.set_xlabel("T")
        panel.set_xticks(sizes := [shape.T for shape in cases.SWEEP.values()], map(str, sizes), rotation=45)
    file = io.BytesIO()
    figure.savefig(file, format=suffix, dpi=150)
    return file.getvalue()


def _time(milliseconds: float | None) -> str:
    """Milliseconds with three significant digits, or as a whole number."""
    return _number(milliseconds, ".2f" if (milliseconds or 0) < 10 else ".1f" if (milliseconds or 0) < 100 else ".0f")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
