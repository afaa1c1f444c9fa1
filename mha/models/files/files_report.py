"""The report of a comparison of two files: their layers pair by pair, and what was not compared."""

import dataclasses
import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult

from mha.core.tables import Printed, few, lines, number, plain_table, plural
from mha.models.files.one_file import Layer
from mha.models.files.pairing import Move, Pair
from mha.parity.diagnosis.compare.two_layers import LayersReport

LISTED = 4  # so many layers in another place are listed


@dataclasses.dataclass(frozen=True, repr=False)
class FilesReport(Printed):
    """A comparison of the layers of two files, A and B: true if all are the same, printed as a table.

    Attributes:
        paths: of the files.
        layers: of each pair, (scheme, prefix) in A and in B.
        reports: the `LayersReport` of each pair; the first that differs has the reason.
        notes: further lines.
        others: the names of all arrays in A, and in B, that were not compared.
        alone: the layers of A, and of B, that have no partner.
        moves: layers of B with the weights of one layer of A and the name of another one.
    """

    paths: tuple[str, str]
    layers: tuple[Pair, ...]
    reports: tuple[LayersReport, ...]
    notes: tuple[str, ...]
    others: tuple[tuple[str, ...], tuple[str, ...]]
    alone: tuple[tuple[Layer, ...], tuple[Layer, ...]] = ((), ())
    moves: tuple[Move, ...] = ()

    def __bool__(self) -> bool:
        return all(self.reports) and not any(self.alone) and not self.moves

    @property
    def swapped(self) -> tuple[tuple[Layer, Layer], ...]:
        """The pairs of A's layers of which B has each under the other's name."""
        named = {(move.weights, move.named) for move in self.moves}
        pairs = [(move.weights, move.named) for move in self.moves if (move.named, move.weights) in named]
        return tuple(pair for at, pair in enumerate(pairs) if pair[::-1] not in pairs[:at])

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        wrong = [report for report in self.reports if not report]
        if len(self.reports) == 1:
            found = self.reports[0].verdict
        elif wrong:
            found = f"{len(wrong)} of {len(self.reports)} layers differ; the first: {wrong[0].verdict}"
        else:
            found = f"all {len(self.reports)} layers are the same"
        moved = ["in another order"] if self.moves and not self.swapped else []
        moved += [f"{first[1]} and {second[1]} are swapped" for first, second in self.swapped[:LISTED]]
        lone = [f"{plural(len(some), 'layer')} of {name}" for name, some in zip("AB", self.alone, strict=True) if some]
        more = [*moved, *([f"no partner for {' and '.join(lone)}"] if lone else [])]
        return f"{found}; but {', '.join(more)}" if more else found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        one = len(self.layers) == 1
        for name, path, layer in zip("AB", self.paths, self.layers[0], strict=True):
            where = layer_title(layer) if one else plural(len(self.layers), "layer")
            yield from lines(f"{name}: {path}, {where}", options)
        for note in self.notes:
            yield from lines(note, options)
        for name, alone in zip("AB", self.alone, strict=True):
            if alone:
                prefixes = ", ".join(few([prefix for _, prefix in alone]))
                yield from lines(f"without a partner: {plural(len(alone), 'layer')} of {name} ({prefixes})", options)
        for move in self.moves[:LISTED]:
            yield from lines(f"{move.weights[1]} of A is {move.layer[1]} of B", options)
        if len(self.moves) > LISTED:
            yield from lines(f"and {len(self.moves) - LISTED} more in another place", options)
        yield from self.of_layers(options)
        if any(self.others):
            yield from lines(f"not compared: {others_text(self.others)}", options)

    def of_layers(self, options: ConsoleOptions) -> RenderResult:
        """Print the only pair, or a line for each pair and the first that differs."""
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
                yield from lines(
                    f"the first that differs: {layer_title(pair[0])}; {layer_title(pair[1])} in B", options
                )
                yield report
                break
        yield from lines(self.verdict, options)


def layer_title(layer: Layer) -> str:
    """Put a layer in words."""
    scheme, prefix = layer
    return f"scheme {scheme}" + (f", prefix {prefix}" if prefix else "")


def others_text(others: Iterable[tuple[str, ...]]) -> str:
    """Count the arrays that were not compared, with a name of each kind."""
    listed = []
    for name, arrays in zip("AB", others, strict=True):
        kinds = {re.sub(r"\d+", "0", array): array for array in reversed(arrays)}  # the first of each kind
        if arrays:
            listed.append(f"{plural(len(arrays), 'array')} of {name} ({', '.join(few([*kinds.values()][::-1]))})")
    return "; ".join(listed)
