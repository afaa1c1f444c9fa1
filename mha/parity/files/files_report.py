"""The report of a comparison of two files: their layers pair by pair, and what was not compared."""

import dataclasses
import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult

from mha.parity.files.one_file import Layer
from mha.parity.why.two_layers import LayersReport
from mha.tables import counted, few, lines, number, plain_table, text

Pair = tuple[Layer, Layer]


@dataclasses.dataclass(frozen=True, repr=False)
class FilesReport:
    """A comparison of the layers of two files, A and B: true if all are the same, printed as a table.

    paths: of the files. layers: of each pair, (scheme, prefix) in A and in B. reports: the `LayersReport` of each; the
    first that differs has the reason. notes: further lines. others: the names of all arrays in A, and in B, that were
    not compared.
    """

    paths: tuple[str, str]
    layers: tuple[Pair, ...]
    reports: tuple[LayersReport, ...]
    notes: tuple[str, ...]
    others: tuple[tuple[str, ...], tuple[str, ...]]

    def __bool__(self) -> bool:
        return all(self.reports)

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        if len(self.reports) == 1:
            return self.reports[0].verdict
        wrong = [report for report in self.reports if not report]
        if not wrong:
            return f"all {len(self.reports)} layers are the same"
        return f"{len(wrong)} of {len(self.reports)} layers differ; the first: {wrong[0].verdict}"

    def __str__(self) -> str:
        return text(self)

    __repr__ = __str__

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        one = len(self.layers) == 1
        for name, path, layer in zip("AB", self.paths, self.layers[0], strict=True):
            where = described(layer) if one else counted(len(self.layers), "layer")
            yield from lines(f"{name}: {path}, {where}", options)
        for note in self.notes:
            yield from lines(note, options)
        yield from self.of_layers(options)
        if any(self.others):
            yield from lines(f"not compared: {not_compared(self.others)}", options)

    def of_layers(self, options: ConsoleOptions) -> RenderResult:
        """Print the comparison of the layer, or a line for each and the first that differs."""
        if len(self.layers) == 1:
            yield self.reports[0]
            return
        table = plain_table("in A", "in B", "ratio of outputs", "result")
        for (first, second), report in zip(self.layers, self.reports, strict=True):
            ratio = "" if report.outputs is None else number(report.outputs.rows[-1].ratio)
            table.add_row(first[1], second[1], ratio, ("" if report else "DIFFERS: ") + report.verdict)
        yield table
        for pair, report in zip(self.layers, self.reports, strict=True):
            if not report:
                yield from lines("", options)
                yield from lines(f"the first that differs: {described(pair[0])}; {described(pair[1])} in B", options)
                yield report
                break
        yield from lines(self.verdict, options)


def described(layer: Layer) -> str:
    """Put a layer in words."""
    scheme, prefix = layer
    return f"scheme {scheme}" + (f", prefix {prefix}" if prefix else "")


def not_compared(others: Iterable[tuple[str, ...]]) -> str:
    """Count the arrays of A and of B that were not compared, with names of a few, one of each kind."""
    listed = []
    for name, arrays in zip("AB", others, strict=True):
        kinds = {re.sub(r"\d+", "0", array): array for array in reversed(arrays)}  # the first of each kind
        if arrays:
            listed.append(f"{counted(len(arrays), 'array')} of {name} ({', '.join(few([*kinds.values()][::-1]))})")
    return "; ".join(listed)
