"""`mha audit`: the attention layers of a recorded model, each judged by float64 NumPy."""

import math
from collections.abc import Iterator
from typing import Annotated

import typer

from mha import parity
from mha.cli import terminal, weights
from mha.cli.results import Html, Junit, ResultFiles
from mha.cli.terminal import flag, option
from mha.parity import AuditReport, LayerRow, Result
from mha.parity.diagnosis.compare.report import describe_row


def audit(
    record: Annotated[str, typer.Argument(metavar="RECORD", help="A record, which `mha.parity.record` wrote.")],
    like: Annotated[
        str | None, option("PATH", "A checkpoint with the weights that it should have: a directory or a file.")
    ] = None,
    names: Annotated[
        str | None,
        option("NAMES", "The names of the projections, where no table has them: W_q=to_q,W_k=... and so on."),
    ] = None,
    num_heads: Annotated[int | None, option("H", "With --names: the number of heads.")] = None,
    causal: Annotated[bool, flag("--causal", "With --names: no query sees a later token.")] = False,
    rotary: Annotated[str | None, option("BASE", "With --names: a base, none, or base=B,dim=N.")] = None,
    json_file: Annotated[
        str | None, option("FILE", "Write the report as JSON to a file; - = stdout.", "--json")
    ] = None,
    junit: Junit = None,
    html: Html = None,
) -> None:
    """Judge each attention layer of a recorded model.

    In Python, `with mha.parity.record(model, "ours.safetensors", weights=True): model(...)` writes a record. Each layer
    is judged by float64 NumPy on what entered it; of one that is wrong, the report names the known mistake that
    explains it.

    If the record has no weights, --like says where they are. With --like, weights are judged, too.

    If no table has the names of the model, --names says what its projections are called, below the path of a layer; the
    options after it say what such layers compute. In Python, layers= of `mha.parity.audit_record` says more.

    \b
    Examples:
      mha audit ours.safetensors
      mha audit ours.safetensors --like checkpoint
      mha audit ours.safetensors --like weights.npz \\
        --num-heads 8 \\
        --names W_q=to_q,W_k=to_k,W_v=to_v,W_o=to_out

    Exit code 0 if at least one layer was compared, and all that were called are known and the same; 1 if not; 2 if a
    file cannot be used, if no layer is known, or if the command is wrong.
    """
    to_json, files = terminal.JsonFile(json_file), ResultFiles("mha audit", junit, html)
    layers = weights.user_layers("names", names, weights.layer_options(rotary, None, num_heads=num_heads), causal)
    with terminal.file_errors():
        report = parity.audit_record(record, like, layers, track=lambda events: terminal.track("Judging", events))
    path, differing = (report.first.path, report.first.report) if report.first else ("", None)
    files.write_report(report.model, report, results(report), differing, path)
    to_json.show(report)


def results(report: AuditReport) -> Iterator[Result]:
    """Yield a result for each layer that was called, and not left out."""
    for row in report.layers:
        if row.verdict != "not called" and not report.left_out(row):
            yield layer_result(report.model, row)


def layer_result(model: str, row: LayerRow) -> Result:
    """Return the result of a layer, its error by its bound; a layer that is not known has failed."""
    first = None if row.report is None else row.report.first
    where = row.note or row.verdict if first is None else describe_row(first)
    error = math.inf if row.ratio is None or row.verdict == "not known" else row.ratio
    dtype = "" if row.report is None else row.report.dtype
    return Result(model, row.kind, row.path or "the model", dtype, where, error, 1.0)
