"""A comparison of two layers, weight by weight and by their outputs on the same inputs."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult

from mha.core.options.names import FloatName
from mha.core.options.positions import Rotary
from mha.core.tables import Printed, lines, number, plain_table
from mha.layer import MultiHeadAttention
from mha.parity.diagnosis.compare.comparison import report_of
from mha.parity.diagnosis.compare.report import Report, describe_row
from mha.parity.diagnosis.compare.same_layer import compare_calls, describe_weights, explain_by_weights, only_reordered
from mha.parity.diagnosis.search.explanations import Diagnosis
from mha.parity.rule.layouts import GRADIENT, trace_layout
from mha.parity.rule.relations import HEADS, Relation
from mha.parity.rule.rules import UNIT, in_dtype
from mha.parity.rule.weight_rows import WeightRow, same_weight, weight_row

Others = Callable[[list[str]], Mapping[str, MultiHeadAttention]]  # of the names of weights: layers by name
LARGE = 10**8  # numbers in the weights: no diagnosis then, as each mistake that is tried may copy a kernel
SIZES = ("query_size", "key_size", "value_size", "num_hiddens")
CACHED = ("W_k", "W_v", "k_norm", "v_norm")  # weights that make the contents of a cache
KEPT = ("dtype", "dropout", "bias")  # options that change no output by themselves


@dataclasses.dataclass(frozen=True, repr=False)
class LayersReport(Printed):
    """A comparison of two layers, A and B: true if they are the same, printed as a table, its rows as data.

    Two layers are the same if their outputs are, and the gradients of their inputs, in several calls: their weights may
    be written another way, which `rows` say. In half precision, where a similar layer may have the same outputs, each
    weight of B has to come from A's in a known way. Arrays beside them are the same as they are, or with their heads in
    the order in which the weights have them.

    Attributes:
        options: those that differ, as (name, A's, B's).
        rows: a `WeightRow` for each weight of A or B.
        outputs: the `Report` of B's steps compared with A's, on the same inputs; None if no inputs fit both.
        beside: a `WeightRow` for each array of their files beside the weights, such as T5's table of biases.
    """

    options: tuple[tuple[str, Any, Any], ...]
    rows: tuple[WeightRow, ...]
    outputs: Report | None
    beside: tuple[WeightRow, ...] = ()

    def __bool__(self) -> bool:
        exact = self.outputs is not None and "16" not in self.outputs.dtype  # else a similar layer may agree
        kept, beside = (
            all(row.relation is not None and row.relation.kept for row in rows) for rows in (self.rows, self.beside)
        )
        return self.agree and (exact or kept) and beside

    @property
    def agree(self) -> bool:
        """Return whether outputs and gradients of inputs are the same; steps before may be written another way."""
        shown = [] if self.outputs is None else self.outputs.rows
        seen = [row.passed for row in shown if row.name == "output" or row.name.startswith(GRADIENT)]
        return bool(seen) and all(seen)

    @property
    def changed(self) -> bool:
        """Return whether any weight, or an option, is another one."""
        return not all(row.same for row in self.rows) or any(name not in KEPT for name, _, _ in self.options)

    @property
    def rounded(self) -> FloatName | None:
        """Return the coarsest dtype to which weights are rounded; None = the numbers are the same."""
        found = [row.relation.rounded for row in self.rows if row.relation and row.relation.rounded]
        return max(found, key=UNIT.__getitem__, default=None)

    @property
    def alike(self) -> bool:
        """Return whether any kernel comes from A's in a known way."""
        return any(row.relation is not None for row in self.rows if row.name.endswith(".kernel"))

    @property
    def verdict(self) -> str:
        """Return the result in a sentence."""
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

    @property
    def notes(self) -> tuple[str, ...]:
        """Return remarks on two layers that are the same, but stored in another way, in lines."""
        other = [row for row in self.rows if not row.same] if self else []
        found = []
        if any(row.name.partition(".")[0] in CACHED for row in other):
            found.append("a cache of one is none of the other's: keys or values are written in another way")
        if any(HEADS in row.note for row in other):
            found.append("what a call says for each head, such as a bias of the scores, goes by the order of the heads")
        return tuple(found)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for name, first, second in self.options:
            yield from lines(f"{name}: {describe_option(first)} in A, {describe_option(second)} in B", options)
        table = plain_table("weight", "shape", "result", "difference", "B's is")
        for row in (*self.rows, *self.beside):
            shapes = dict.fromkeys("none" if shape is None else str(shape) for shape in row.shapes)
            difference = "" if row.difference == np.inf else number(row.difference)
            table.add_row(row.name, " and ".join(shapes), row.verdict, difference, row.note)
        yield table
        yield from self.of_outputs(options)
        for note in self.notes:
            yield from lines(note, options)
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
                yield from lines(f"first to differ: {describe_row(self.outputs.first)}", options)
            yield self.outputs.diagnosis


