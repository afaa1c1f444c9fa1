"""Compare two records: where the difference between two models begins, and why."""

import dataclasses
import fnmatch
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mha.core.tables import few
from mha.models.audit.audit_report import AuditReport
from mha.models.audit.layers.finding import first_names
from mha.models.audit.layers.reference import Reference, formats_of
from mha.models.records import aligning
from mha.models.records.contents import Record
from mha.models.records.doubts import Doubt, cuts_of, first_difference, unclear_of
from mha.models.records.pairs import Matcher
from mha.models.records.reading import open_record
from mha.models.records.records_report import NO_WEIGHTS, ModelFacts, RecordsReport
from mha.models.records.replay import RecordedWeights, judge_record
from mha.models.records.stepping import StepFacts, Stepper, StepRow, VerdictName
from mha.models.records.tokens import Text, texts_of
from mha.models.records.units import ModuleStep, steps_of, units_of

MOST = 8  # differences that are told apart
Progress = Callable[[list[Any]], Iterable[Any]]


def compare_records(a: Any, b: Any, paths: Any = None, layers: Any = None, *, track: Progress = iter) -> RecordsReport:
    """Find where the difference between two recorded models begins: B is judged, A is taken as right.

    Args:
        a, b: paths of records, or records; from any framework, environment and machine.
        paths: modules of A and of B that are the same, by paths, where their names do not show it, such as
            `{"model.layers.{}.self_attn": "blocks_{}/attn"}`; `{}` is the number of a layer. Others are paired by their
            names, by what they return, and by their order. None for one of B leaves a module out, with what is inside.
        layers: as for `audit`, what attention layers of A, of B or of both compute that no table knows, by patterns of
            their paths; a pair has those of A, and those of B.
        track: goes through the steps as they are compared, and may show the progress.

    Returns:
        A `RecordsReport`: true if nothing differs beyond rounding; it prints as a table.

    Each step is judged by what entered it in both models, so that a difference is found where it begins. A module that
    differs where nothing that is made of its output does is cut elsewhere, such as a layer with its activation, and is
    no difference. Attention layers whose weights a record has are judged by float64 NumPy, too.

    Raises:
        TypeError: if a or b is no path and no record, or as `audit` for layers.
        FileNotFoundError: if there is no such file.
        FileError (an OSError and a ValueError): if it is no regular file, or if the run that wrote it did not end.
        ValueError: if a file is no record or is damaged, if a record has no calls, if paths or layers says what is
            not there, if layers is given and no record has weights, or if no module of A has a partner in B.
    """
    named_paths = aligning.check_paths(paths)
    with open_record("a", a) as first, open_record("b", b) as second:
        texts = tuple(map(texts_of, (first, second)))
        for name, source, found in zip("ab", (first, second), texts, strict=True):
            if not found:
                raise ValueError(
                    f"{name} ({source.said}) has no call of its model, expected at least one in its context"
                )
        modules = [
            aligning.module_summaries(record, found[0].calls[0])
            for record, found in zip((first, second), texts, strict=True)
        ]
        every = aligning.pair_modules(modules[0], modules[1], named_paths)
        if not every:
            some = [first_names((one.path for one in side), 6) for side in modules]
            raise ValueError(
                f"no module of A ({some[0]}) has a partner in B ({some[1]}); say which are the same: "
                "paths={'layers.{}.attn': 'blocks_{}/attention'}"
            )
        partners = {path: other for path, other in every.items() if not aligning.left_out(path, named_paths)}
        user_layers = split_user_layers(layers, first, second)
        one, _ = judge_attention(first, None, user_layers[0], track)
        other, unjudged = judge_attention(second, first, user_layers[1], track)
        audits = one, other
        rows, notes, left = judge_steps(first, second, texts, partners, audits, track)
        models = model_of(first), model_of(second)
        alone = [path for path in first.modules if path in paths_of_calls(texts[0]) and path not in every]
        extra = [path for path in paths_of_calls(texts[1]) if path not in every.values()]
        if out := [path for path in every if path not in partners]:
            notes.append(f"left out, as paths says: {', '.join(few(out))}")
        sides, out_of_b = (tuple(alone), tuple(extra)), frozenset(every.values()) - frozenset(partners.values())
        return RecordsReport(models, tuple(rows), partners, sides, tuple(notes), left, audits, unjudged, out_of_b)


