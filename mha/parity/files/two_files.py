"""Two checkpoints of any known schemes: their layers of attention, pair by pair."""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult

from mha import weights
from mha.config import Config
from mha.layer import MultiHeadAttention, restore
from mha.names import SchemeChoice, SchemeName
from mha.parity.why.two_layers import LayersReport, compared, same, shown
from mha.positions import Rotary
from mha.tables import counted, lines, number, plain_table, text
from mha.weights import readers, said, schemes

Name = str | os.PathLike[str]  # of a file
Layer = tuple[SchemeName, str]  # scheme and prefix
Pair = tuple[Layer, Layer]
Lacking = dict[str, Any]  # arguments that a file does not say, with their values
SAYABLE = ("num_heads", "rotary", "qk_norm")  # options that a file may not say


@dataclasses.dataclass(frozen=True)
class File:
    """A file, and the scheme and prefix to look for in it; side: "a" or "b", as in the names of the arguments."""

    side: str
    path: Name
    scheme: SchemeChoice
    prefix: str | None

    def layers(self) -> list[Layer]:
        """List the layers of the scheme, in the order of their prefixes, in which 2 comes before 10."""
        with readers.opened(self.path) as source:
            found = [layer for layer in schemes.recognise(source.entries) if self.scheme in ("auto", layer[0])]
        parts = {layer: re.split(r"(\d+)", layer[1]) for layer in found}
        return sorted(found, key=lambda layer: [int(X) if X.isdigit() else X for X in parts[layer]])

    def chosen(self, prefixes: list[str | None] | list[str]) -> list[Layer]:
        """Return the layers with these prefixes, None = the only one; errors name the arguments of `compare_files`."""
        names = {name: f"{name}_{self.side}" for name in ("scheme", "prefix")}
        with readers.opened(self.path) as source, said.named(names):
            return [weights.choose(source, self.scheme, prefix) for prefix in prefixes]


@dataclasses.dataclass(frozen=True, repr=False)
class FilesReport:
    """A comparison of the layers of two files, A and B: true if all are the same, printed as a table.

    paths: of the files. layers: of each pair, (scheme, prefix) in A and in B. reports: the `LayersReport` of each; the
    first that differs has the reason. notes: further lines.
    """

    paths: tuple[str, str]
    layers: tuple[Pair, ...]
    reports: tuple[LayersReport, ...]
    notes: tuple[str, ...]

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
        if one:
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


def compare_files(
    a: Name,
    b: Name,
    *,
    scheme_a: SchemeChoice = "auto",
    scheme_b: SchemeChoice = "auto",
    prefix_a: str | None = None,
    prefix_b: str | None = None,
    num_heads: int | None = None,
    track: Callable[[list[Pair]], Iterable[Pair]] = iter,
    **options: Any,
) -> FilesReport:
    """Compare attention layers of two safetensors files, weight by weight and by their outputs on the same inputs.

    Args:
        a, b: paths of the files, of any known schemes.
        scheme_a, scheme_b: how each names its arrays, as for `mha.load`.
        prefix_a, prefix_b: the beginning of the names of a layer's arrays. None = that of the other file, if it is
            there too, else the only layer. If both are None and both files have the same number of layers, all are
            compared, in the order of their prefixes.
        num_heads, rotary, qk_norm: as for `mha.load`, if a file does not say them. Without them, they are taken from
            the other file.
        track: goes through the pairs of layers as they are compared, and may show the progress.

    Returns:
        A `FilesReport`: true if the layers are the same; it prints as a table.

    Raises TypeError and ValueError as `mha.load` does, FileNotFoundError if a file is not there.
    """
    given = options if num_heads is None else {"num_heads": num_heads} | options
    for name in given:
        if name not in SAYABLE:
            raise TypeError(f"{name} is no argument here, expected one of {', '.join(SAYABLE)}")
    files = File("a", a, scheme_a, prefix_a), File("b", b, scheme_b, prefix_b)
    pairs = matched(*files)
    reports: list[LayersReport] = []
    unsaid: dict[tuple[str, str], Any] = {}  # in which file, which argument, and its value
    for pair in track(pairs):
        (first, lacks), (second, lacks_too) = both((a, pair[0]), (b, pair[1]), given)
        for file, lacking in (("A", lacks), ("B", lacks_too)):
            unsaid |= {(file, name): value for name, value in lacking.items()}
        look = functools.partial(elsewhere, files[0], pair[0], first.config, second.weights)
        reports.append(compared(first, second, look) if all(reports) else compared(first, second, explain=False))
    for name in given:
        if all(name != lacking for _, lacking in unsaid):
            unneeded = said.setting(**{name: given[name]})
            raise ValueError(f"{unneeded} is not needed: both files say it themselves; leave it out")
    notes = (
        f"{file} does not say {name}: {shown(value)} is taken from {'AB'[file == 'A']}"
        for (file, name), value in unsaid.items()
        if name not in given
    )
    return FilesReport((os.fspath(a), os.fspath(b)), tuple(pairs), tuple(reports), tuple(notes))


