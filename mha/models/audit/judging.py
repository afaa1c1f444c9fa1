"""Judge one call of one layer: compare its output with what the right layer computes from the same inputs."""

import dataclasses
from typing import Any

import numpy as np

from mha.core.call import ROWS, call_of
from mha.core.options import checks
from mha.core.options.config import numpy_dtype
from mha.layer import restore
from mha.models.audit.calls.layer_call import WITHOUT_WINDOW, told
from mha.models.audit.calls.model_calls import UnknownError
from mha.models.audit.calls.own_layers import cache_for
from mha.models.audit.calls.packed import Sizes, packs, seen_together, texts, together
from mha.models.audit.calls.session import Tap
from mha.models.audit.layers.reference import Truth
from mha.parity.cases.files import case_files
from mha.parity.diagnosis.compare.comparison import report_of
from mha.parity.diagnosis.compare.explanations import Diagnosis
from mha.parity.diagnosis.compare.report import Report
from mha.parity.rule.decoding import decoding
from mha.parity.rule.problem import Expected, Problem, problem
from mha.weights.readers import FLOATS

PROJECTED = ("W_q", "W_k", "W_v")


@dataclasses.dataclass(frozen=True, eq=False)
class Judged:
    """A judged call of a layer.

    Attributes:
        number: of the model's call.
        ratio: of the output.
        report: of `parity.compare`.
        asked: the call as the right layer gets it; None when its arrays are no longer kept.
    """

    number: int
    ratio: float
    report: Report
    asked: Problem | None

    def light(self) -> "Judged":
        """Return the same without the arrays of the layer."""
        return dataclasses.replace(self, asked=None, report=dataclasses.replace(self.report, look=None))


def judged(tap: Tap, asked: Problem) -> Judged:
    """Judge a call. Raises UnknownError if its output has another shape."""
    theirs = tap.outputs["W_o"]
    config, shape = asked.config, (*asked.queries.shape[:2], asked.config.num_hiddens)
    if theirs.size != np.prod(shape):
        raise UnknownError(f"its output has shape {theirs.shape}, expected {shape}")
    theirs = theirs.reshape(shape).astype(asked.queries.dtype)
    counts = asked.matters("output")
    oracle, base = (np.where(counts, X, 0) for X in asked.outputs())
    asked.known["output"] = expected = Expected.of(config.dtype, oracle, base)
    ratio = expected.ratio(np.where(counts, theirs, 0).astype(np.float64))
    if ratio <= 1:
        return Judged(tap.call.number, ratio, report_of(asked, theirs, call_is_sure=True), asked)
    steps = {role: tap.layer.part(role, tap.outputs[role], config) for role in PROJECTED if role in tap.outputs}
    if "merged" in tap.inputs:
        merged = tap.inputs["merged"]
        steps["merged"] = merged.reshape(*merged.shape[:2], -1)  # (B, Q, H*dv)
    steps |= tap.steps
    report = report_of(asked, steps | {"output": theirs}, call_is_sure=True)
    asked.forget()
    return Judged(tap.call.number, ratio, explained(asked, report, steps, theirs), asked)


def explained(asked: Problem, report: Report, steps: dict[str, Any], theirs: np.ndarray) -> Report:
    """Let a report explain the part after the projections by itself, where the projections are right."""
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
            other = report_of(asked, some, call_is_sure=True).diagnosis
            found = other if any(one.sure for one in other.explanations) else found
        return found

    return dataclasses.replace(report, explain=explain)


