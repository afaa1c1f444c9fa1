"""Compare two checkpoints of any known schemes: their layers of attention, pair by pair."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from mha.core.options.config import Config
from mha.core.options.names import SchemeChoice
from mha.layer import MultiHeadAttention
from mha.models.files.files_report import FilesReport
from mha.models.files.one_file import File, Layer, Name
from mha.models.files.pairing import Contents, Pair, find_swaps, kernel_norms, pair_layers
from mha.models.files.shared_options import STAND_INS, lendable_options, load_both, try_to_load
from mha.parity.diagnosis.compare.two_layers import LayersReport, describe_option, layers_report
from mha.parity.rule.relations import HEADS, order_of_heads
from mha.parity.rule.weight_rows import WeightRow, array_row, same_weight
from mha.weights import argument_names
from mha.weights.projections import check_parts
from mha.weights.schemes.table import SCHEMES

Names = tuple[str, str]  # of an array in A and in B; "" if it is missing
SAYABLE = ("num_heads", *STAND_INS)  # options that a file may not say


def compare_files(
    a: Name,
    b: Name,
    *,
    scheme_a: SchemeChoice = "auto",
    scheme_b: SchemeChoice = "auto",
    prefix_a: str | None = None,
    prefix_b: str | None = None,
    names: Mapping[str, str] | None = None,
    names_b: Mapping[str, str] | None = None,
    num_heads: int | None = None,
    track: Callable[[list[Any]], Iterable[Any]] = iter,
    **options: Any,
) -> FilesReport:
    """Compare attention layers of two files of weights, weight by weight and by their outputs on the same inputs.

    Args:
        a, b: paths of the files, or of directories with one, of any known schemes.
        scheme_a, scheme_b: how each names its arrays, as for `mha.load`.
        prefix_a, prefix_b: the beginning of the names of a layer's arrays. None = that of the other file, if it is
            there too, else of the layer with the same weights, else the only layer. If both are None, all layers are
            compared: pairs of equal prefixes, else of the same weights, else in the order of the prefixes. A layer
            without a partner is a difference.
        names: what the projections are called in files whose names no scheme has, after the path of a layer, such as
            {"W_q": "to_q", "W_k": "to_k", "W_v": "to_v", "W_o": "to_out"}: of each file that has layers with these
            names. One name for several projections means that they are packed. "q_norm" and "k_norm" are the norms,
            "axes" says how kernels lie: "io" = (in, out), "oi" = (out, in), as names of PyTorch and Keras show it.
        names_b: the same of B alone, where its names are others.
        num_heads, rotary, qk_norm: as for `mha.load`, if a file does not say them. Without them, they are taken from
            the other file; so are the window, the scale and the cap, if one has no configuration.
        track: goes through layers and pairs of layers as they are read and compared, and may show the progress.

    Returns:
        A `FilesReport`: true if the layers are the same; it prints as a table.

    Raises TypeError and ValueError as `mha.load` does, FileNotFoundError if a file is not there.
    """
    given = options if num_heads is None else {"num_heads": num_heads} | options
    for name in given:
        if name not in SAYABLE:
            raise TypeError(f"{name} is no argument here, expected one of {', '.join(SAYABLE)}")
    files = with_names(File("a", a, scheme_a, prefix_a), File("b", b, scheme_b, prefix_b), names, names_b)
    pairing = pair_layers(*files, given, track)
    reports: list[LayersReport] = []
    seen: set[Names] = set()  # of arrays beside weights
    unsaid: dict[str, dict[str, Any]] = {}  # by argument and file, the value of what this file does not say
    differing: dict[Pair, tuple[Contents, Contents]] = {}
    for pair in track(list(pairing.pairs)):
        (first, lacks), (second, lacks_too) = load_both((files[0], pair[0]), (files[1], pair[1]), given)
        for side, lacking in zip("AB", (lacks, lacks_too), strict=True):
            for name, value in lacking.items():
                unsaid.setdefault(name, {})[side] = value
        look = functools.partial(elsewhere, files[0], pair[0], first.config, second.weights)
        report = layers_report(first, second, look) if all(reports) else layers_report(first, second, explain=False)
        moved = any(HEADS in row.note for row in report.rows)
        order = order_of_heads(first.weights, second.weights, first.config) if moved else None
        rows = rows_beside(files, pair, order)
        reports.append(dataclasses.replace(report, beside=tuple(rows.values())))
        seen |= rows.keys()
        if not report:
            differing[pair] = kernel_norms(first.weights), kernel_norms(second.weights)
    for name in given:
        if name not in unsaid:
            unneeded = argument_names.setting(**{name: given[name]})
            raise ValueError(f"{unneeded} is not needed: both files say it themselves; leave it out")
    notes = [
        f"{file.side.upper()} is quantised ({'; '.join(packings)}): kernels that it was made of differ by that"
        for at, file in enumerate(files)
        if (packings := file.packings(pair[at] for pair in pairing.pairs))
    ]
    for name, values in sorted(unsaid.items(), key=lambda one: len(one[1])):  # what one file lacks, then what both do
        side, value = next(iter(values.items()))
        if name not in given and len(values) == 1:
            notes.append(f"{side} does not say {name}: {describe_option(value)} is taken from {'AB'[side == 'A']}")
        elif name not in given:
            notes.append(f"neither file says {name}: {describe_option(values['A'])} is taken for both")
    notes += [note for at, file in enumerate(files) for note in file.name_notes(pair[at] for pair in pairing.pairs)]
    others = (
        files[0].others((first for first, _ in pairing.pairs), (name for name, _ in seen)),
        files[1].others((second for _, second in pairing.pairs), (name for _, name in seen)),
    )
    pairs = tuple((files[0].title_of(first), files[1].title_of(second)) for first, second in pairing.pairs)
    return FilesReport(
        (os.fspath(a), os.fspath(b)), pairs, tuple(reports), (*pairing.notes, *notes), others, pairing.alone,
        (*pairing.moves, *find_swaps(differing)),
    )  # fmt: skip


# Pieces of the above


def with_names(a: File, b: File, names: Any, names_b: Any) -> tuple[File, File]:
    """Give two files the names of their projections; names, names_b: as for `compare_files`.

    Raises TypeError or ValueError if these are nothing of the kind, or if no layer has such names.
    """
    both_parts = None if names is None else check_parts("names", names)
    own_parts = None if names_b is None else check_parts("names_b", names_b)
    found = [a.with_parts(both_parts), b.with_parts(own_parts or both_parts)]
    of_both = found[:1] if own_parts else found
    for argument, parts, files in (("names", both_parts, of_both), ("names_b", own_parts, found[1:])):
        if parts is not None and not any(file.parts for file in files):
            there = "; ".join(f"{file.side.upper()} has {file.some()}" for file in files)
            called = ", ".join(dict.fromkeys(parts.names.values()))
            raise ValueError(
                f"{argument_names.name(argument)} fits no layer: nowhere are kernels of {called} together; {there}"
            )
    return found[0], found[1]


def elsewhere(
    file: File, chosen: Layer, config: Config, theirs: Mapping[str, np.ndarray], names: list[str]
) -> dict[str, MultiHeadAttention]:
    """Find other layers of A's file with B's weights of these names; config: of A's layer."""
    found = {}
    for layer in file.layers():
        if layer != chosen:
            try:
                loaded = try_to_load(file, layer, lendable_options(config))
            except (TypeError, ValueError):  # no layer that can be loaded so
                continue
            if isinstance(loaded, argument_names.LackingError):
                continue
            other, _ = loaded
            if any(same_weight(name, other.weights.get(name), theirs[name]) for name in names):
                found[layer[1]] = other
    return found