# Pieces of the above


def described(layer: Layer) -> str:
    """Put a layer in words."""
    scheme, prefix = layer
    return f"scheme {scheme}" + (f", prefix {prefix}" if prefix else "")


def matched(a: File, b: File) -> list[Pair]:
    """Return the layers to compare, in pairs."""
    found = {file: file.layers() for file in (a, b)}
    if a.prefix is None and b.prefix is None and len(found[a]) == len(found[b]) > 1:
        first, second = (file.chosen([prefix for _, prefix in found[file]]) for file in (a, b))
        return list(zip(first, second, strict=True))
    if a.prefix is None and b.prefix is None and min(len(found[a]), len(found[b])) > 1:
        counts = (f"{os.fspath(file.path)} has {len(found[file])}" for file in (a, b))
        examples = said.setting(**{f"prefix_{file.side}": found[file][0][1] for file in (a, b)})
        raise ValueError(
            f"{' and '.join(counts)} attention layers, expected as many, to compare them all; choose one of each, such "
            f"as {examples}"
        )
    each = []
    for file, other in ((a, b), (b, a)):
        prefix = file.prefix
        if prefix is None and other.prefix is not None and len(found[file]) > 1:
            also = other.prefix.removesuffix(".") in (one.removesuffix(".") for _, one in found[file])
            prefix = other.prefix if also else None
        each += file.chosen([prefix])
    return [(each[0], each[1])]


def both(
    a: tuple[Name, Layer], b: tuple[Name, Layer], given: Mapping[str, Any]
) -> list[tuple[MultiHeadAttention, Lacking]]:
    """Load the layers of two files, each with the arguments that its file does not say."""
    try:
        first = taken(*a, given, None)
    except TypeError as lacking:  # what A does not say, B may
        try:
            second = taken(*b, given, None)
        except TypeError:
            raise lacking from None
        return [taken(*a, given, second[0].config), second]
    return [first, taken(*b, given, first[0].config)]


def taken(
    path: Name, layer: Layer, given: Mapping[str, Any], other: Config | None
) -> tuple[MultiHeadAttention, Lacking]:
    """Load a layer of a file; an argument that the file does not say is the given one, or else the other layer's.

    Raises TypeError, which names the file and the argument, if neither has it.
    """
    known: dict[str, Any] = {}
    while True:
        options = {name: X for name, X in known.items() if name != "num_heads"}
        try:
            with readers.opened(path) as source:
                config, arrays = weights.take(source, *layer, known.get("num_heads"), options)
            return restore(config, arrays, "numpy"), known
        except TypeError as error:
            lacking = getattr(error, "argument", "")
            if not lacking or lacking in known or (lacking not in given and other is None):
                raise TypeError(f"{os.fspath(path)} does not say everything: {error}") from error
            known[lacking] = given[lacking] if lacking in given else getattr(other, lacking)
            if isinstance(known[lacking], Rotary):  # the scheme knows which components are a pair
                pairs = schemes.SCHEMES[layer[0]].interleaved
                known[lacking] = dataclasses.replace(known[lacking], interleaved=pairs)


def elsewhere(
    file: File, chosen: Layer, config: Config, theirs: Mapping[str, np.ndarray], names: list[str]
) -> dict[str, MultiHeadAttention]:
    """Find the other layers of A's file that have B's weights of these names; config: of A's layer."""
    found = {}
    for layer in file.layers():
        if layer != chosen:
            try:
                other, _ = taken(file.path, layer, {}, config)
            except (TypeError, ValueError):  # no layer that can be loaded so
                continue
            if any(same(name, other.weights.get(name), theirs[name]) for name in names):
                found[layer[1]] = other
    return found
