"""`mha audit`: the attention layers of a recorded model, each judged by float64 NumPy."""

from typing import Annotated

import typer

from mha import parity
from mha.cli import terminal


def audit(
    record: Annotated[str, typer.Argument(metavar="RECORD", help="A record, which `mha.parity.record` wrote.")],
    like: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="A checkpoint with the weights that it should have: a directory or a file."),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON to a file; - = stdout.")
    ] = None,
) -> None:
    """Judge each attention layer of a recorded model.

    In Python, `with mha.parity.record(model, "ours.safetensors", weights=True): model(...)` writes a record. Each layer
    is judged by float64 NumPy on what entered it; of one that is wrong, the report names the known mistake that
    explains it.

    If the record has no weights, --like says where they are. With --like, weights are judged, too.

    \b
    Examples:
      mha audit ours.safetensors
      mha audit ours.safetensors --like checkpoint

    Exit code 0 if at least one layer was compared, and all that were called are known and the same; 1 if not; 2 if a
    file cannot be used, if no layer is known, or if the command is wrong.
    """
    file = terminal.json_file(json_file)
    try:
        report = parity.audit_record(record, like, track=lambda events: terminal.track("Judging", events))
    except FileNotFoundError as error:
        terminal.fail(f"there is no file {error.filename}")
    except (OSError, TypeError, ValueError) as error:
        terminal.fail(error)
    terminal.show(report, json_file, file)