def split_user_layers(layers: Any, a: Record, b: Record) -> tuple[Any, Any]:
    """Split layers= into A's and B's; ValueError if a pattern fits neither, or without weights."""
    if layers is None:
        return None, None
    if a.weights is None and b.weights is None:
        raise ValueError(
            "layers says what attention layers compute, but no record has weights: record(..., weights=True)"
        )
    if isinstance(layers, tuple) and len(layers) == 2:
        return layers
    if not isinstance(layers, Mapping):
        raise TypeError(
            f"layers is a {type(layers).__name__}, expected a dict by paths, or a pair of them, of A and of B"
        )
    found: tuple[dict[Any, Any], dict[Any, Any]] = {}, {}
    for pattern, user_layer in layers.items():
        fits = [any(fnmatch.fnmatchcase(path, str(pattern)) for path in one.modules if path) for one in (a, b)]
        if not any(fits):
            raise ValueError(
                f"layers has {pattern!r}, which fits no module of A or B; A has {first_names(a.modules, 6)}"
            )
        for one, fit in zip(found, fits, strict=True):
            one.update({pattern: user_layer} if fit else {})
    return found[0] or None, found[1] or None


def judge_attention(
    source: Record, other: Record | None, user_layers: Any, track: Progress
) -> tuple[AuditReport | None, str]:
    """Judge the attention of a record by its own or the other's weights, or say why not."""
    like = None
    if source.weights is None:
        if other is None or other.weights is None:
            return None, NO_WEIGHTS
        facts = other.facts
        formats = formats_of(facts["framework"])
        like = Reference(
            RecordedWeights(other), facts["config"], "the weights of A", inside=facts["inside"], formats=formats
        )
    try:
        return judge_record(source, like, user_layers, track), ""
    except (TypeError, ValueError) as error:
        if user_layers is not None and like is None:
            raise
        return None, str(error)


def judge_steps(
    a: Record, b: Record, texts: Any, partners: dict[str, str], audits: Any, track: Progress
) -> tuple[list[StepRow], list[str], str]:
    """Judge all steps; return also notes on calls that were left out, and on texts."""
    first, second = audits
    trusted = {}  # by path in B: right if the oracle finds it so, in A, too, if that was judged
    if second is not None:
        wrong = {partners.get(row.path) for row in first.wrong} if first is not None else set()
        trusted = {row.path: row.verdict == "same" and row.path not in wrong for row in second.layers}
    units = list(units_of(*texts))
    notes = [note for *_, note in units if note]
    every = [steps_of(one, other, (a, b), partners) for one, other, _ in units]
    facts = StepFacts(Matcher(a, b), trusted, partners)
    rows = tell_apart(every, facts, track)
    left = ""
    if len(texts[0]) != len(texts[1]):
        counts = [f"{len(found)} in {sum(len(text.calls) for text in found)} calls" for found in texts]
        left = f"A has texts: {counts[0]}, B: {counts[1]}; only the first {min(map(len, texts))} were compared"
    return rows, notes, left


def tell_apart(units: list[list[ModuleStep]], facts: StepFacts, track: Progress) -> list[StepRow]:
    """Judge the steps of each unit, and tell differences from other cuts.

    Effects of a difference can be told once it is known to be one: then all steps are judged again for the next one.
    """
    steps = [(at, step) for at, unit in enumerate(units) for step in unit]
    real: set[ModuleStep] = set()
    none: set[ModuleStep] = set()
    unclear: set[ModuleStep] = set()
    while True:
        found: list[tuple[StepRow, Doubt | None]] = []
        for _, some in itertools.groupby(steps if real else track(steps), key=lambda one: one[0]):
            current = Stepper(facts, real)
            for _, step in some:
                current.add(step)
            found += current.found
        doubts = [doubt for _, doubt in found if doubt is not None]
        cuts = cuts_of(doubts) | none
        unclear = unclear if real else unclear_of(doubts)
        first, before = first_difference(doubts, cuts | unclear)
        if first is None or len(real) == MOST:
            verdicts: dict[ModuleStep, VerdictName] = dict.fromkeys(unclear, "not told")
            verdicts |= dict.fromkeys(cuts, "another cut")
            return [
                dataclasses.replace(row, verdict=verdicts[doubt.step], note="")
                if doubt is not None and not doubt.real and doubt.step in verdicts
                else row
                for row, doubt in found
            ]
        real.add(first)
        none |= {*before}


def paths_of_calls(texts: list[Text]) -> dict[str, None]:
    """Return the paths of the modules that were called."""
    return dict.fromkeys(visit.path for text in texts for call in text.calls for visit in call.visits)


def model_of(source: Record) -> ModelFacts:
    """Describe the model of a record, for the report."""
    facts = source.facts
    where = "a record in memory" if source.path is None else os.path.basename(source.path)
    return ModelFacts(facts["model"], f"{facts['framework']} {facts['version']}", where, facts.get("checkpoint"))
