"""Compare another implementation with a layer: its output, steps and gradients against float64 NumPy."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import numpy as np

from mha import arrays
from mha.core import dispatch
from mha.core.call import Arguments, call_of, spell_out
from mha.core.options import checks
from mha.core.tables import plural
from mha.layer import MultiHeadAttention
from mha.parity.diagnosis.blind_spots.views import sight
from mha.parity.diagnosis.compare.diagnosis import find_reasons
from mha.parity.diagnosis.compare.places import describe_place, hints
from mha.parity.diagnosis.compare.report import Place, Report, Row
from mha.parity.diagnosis.pipeline.chance import with_rounding
from mha.parity.diagnosis.search.explanations import Diagnosis
from mha.parity.diagnosis.wrong_setup.equivalent_steps import find_rewritten, undo_shifts
from mha.parity.rule.decoding import as_decoding
from mha.parity.rule.layouts import (
    FROM_SOFTMAX,
    GRADIENT,
    INPUTS,
    MEANS,
    OF_INPUTS,
    PLACED,
    layout_name,
)
from mha.parity.rule.port_arrays import arrays_by_name, weights_of_others
from mha.parity.rule.problem import Named, Problem, problem, with_rows
from mha.parity.rule.rules import error


@spell_out
def compare(
    attention: MultiHeadAttention,
    theirs: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: Any = None,
    *,
    cache: Any = None,
    cotangent: Any = None,
    layout: str | None = None,
    others: Mapping[str, MultiHeadAttention] | None = None,
    rows: Any = None,
    empty_rows: bool = False,
    style: str | None = None,
    **call: Unpack[Arguments],
) -> Report:
    """Compare another implementation with a layer: are they the same, and if not, where do they first differ, and why?

    Args:
        attention: the layer, on any backend, whose weights the other implementation should have.
        theirs: its output (B, Q, D), or the pair (output, weights), where weights may be None; or a mapping of any of:
            the steps of `attention.trace` by their names; gradients as `attention.gradients` names them, or as
            "gradient.queries", "gradient.W_q.kernel", kernels (in, out); that of one array which is queries, keys and
            values is "gradient.inputs", the sum of the three.
            Arrays of any framework, without dropout. Steps of heads may be (B*H, T, d), (B, H, T, d), (B, T, H, d) or
            (B, T, H*d), scores and weights (B*H, Q, K) or (B, H, Q, K), or weights that are means over the heads,
            (B, Q, K). With a cache, scores and weights have an axis of slots, as they are after the call, and there are
            "cache.keys" (B, G, S, d), "cache.values" (B, G, S, dv) and "cache.positions" (B, S) as the call leaves
            them.
        queries, keys, values, valid_lens, call: the arguments of its call, as for the layer, in arrays of any one
            framework.
        cache: the layer's `mha.Cache` as it was before the call, of any backend; it stays as it is. A call with a cache
            has no gradients.
        cotangent: the gradient of the loss by the output, (B, Q, D), that its gradients are of; None = ones.
        layout: "(B, H, T, d)" or "(B, T, H, d)", if the shapes fit both.
        others: other layers by name, such as those of the same checkpoint, whose weights may have been taken.
        rows: the queries that count, booleans (B, Q), such as those that are no padding; None = all. The loss is of
            these alone: elsewhere the cotangent is 0.
        empty_rows: whether rows of queries that see no key count, which are 0 here before the bias of W_o.
        style: "fused" or "steps", if only code of this kind is right in half precision; None = any.

    Returns:
        A `Report`: true if each array is within what rounding explains; it prints as a table. Numbers that cannot reach
        the rows that count do not count: keys that none of them sees, scores of hidden pairs.

    Raises:
        TypeError, ValueError: if an argument is not as above. Another shape of a step, NaN and infinity are no errors
            but rows of the report that differ.
    """
    given = call_of("compare", valid_lens, call, cache=cache)._asdict()
    asked = problem(attention, queries, keys, values, given, cotangent, rows, empty_rows, style=style)
    return report_of(with_rows(as_decoding(asked)), theirs, layout, others)


@spell_out
def diagnose(
    attention: MultiHeadAttention,
    theirs: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: Any = None,
    *,
    cache: Any = None,
    cotangent: Any = None,
    layout: str | None = None,
    others: Mapping[str, MultiHeadAttention] | None = None,
    rows: Any = None,
    empty_rows: bool = False,
    style: str | None = None,
    **call: Unpack[Arguments],
) -> Diagnosis:
    """Find the known mistakes that give another implementation's numbers; arguments as for `parity.compare`.

    The output alone is enough for one or two mistakes; with steps, several are found one after the other. Gradients
    tell the reason if they alone differ. Where another call explains the numbers, or a residual or a norm after
    attention, the `Diagnosis` has that in place of a mistake. It prints as text, also if nothing gives the numbers.
    """
    more: Any = {"cache": cache, "cotangent": cotangent, "layout": layout, "others": others}
    counting: Any = {"rows": rows, "empty_rows": empty_rows, "style": style}
    return compare(attention, theirs, queries, keys, values, valid_lens, **more, **counting, **call).diagnosis


@spell_out
def ratio(
    attention: MultiHeadAttention,
    output: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: Any = None,
    *,
    rows: Any = None,
    empty_rows: bool = False,
    style: str | None = None,
    **call: Unpack[Arguments],
) -> float:
    """Measure another implementation's output: its error, divided by what rounding explains. The same if at most 1.

    Args:
        attention: the layer, on any backend, whose weights the other implementation should have.
        output: that of the other implementation, without dropout, (B, Q, D) in the layer's dtype.
        queries, keys, values, valid_lens, call: the arguments of its call, as for the layer.
        rows, empty_rows, style: which rows count, and how they may round, as for `parity.compare`.

    Returns:
        The largest difference from float64 NumPy, divided by how large it may be; in half precision also what the
        nearest style of right code leaves, by its limits, if that is worse; infinite if the shapes differ, or if
        one has NaN or infinity where the other has not.

    Raises TypeError and ValueError as a call of the layer does, TypeError if output has another dtype, and ValueError
    if NumPy itself overflows in that dtype, so that there is no bound.
    """
    if not isinstance(attention, MultiHeadAttention):
        raise TypeError(f"attention is a {type(attention).__name__}, expected an mha.MultiHeadAttention")
    dtype = attention.config.dtype
    dispatch.module_of(output, "output")  # raises TypeError if it is no array
    found = arrays.to_numpy(output)
    if checks.dtype_name(found.dtype) != dtype:
        raise TypeError(f"output has dtype {found.dtype}, expected {dtype} as the layer")
    given = call_of("ratio", valid_lens, call)._asdict()
    asked = problem(attention, queries, keys, values, given, None, rows, empty_rows, style=style)  # or raises
    expected = with_rounding(with_rows(asked)).expected_output()
    if expected.limit == math.inf:
        raise ValueError(f"the layer overflows {dtype} with these numbers: there is no bound; choose smaller ones")
    if found.shape != expected.X.shape:
        return np.inf
    return expected.ratio(asked.blank_unused("output", found))


def report_of(
    asked: Problem,
    theirs: Any,
    layout: str | None = None,
    others: Mapping[str, MultiHeadAttention] | None = None,
    call_is_sure: bool = False,
) -> Report:
    """Compare arrays of another implementation with those of a problem; theirs, layout, others: as for `compare`.

    call_is_sure: True = theirs was called as the problem says.
    """
    found, layout, cached = arrays_by_name(asked, theirs), layout_name(layout), asked.sizes.slots is not None
    asked = with_rounding(asked)
    by_name, taken = compare_arrays(asked, found, layout)
    passed = {name: row.passed for name, row in by_name.items()}
    turned_back, note = ({}, "") if cached else undo_shifts(asked, taken, passed)  # keys in the slots are not shifted
    taken |= turned_back
    for name, X in turned_back.items():
        if not passed[name]:
            far = error(asked.blank_unused(name, X), asked.expected(name).X)
            by_name[name] = replace(by_name[name], error=far, place=None, note=note)
    ways = find_rewritten(asked, taken, {name: row.passed for name, row in by_name.items()})
    for name, way in ways.taken_back.items():
        by_name[name] = replace(by_name[name], error=way.ratio * by_name[name].bound, place=None, note=way.note)
        taken[name] = asked.expected(name).X
    rows, known = tuple(by_name.values()), weights_of_others(others)
    if all(row.passed for row in rows):
        alone = asked.alone()  # a report that is kept keeps no steps
        nothing, look = partial(find_reasons, alone, {}, rows, known), partial(sight, [(lambda: alone, tuple(found))])
        return Report(rows, asked.config.dtype, nothing, None if cached else look)
    why = partial(find_reasons, asked, taken, rows, known, call_is_sure or cached, ways)
    return Report(rows, asked.config.dtype, why)


def compare_arrays(asked: Problem, found: Named, layout: str | None = None) -> tuple[dict[str, Row], Named]:
    """Compare their arrays by name: return the row of each, and those that fit, in the compared shapes."""
    rows, taken = dict[str, Row](), Named()
    for name, X in found.items():
        rows[name], turned = compare_array(asked, name, X, layout)
        if turned is not None:
            taken[name] = turned
    return rows, taken


def compare_array(asked: Problem, name: str, X: np.ndarray, layout: str | None) -> tuple[Row, np.ndarray | None]:
    """Compare one of their arrays: return its row, and the array in the compared shape, or None if it does not fit."""
    right = asked.expected(name)
    turn = asked.turn(name, X, layout)
    if isinstance(turn, str):
        return Row(name, np.inf, right.limit, None, turn, title=asked.title(name)), None
    theirs, share = turn(X), 1
    counts = np.ones(right.X.shape, bool) & (True if name.startswith(GRADIENT) else asked.matters(name))
    if theirs.ndim == 4 and theirs.shape != right.X.shape:  # heads of keys that were repeated already
        share = theirs.shape[1] // right.X.shape[1]
        right, counts = right._replace(X=np.repeat(right.X, share, 1)), np.repeat(counts, share, 1)
    there = np.where(counts, theirs.astype(np.float64), 0)
    usual = name == PLACED or checks.dtype_name(X.dtype) == asked.config.dtype
    notes = [] if usual else [f"in {X.dtype}"]
    if name == MEANS:
        notes.append("means over the heads were given")
    if right.limit == np.inf:
        notes.append(f"NumPy itself overflows {asked.config.dtype} here: there is no bound")
    if name in FROM_SOFTMAX:
        unseeing = ~(asked.visible.any((1, 3)) | asked.rows_that_count) & (True if asked.rows is None else asked.rows)
        empty = np.isnan(theirs).any(-1) & (unseeing if theirs.ndim == 3 else unseeing[:, None])  # (B, Q) or (B, H, Q)
        if empty.any():
            count = plural(int(empty.sum()), "row")
            notes.append(f"NaN in {count} of queries that see no key: with empty_rows=True they count")
    verdict, place = right.judge(there), None
    if verdict.limit < np.inf and verdict.ratio > 1:
        wrong = right.outside(there, verdict)
        if verdict.error <= verdict.limit:
            notes.append(f"each number is within what {asked.config.dtype} explains, {verdict.worst} is not")
        distance = np.where(wrong, right.distances(there), -1.0)
        at = np.unravel_index(distance.argmax(), distance.shape)
        places = turn(np.arange(X.size).reshape(X.shape))
        index = tuple(int(i) for i in np.unravel_index(places[at], X.shape))
        where = describe_place(asked, name, wrong, at)
        place = Place(index, float(there[at]), float(right.X[at]), int(wrong.sum()), wrong.size, *where)
        notes += hints(there, right.X, verdict.limit)
        three, of_one = GRADIENT + INPUTS, asked.one_input and name.removeprefix(GRADIENT) in OF_INPUTS
        if of_one and asked.expected(three).ratio(there) <= 1:
            notes.append(f"it is the gradient of queries, keys and values at once: give it as {three!r}")
    row = Row(
        name, verdict.error, verdict.limit, place, "; ".join(notes), verdict.rounding, verdict.rest, asked.title(name)
    )
    return row, theirs[:, ::share] if share > 1 else theirs
