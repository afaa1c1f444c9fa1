"""The command line: `mha demo`, `explain`, `heads`, `page`, `parity`, `kernel`, `bench`, `compare` and the others."""

import io
import os
import sys
from typing import Annotated, Any

import typer

import mha
from mha.cli import (
    audit,
    backends,
    bench,
    case,
    compare,
    demo,
    explain,
    grade,
    heads,
    kernel,
    page,
    parity,
    terminal,
    weights,
    write,
)

OPTIONS: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}
app = typer.Typer(**OPTIONS)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"mha {mha.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """One multi-head attention on several backends, with the same numbers on each.

    `mha backends` lists them. The environment variable MHA_BACKEND chooses one; without it, numpy.


    \b
    Examples:
      mha demo
      MHA_BACKEND=torch mha demo
      mha explain --values
      mha parity --backends torch,jax
      mha kernel flash.py:attend --backend torch
      mha weights show model.safetensors
      mha compare a.safetensors b.safetensors
      mha audit record.safetensors
      mha heads model.safetensors --text "The cat sat down"
      mha page -o page.html
      mha grade student.py
      mha write torch -o attention.py

    Exit codes: 0 if all is well; 1 if something was computed and is wrong, or if a framework is broken; 2 if the
    command is wrong, if a framework that it needs is not installed, or if a file cannot be used.
    """
    # Commands show no messages of TensorFlow: if something fails, the command itself says so.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no error
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command()(terminal.command(demo.demo))
app.command(name="explain")(terminal.command(explain.show))
app.command()(terminal.command(heads.heads))
app.command(name="backends")(terminal.command(backends.show))
app.command(name="parity")(terminal.command(parity.compare))
app.command()(terminal.command(kernel.kernel))
app.command()(terminal.command(bench.bench))
app.command()(terminal.command(weights.convert))
app.command()(terminal.command(compare.compare))
app.command()(terminal.command(audit.audit))
app.command()(terminal.command(grade.grade))
app.command(name="page")(terminal.command(page.write))
app.command()(terminal.command(write.write))

files_of_weights = typer.Typer(**OPTIONS)
files_of_weights.command()(terminal.command(weights.show))
app.add_typer(files_of_weights, name="weights", help="Show what files of weights hold.", no_args_is_help=True)

case_files = typer.Typer(**OPTIONS)
case_files.command()(terminal.command(case.write))
case_files.command()(terminal.command(case.check))
app.add_typer(case_files, name="case", help="Write and check cases as files, for any framework.", no_args_is_help=True)
