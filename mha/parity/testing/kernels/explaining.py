"""Explain all wrong cases of a kernel at once: by mistakes that explain each, and would show in no right one."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from mha.core.tables import few, plural
from mha.parity import Report
from mha.parity.diagnosis.blind_spots.sight import NARROW
from mha.parity.diagnosis.blind_spots.views import View
from mha.parity.diagnosis.compare.report import Row
from mha.parity.diagnosis.mistakes.catalogue import catalogue_of
from mha.parity.diagnosis.mistakes.mistake import forms_of
from mha.parity.diagnosis.mistakes.of_gradients import GRADIENT_MISTAKES
from mha.parity.diagnosis.mistakes.of_tiles import GRADIENTS_OF_TILES
from mha.parity.diagnosis.search.explanations import Diagnosis
from mha.parity.rule.layouts import GRADIENT
from mha.parity.testing.kernels.running import KernelCall

WRONG, RIGHT = 6, 10  # cases that are asked, at most: the smallest
OR, CUT = " or ", " or ... or "  # between forms, and at the end of a list that is not complete


Form = tuple[tuple[str, ...], str]  # the names of mistakes that come together, and the form of the first, in words


def explain_all(reports: Mapping[KernelCall, Report]) -> Diagnosis:
    """Return the reasons of the smallest wrong case that explain all of them, and that no right case contradicts.

    Where outputs differ, wrong gradients alone are not asked: what makes an output wrong may leave another one right,
    and still be in the way of its gradients.
    """
    wrong, right = ([call for call, report in reports.items() if bool(report) is same] for same in (False, True))
    forward = [call for call in wrong if not all(row.passed for row in reports[call].rows if not is_gradient(row))]
    wrong, backward = forward or wrong, len(wrong) - len(forward) if forward else 0
    first, *others = smallest_of_each_kind(wrong)[:WRONG]
    known = forms_that_explain(first, reports[first])
    for call in others:
        also = forms_that_explain(call, reports[call]) if known else []
        known = [form for form in known if form in also]
    for call in smallest_of_each_kind(right)[:RIGHT] if known else []:
        denied = forms_that_show(call, reports[call], known)
        known = [form for form in known if form not in denied]
    diagnosis, kept = reports[first].diagnosis, []
    for one in diagnosis.explanations:
        hows = [how for names, how in known if names == one.mistakes]
        if one.sure and hows:
            how = OR.join(few([*filter(None, hows)])) or one.how[0]
            kept.append(dataclasses.replace(one, how=(how, *one.how[1:])))
    if kept:
        note = f"gradients alone differ in {plural(backward, 'case')}, which it may explain, too" if backward else ""
        return dataclasses.replace(diagnosis, explanations=tuple(kept), note=note)
    alone = ", or ".join(" and ".join(names) for names in diagnosis.alternatives)
    some = f"; the smallest case alone would be explained by: {alone}" if alone else ""
    return Diagnosis(
        (), f"why: unknown, no known mistake explains every wrong case and leaves the others right{some}", 0
    )


def is_gradient(row: Row) -> bool:
    """Return whether a row of a report is about a gradient."""
    return row.name.startswith(GRADIENT)


def smallest_of_each_kind(calls: Sequence[KernelCall]) -> list[KernelCall]:
    """Return the smallest cases first, one for each number of tokens and set of options."""
    small = sorted(calls, key=lambda call: call.case.numbers_in_all, reverse=True)
    kinds = {(call.case.queries, call.case.keys, call.case.options): call for call in small}  # the last one stays
    return sorted(kinds.values(), key=lambda call: call.case.numbers_in_all)


def forms_that_explain(call: KernelCall, report: Report) -> list[Form]:
    """List the mistakes that are sure to explain a wrong case, each form by itself."""
    every = forms_of((*catalogue_of(call.problem()), *GRADIENT_MISTAKES, *GRADIENTS_OF_TILES))
    found: list[Form] = []
    for one in report.diagnosis.explanations if report.diagnosis.known else ():
        hows = [form.how for form in every if form.mistake.name == one.mistakes[0]]
        named = OR + one.how[0] + OR
        hows = [how for how in hows if OR + how + OR in named or CUT in named]
        found += [(one.mistakes, how) for how in hows or [""] if one.sure]  # a number that is fitted is no form
    return found


def forms_that_show(call: KernelCall, report: Report, forms: Sequence[Form]) -> list[Form]:
    """List those forms of mistakes of outputs that would clearly show in a case that is right."""
    asked = call.problem()
    view, wanted = View(asked, [row.name for row in report.rows]), {*forms}
    every = forms_of([mistake for mistake in catalogue_of(asked) if mistake.parts])
    known: dict[Form, Any] = {((form.mistake.name,), form.how): form for form in every}
    return [one for one in wanted & known.keys() if (view.ratio(known[one]) or 0.0) > NARROW]