def judged_packed(tap: Tap, asked: Problem, truth: Truth, library: bool) -> tuple[Judged, str]:
    """Judge a call whose rows may hold several texts; say it if they see each other. library: of transformers.

    Where the arguments do not say whether texts are apart, either is right: each model has its own rule.
    """
    one, attends = judged(tap, asked), tap.layer.attends
    count = 1 if attends is None else texts(tap.call, attends, sizes_of(tap))
    if attends is None or count == 1:
        return one, ""
    apart = packs(tap.call, attends, truth)
    if one.ratio > 1 and (library or not apart):
        other = judged(tap, asked_of(tap, truth, not apart))
        one, apart = (other, not apart) if other.ratio <= 1 else (one, apart)
    if apart or one.ratio > 1:
        return one, ""
    return one, seen_together(count, together(tap.call, attends, truth) if attends.causal else [])


def sizes_of(tap: Tap) -> Sizes:
    """Return the numbers of samples, queries and keys in a call of a layer."""
    queries, keys = tap.inputs["queries"], tap.inputs["keys"]
    return len(queries), queries.shape[1], (queries if keys is None else keys).shape[1]


def asked_of(tap: Tap, truth: Truth, apart: bool | None = None) -> Problem:
    """Return the call that the right layer gets, as a problem to compute; apart: as for `told`.

    Raises UnknownError if the arguments are not known, or if no layer of mha has them.
    """
    layer = tap.layer
    inputs = [tap.inputs[name] for name in ("queries", "keys", "values")]
    dtype = checks.dtype_name(tap.outputs["W_o"].dtype)  # the one computed in, also under autocast
    if dtype not in FLOATS:
        raise UnknownError(f"its output has dtype {dtype}, expected one of {', '.join(FLOATS)}")
    _, _, K = sizes = sizes_of(tap)
    config, weights = layer.found(K)
    if dtype == "float64" and config.rotary is not None:  # ports compute angles in float32 there, too
        dtype = "float32"
    kind = numpy_dtype(dtype)
    config = dataclasses.replace(config, dtype=dtype, dropout=0.0)
    if layer.attends is None:
        given, rows = {name: X for name, X in tap.given.items() if name in ROWS}, tap.given.get("rows")
    elif tap.given.get("cache") is not None:
        raise UnknownError("it has a cache of its own, beside what the model's configuration says of its call")
    else:
        given, rows = told(tap.call, layer.attends, config, truth, layer.path, sizes, apart)
    given = {"score_bias": None} | given
    if given.pop(WITHOUT_WINDOW, False):
        config = dataclasses.replace(config, window=None)
    attention = restore(config, {name: X.astype(kind) for name, X in weights.items()}, "numpy")
    if given["score_bias"] is not None:
        given["score_bias"] = given["score_bias"].astype(kind)
    lengths = given.pop("valid_lens", None)
    try:
        asked = call_of("audit", lengths, given, cache=cache_for(attention, tap.given.get("cache")))._asdict()
        rows = None if rows is None or rows.all() else rows
        queries, keys, values = (None if X is None else X.astype(kind) for X in inputs)
        return decoding(problem(attention, queries, keys, values, asked, None, rows, False, angles=True))
    except (TypeError, ValueError) as error:
        raise UnknownError(f"the call does not fit the layer: {error}") from error


def mended(tap: Tap, asked: Problem) -> np.ndarray:
    """Return the right output of a layer, in float64, where its queries count; elsewhere its own."""
    theirs = tap.outputs["W_o"]
    right = asked.outputs()[0]
    return np.where(asked.matters("output"), right, theirs.reshape(right.shape).astype(np.float64))


def save(path: Any, asked: Problem) -> None:
    """Write the layer, its inputs, the expected output and bounds as a case file; ValueError beside a cache."""
    if asked.sizes.slots is not None:
        raise ValueError("the call has a cache, which a case file of one call cannot hold; save a call without one")
    ones = np.ones((*asked.queries.shape[:2], asked.config.num_hiddens), asked.queries.dtype)
    given = asked.call.given() | {"causal": asked.call.causal}
    inputs = asked.queries, asked.keys, asked.values, ones if asked.cotangent is None else asked.cotangent
    case_files.write(path, case_files.make("a layer of a model", asked.layer, inputs, given))