def describe_option(value: Any) -> str:
    """Describe the value of an option in short."""
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
    return layers_report(a, b)


def layers_report(
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
            if one.name in unexplained and same_weight(one.name, layer.weights.get(one.name), theirs[one.name]):
                rows[at] = dataclasses.replace(one, relation=Relation(f"that of {name}", kept=False))
    pairs = ((name, getattr(a.config, name), getattr(b.config, name)) for name in vars(a.config))
    report = LayersReport(tuple(pair for pair in pairs if pair[1] != pair[2]), tuple(rows), None)
    if any(getattr(a.config, name) != getattr(b.config, name) for name in SIZES):
        return report
    explain = explain and report.alike
    report = dataclasses.replace(report, outputs=outputs(a, b, report, found, explain))
    return dataclasses.replace(report, rows=describe_weights(rows)) if report else report


def outputs(
    a: MultiHeadAttention,
    b: MultiHeadAttention,
    of: LayersReport,
    others: Mapping[str, MultiHeadAttention],
    explain: bool,
) -> Report:
    """Compare B's outputs with A's, and where they differ its steps, with a diagnosis by steps, output or weights."""
    numpy = [layer if layer.backend == "numpy" else layer.to("numpy") for layer in (a, b)]
    dtypes: list[FloatName] = [of.rounded or "float64"]
    if any(row.relation is None for row in of.rows) and {a.config.dtype, b.config.dtype} <= {"float32", "float64"}:
        dtypes.append("float32")  # numbers that are written another way were rounded then
    found = []
    for dtype in dtypes:
        first, second = (in_dtype(layer, dtype) for layer in numpy)
        rows, differing = compare_calls(first, second, further=of.changed and "16" not in dtype)
        if differing is None:
            return Report(rows, dtype, lambda: Diagnosis((), "", 0))
        found.append((first, second, rows, *differing))
    first, second, rows, asked, call = found[0]
    if rows[-1].passed:  # gradients alone differ
        return Report(rows, asked.config.dtype, lambda: Diagnosis((), "", 0))
    inputs = asked.queries, asked.keys, asked.values
    shapes = {name: trace_layout(name, asked.sizes.shape(name))[0] for name in asked.oracle}
    theirs = {name: X for name, X in second.trace(*inputs, **call).items() if X.shape == shapes.get(name)}
    report = report_of(asked, theirs, others=others, call_is_sure=True)
    if not explain:
        return Report(report.rows, report.dtype, lambda: Diagnosis((), "", 0))
    reason = explain_by_weights(of.rows, first, second, inputs, call)
    large = "why: not looked for in so large a layer"
    quick = Diagnosis((reason,), "", 0) if reason else Diagnosis((), large, 0)
    if (reason and only_reordered(of.rows)) or sum(X.size for X in first.weights.values()) > LARGE:
        return Report(report.rows, dtype, lambda: quick)
    diagnosis = report.diagnosis
    if not diagnosis.known:
        alone = report_of(asked, theirs["output"], others=others, call_is_sure=True).diagnosis
        diagnosis = alone if alone.known else quick if reason else diagnosis
    return Report(report.rows, report.dtype, lambda: diagnosis)  # so that the report keeps no array
