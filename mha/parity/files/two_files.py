"""Two checkpoints of any known schemes: their layers of attention, pair by pair."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from mha import weights
from mha.config import Config
from mha.layer import MultiHeadAttention, restore
from mha.names import SchemeChoice
from mha.parity.files.beside import Names, rows_beside
from mha.parity.files.files_report import FilesReport, Pair
from mha.parity.files.one_file import File, Layer, Name
from mha.parity.same.weight_rows import same
from mha.parity.why.two_layers import LayersReport, compared, shown
from mha.positions import Rotary
from mha.weights import readers, said, schemes

Lacking = dict[str, Any]  # arguments that a file does not say, with their values
SAYABLE = ("num_heads", "rotary", "qk_norm")  # options that a file may not say


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
    seen: set[Names] = set()  # of arrays beside weights
    unsaid: dict[tuple[str, str], Any] = {}  # in which file, which argument, and its value
    for pair in track(pairs):
        (first, lacks), (second, lacks_too) = both((a, pair[0]), (b, pair[1]), given)
        for file, lacking in (("A", lacks), ("B", lacks_too)):
            unsaid |= {(file, name): value for name, value in lacking.items()}
        look = functools.partial(elsewhere, files[0], pair[0], first.config, second.weights)
        report = compared(first, second, look) if all(reports) else compared(first, second, explain=False)
        rows = rows_beside(*files, *pair)
        reports.append(dataclasses.replace(report, beside=tuple(rows.values())))
        seen |= rows.keys()
    for name in given:
        if all(name != lacking for _, lacking in unsaid):
            unneeded = said.setting(**{name: given[name]})
            raise ValueError(f"{unneeded} is not needed: both files say it themselves; leave it out")
    notes = (
        f"{file} does not say {name}: {shown(value)} is taken from {'AB'[file == 'A']}"
        for (file, name), value in unsaid.items()
        if name not in given
    )
    others = (
        files[0].others((first for first, _ in pairs), (name for name, _ in seen)),
        files[1].others((second for _, second in pairs), (name for _, name in seen)),
    )
    return FilesReport((os.fspath(a), os.fspath(b)), tuple(pairs), tuple(reports), tuple(notes), others)


# Pieces of the above


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
