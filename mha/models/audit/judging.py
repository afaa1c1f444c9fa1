"""Judge one call of one layer: compare its output with what the right layer computes from the same inputs."""

import dataclasses
from typing import Any, Self

import numpy as np

from mha.core.call import ROWS, call_of
from mha.core.options import checks
from mha.core.options.config import numpy_dtype
from mha.layer import restore
from mha.models.audit.calls.layer_call import (
    WITHOUT_WINDOW,
    are_separate,
    count_texts,
    layer_call_arguments,
    note_on_texts,
    reasons_together,
)
from mha.models.audit.calls.model_calls import UnknownError
from mha.models.audit.calls.own_layers import cache_for
from mha.models.audit.calls.session import CapturedCall
from mha.models.audit.layers.reference import Reference
from mha.parity.diagnosis.compare.comparison import report_of
from mha.parity.diagnosis.compare.report import Report
from mha.parity.diagnosis.search.explanations import Diagnosis
from mha.parity.rule.decoding import as_decoding
from mha.parity.rule.problem import Problem, problem
from mha.weights.readers import FLOATS

PROJECTED = ("W_q", "W_k", "W_v")


@dataclasses.dataclass(frozen=True, eq=False)
class JudgedCall:
    """A judged call of a layer."""

    number: int  # of the model's call
    ratio: float  # of the output
    report: Report  # of `parity.compare`
    layer_call: Problem | None  # the call as the right layer gets it; None when its arrays are no longer kept

    def kept_call(self) -> Any:
        """Return the call, whose arrays have to be kept still."""
        return self.layer_call

    def light(self) -> Self:
        """Return the same without the arrays of the layer."""
        return dataclasses.replace(self, layer_call=None, report=dataclasses.replace(self.report, look=None))


def judge(captured: CapturedCall, layer_call: Problem) -> JudgedCall:
    """Judge a call. Raises UnknownError if its output has another shape."""
    theirs = captured.outputs["W_o"]
    config, shape = layer_call.config, (*layer_call.queries.shape[:2], layer_call.config.num_hiddens)
    if theirs.size != np.prod(shape):
        raise UnknownError(f"its output has shape {theirs.shape}, expected {shape}")
    theirs = theirs.reshape(shape).astype(layer_call.queries.dtype)
    report = report_of(layer_call, theirs, call_is_sure=True)
    ratio = report.ratio
    if report:
        return JudgedCall(captured.call.number, ratio, report, layer_call)
    steps = {
        role: captured.layer.part(role, captured.outputs[role], config)
        for role in PROJECTED
        if role in captured.outputs
    }
    if "merged" in captured.inputs:
        merged = captured.inputs["merged"]
        steps["merged"] = merged.reshape(*merged.shape[:2], -1)  # (B, Q, H*dv)
    steps |= captured.steps
    report = report_of(layer_call, steps | {"output": theirs}, call_is_sure=True) if steps else report
    layer_call.forget()
    return JudgedCall(captured.call.number, ratio, explain_output(layer_call, report, steps, theirs), layer_call)


def explain_output(layer_call: Problem, report: Report, steps: dict[str, Any], theirs: np.ndarray) -> Report:
    """Let a report explain the part after the projections alone, where these are right."""
    right = {row.name for row in report.rows if row.passed}
    projected = [name for name in steps if name in PROJECTED]
    if not projected or not right.issuperset(projected):
        return report

    def explain() -> Diagnosis:
        found = report.explain()
        for names in (("merged", "output"), ("output",)):
            if any(one.sure for one in found.explanations):
                break
            some = {name: X for name, X in (steps | {"output": theirs}).items() if name in names}
            other = report_of(layer_call, some, call_is_sure=True).diagnosis
            found = other if any(one.sure for one in other.explanations) else found
        return found

    return dataclasses.replace(report, explain=explain)


def judge_texts(
    captured: CapturedCall, layer_call: Problem, reference: Reference, library: bool
) -> tuple[JudgedCall, str]:
    """Judge a call whose rows may hold several texts; say it if they see each other. library: of transformers.

    Where the arguments do not say whether texts are apart, either is right: each model has its own rule.
    """
    one, attends = judge(captured, layer_call), captured.layer.attends
    count = 1 if attends is None else count_texts(captured.call, attends, captured.sizes)
    if attends is None or count == 1:
        return one, ""
    apart = are_separate(captured.call, attends, reference)
    if one.ratio > 1 and (library or not apart):
        other = judge(captured, layer_call_of(captured, reference, not apart))
        one, apart = (other, not apart) if other.ratio <= 1 else (one, apart)
    if apart or one.ratio > 1:
        return one, ""
    return one, note_on_texts(count, reasons_together(captured.call, attends, reference) if attends.causal else [])


def layer_call_of(captured: CapturedCall, reference: Reference, apart: bool | None = None) -> Problem:
    """Return the call that the right layer gets; apart: as for `layer_call_arguments`.

    Raises UnknownError if the arguments are not known, or if no layer of mha has them.
    """
    layer = captured.layer
    inputs = [captured.inputs[name] for name in ("queries", "keys", "values")]
    dtype = checks.dtype_name(captured.outputs["W_o"].dtype)  # the one computed in, also under autocast
    if dtype not in FLOATS:
        raise UnknownError(f"its output has dtype {dtype}, expected one of {', '.join(FLOATS)}")
    config, weights = layer.weights_for(captured.sizes[2])
    if dtype == "float64" and config.rotary is not None:  # ports compute angles in float32 there, too
        dtype = "float32"
    kind = numpy_dtype(dtype)
    config = dataclasses.replace(config, dtype=dtype, dropout=0.0)
    if layer.attends is None:
        given, rows = {name: X for name, X in captured.given.items() if name in ROWS}, captured.given.get("rows")
    elif captured.given.get("cache") is not None:
        raise UnknownError("it has a cache of its own, beside what the model's configuration says of its call")
    else:
        given, rows = layer_call_arguments(
            captured.call, layer.attends, config, reference, layer.path, captured.sizes, apart
        )
    given = {"score_bias": None} | given
    if given.pop(WITHOUT_WINDOW, False):
        config = dataclasses.replace(config, window=None)
    attention = restore(config, {name: X.astype(kind) for name, X in weights.items()}, "numpy")
    if given["score_bias"] is not None:
        given["score_bias"] = given["score_bias"].astype(kind)
    lengths = given.pop("valid_lens", None)
    try:
        layer_call = call_of("audit", lengths, given, cache=cache_for(attention, captured.given.get("cache")))._asdict()
        rows = None if rows is None or rows.all() else rows
        queries, keys, values = (None if X is None else X.astype(kind) for X in inputs)
        return as_decoding(problem(attention, queries, keys, values, layer_call, None, rows, False, angles=True))
    except (TypeError, ValueError) as error:
        raise UnknownError(f"the call does not fit the layer: {error}") from error


def right_output(captured: CapturedCall, layer_call: Problem) -> np.ndarray:
    """Return the right output of a layer where its queries count; elsewhere its own."""
    theirs = captured.outputs["W_o"]
    right = layer_call.outputs()[0]
    return np.where(layer_call.matters("output"), right, theirs.reshape(right.shape).astype(np.float64))
