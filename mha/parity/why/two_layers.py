"""A comparison of two layers, weight by weight and by their outputs on the same inputs."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult

from mha.cache import left_of
from mha.config import Config, numpy_dtype
from mha.layer import MultiHeadAttention
from mha.names import FloatName
from mha.parity.same.problem import problem
from mha.parity.same.relations import Relation
from mha.parity.same.rules import UNIT, bound, error, in_dtype
from mha.parity.same.weight_rows import WeightRow, same, weight_row
from mha.parity.why.changed_weights import of_weights, permuted
from mha.parity.why.comparison import report_of
from mha.parity.why.explanations import Diagnosis
from mha.parity.why.report import Report, Row, said
from mha.positions import Rotary
from mha.tables import lines, number, plain_table, text

Others = Callable[[list[str]], Mapping[str, MultiHeadAttention]]  # of the names of weights: layers by name
QUERIES, KEYS = 5, 7
LARGE = 10**8  # numbers in the weights: no diagnosis then, as each mistake that is tried may copy a kernel
SIZES = ("query_size", "key_size", "value_size", "num_hiddens")


@dataclasses.dataclass(frozen=True, repr=False)
class LayersReport:
    """A comparison of two layers, A and B: true if they are the same, printed as a table, its rows as data.

    options: those that differ, as (name, A's, B's). rows: a `WeightRow` for each weight of A or B.
    outputs: the `Report` of B's steps compared with A's, on the same inputs; None if no inputs fit both.
    beside: a `WeightRow` for each array of their files that stands beside the weights, such as T5's table of biases.

    Two layers are the same if their outputs are, and each weight of B comes from A's in a known way: a checkpoint may
    keep its columns in another order, and say so by another option. Arrays beside them are the same as they are.
    """

    options: tuple[tuple[str, Any, Any], ...]
    rows: tuple[WeightRow, ...]
    outputs: Report | None
    beside: tuple[WeightRow, ...] = ()

    def __bool__(self) -> bool:
        kept = all(row.relation is not None and row.relation.kept for row in self.rows)
        return self.agree and kept and all(row.same for row in self.beside)

    @property
    def agree(self) -> bool:
        """Whether the outputs are the same; steps before may have their columns in another order."""
        return self.outputs is not None and self.outputs.rows[-1].passed

    @property
    def rounded(self) -> FloatName | None:
        """The coarsest dtype to which weights are rounded; None = the numbers are the same."""
        found = [row.relation.rounded for row in self.rows if row.relation and row.relation.rounded]
        return max(found, key=UNIT.__getitem__, default=None)

    @property
    def alike(self) -> bool:
        """Whether any kernel comes from A's in a known way."""
        return any(row.relation is not None for row in self.rows if row.name.endswith(".kernel"))

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        reasons: dict[str, list[str]] = {}
        for row in (*self.rows, *self.beside):
            if not row.same:
                reason = row.note or f"differs by {number(row.difference)} in no known way"
                reasons.setdefault(reason, []).append(row.name)
        listed = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
        if self and listed:
            return f"the same layer, stored in another way: {listed}"
        if self and self.rounded:
            return f"the same layer: the same to {self.rounded}"
        if self:
            return f"the same layer: {self.rows[0].verdict}"
        if any(name in SIZES for name, _, _ in self.options):
            return "not the same layer: it has other sizes"
        if not self.alike:
            far = [row.difference for row in self.rows if row.name.endswith(".kernel")]
            return f"not the same layer: no kernel is the same, each differs by {number(min(far))} or more"
        if not listed:
            return "the same weights, but with other options they compute something else"
        if all(row.relation is not None or None in row.shapes for row in self.rows):
            return f"the same layer, but for {listed}"
        return f"not the same layer: {listed}"

    def __str__(self) -> str:
        return text(self)

    __repr__ = __str__

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for name, first, second in self.options:
            yield from lines(f"{name}: {shown(first)} in A, {shown(second)} in B", options)
        table = plain_table("weight", "shape", "result", "difference", "B's is")
        for row in (*self.rows, *self.beside):
            shapes = dict.fromkeys("none" if shape is None else str(shape) for shape in row.shapes)
            difference = "" if row.difference == np.inf else number(row.difference)
            table.add_row(row.name, " and ".join(shapes), row.verdict, difference, row.note)
        yield table
        yield from self.of_outputs(options)
        yield from lines(self.verdict, options)

    def of_outputs(self, options: ConsoleOptions) -> RenderResult:
        """Print the lines about the outputs."""
        if self.outputs is None:
            yield from lines("outputs: none, since no inputs fit both", options)
            return
        if self.beside:
            names = ", ".join(row.name for row in self.beside)
            yield from lines(f"no part of attention, so that outputs are computed without: {names}", options)
        measured = f"outputs on the same inputs, in {self.outputs.dtype}: ratio {number(self.outputs.rows[-1].ratio)}"
        yield from lines(f"{measured}, {'the same' if self.agree else 'DIFFERS'}", options)
        if self.outputs.first is not None and not self.agree:
            if "first to differ" not in self.outputs.diagnosis.note:
                yield from lines(f"first to differ: {said(self.outputs.first)}", options)
            yield self.outputs.diagnosis