def rows_beside(
    files: tuple[File, File], layers: tuple[Layer, Layer], order: np.ndarray | None
) -> dict[Names, WeightRow]:
    """Compare arrays beside two layers; order: that of the heads, as of `array_row`."""
    (a, b), (first, second) = files, layers
    ours, theirs = a.beside(first), b.beside(second)
    rows = {}
    for names in partners(list(ours), list(theirs), first, second):
        whole = first[1] + names[0] if names[0] else "", second[1] + names[1] if names[1] else ""
        rows[whole] = array_row(names[0] or names[1], ours.get(names[0]), theirs.get(names[1]), order)
    return rows


def partners(ours: list[str], theirs: list[str], first: Layer, second: Layer) -> list[Names]:
    """Pair names of arrays, without prefixes: equal ones, then those that a scheme takes for the same: weight, gamma.

    A name without a partner is left out if the schemes differ, as the other file may have it elsewhere, or if a model
    makes the array itself.
    """
    pairs: list[Names] = [(name, name) for name in ours if name in theirs]
    if first[0] != second[0]:
        return pairs
    scheme = SCHEMES[first[0]]
    for pattern in scheme.beside:
        one, other = (next((name for name in names if scheme.pattern(name) == pattern), "") for names in (ours, theirs))
        if one != other:
            pairs.append((one, other))
    return pairs