def shown(value: Any) -> str:
    """Write the value of an option in short."""
    if not isinstance(value, Rotary):
        return str(value)
    own = ", own frequencies" if value.frequencies else ""
    own += f", magnitude={value.magnitude:g}" * (value.magnitude != 1)
    return f"Rotary(base={value.base:g}, dim={value.dim}, interleaved={value.interleaved}{own})"


def compare_layers(a: MultiHeadAttention, b: MultiHeadAttention) -> LayersReport:
    """Compare two layers, weight by weight and by their outputs on the same inputs: are they the same, and if not, why?

    Args:
        a, b: the layers, on any backend, in any dtype.

    Returns:
        A `LayersReport`: true if they are the same; it prints as a table. Outputs are computed in float64, or in the
        dtype to which weights are rounded, if they are the same but for that rounding.

    Raises TypeError if either is no mha.MultiHeadAttention.
    """
    for name, layer in (("a", a), ("b", b)):
        if not isinstance(layer, MultiHeadAttention):
            raise TypeError(f"{name} is a {type(layer).__name__}, expected an mha.MultiHeadAttention")
    return compared(a, b)


def compared(
    a: MultiHeadAttention, b: MultiHeadAttention, others: Others = lambda names: {}, explain: bool = True
) -> LayersReport:
    """Compare two layers; others: finds other layers that have B's weights; explain: whether to look for reasons."""
    ours, theirs = a.weights, b.weights
    names = sorted(ours.keys() | theirs.keys(), key=[*ours, *theirs].index)
    rows = [weight_row(name, ours, theirs, a.config, b.config) for name in names]
    unexplained = [one.name for one in rows if one.relation is None and None not in one.shapes]
    found = others(unexplained) if unexplained else {}
    for at, one in enumerate(rows):
        for name, layer in found.items():
            if one.name in unexplained and same(one.name, layer.weights.get(one.name), theirs[one.name]):
                rows[at] = dataclasses.replace(one, relation=Relation(f"that of {name}", kept=False))
    pairs = ((name, getattr(a.config, name), getattr(b.config, name)) for name in vars(a.config))
    report = LayersReport(tuple(pair for pair in pairs if pair[1] != pair[2]), tuple(rows), None)
    if any(getattr(a.config, name) != getattr(b.config, name) for name in SIZES):
        return report
    explain = explain and report.alike
    return dataclasses.replace(report, outputs=outputs(a, b, report, found, explain))


def outputs(
    a: MultiHeadAttention,
    b: MultiHeadAttention,
    of: LayersReport,
    others: Mapping[str, MultiHeadAttention],
    explain: bool,
) -> Report:
    """Compare B's steps with A's, with a diagnosis by the steps, else by the output alone, else by the weights."""
    dtype = of.rounded or "float64"
    numpy = (layer if layer.backend == "numpy" else layer.to("numpy") for layer in (a, b))
    first, second = (in_dtype(layer, dtype) for layer in numpy)
    inputs, call = call_of(a.config, b.config, dtype)
    steps, expected = second.trace(*inputs, **call), first.trace(*inputs, **call)
    if dtype == "float64":  # the dtype of the oracle
        far, limit = error(steps["output"], expected["output"]), bound(dtype, expected["output"], expected["output"])
        if far <= limit:
            return Report((Row("output", far, limit),), dtype, lambda: Diagnosis((), "", 0))
    theirs = {name: X for name, X in steps.items() if name in expected and X.shape == expected[name].shape}
    queries, keys, values = inputs
    asked = problem(first, queries, keys, values, {"causal": False} | call)
    report = report_of(asked, theirs, others=others, call_is_sure=True)
    if not explain or report.rows[-1].passed:
        return Report(report.rows, dtype, lambda: Diagnosis((), "", 0))
    reason = of_weights(of.rows, first, second, inputs, call)
    large = "why: not looked for in so large a layer"
    quick = Diagnosis((reason,), "", 0) if reason else Diagnosis((), large, 0)
    if (reason and permuted(of.rows)) or sum(X.size for X in first.weights.values()) > LARGE:
        return Report(report.rows, dtype, lambda: quick)
    diagnosis = report.diagnosis
    if not diagnosis.known:
        alone = report_of(asked, theirs["output"], others=others, call_is_sure=True).diagnosis
        diagnosis = alone if alone.known else quick if reason else diagnosis
    return Report(report.rows, report.dtype, lambda: diagnosis)  # so that the report keeps no array


def call_of(a: Config, b: Config, dtype: FloatName) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Draw inputs that fit both layers, and offsets at which every window, and every chunk, hides some keys."""
    lefts = {left for config in (a, b) if (left := left_of(config)) is not None}
    offsets = [0, *sorted(max(0, left - KEYS // 2) for left in lefts)]
    random, kind = np.random.default_rng(0), numpy_dtype(dtype)
    rows = {"query_size": QUERIES, "key_size": KEYS, "value_size": KEYS}
    inputs = [random.normal(size=(len(offsets), T, getattr(a, name))).astype(kind) for name, T in rows.items()]
    return inputs, {"offset": offsets if len(offsets) > 1 else 0}
