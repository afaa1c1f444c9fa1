"""The command line: `mha demo`, `explain`, `heads`, `page`, `parity`, `kernel`, `bench`, `compare` and the others."""

import io
import os
import sys
from collections.abc import Callable
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


def _add(to: typer.Typer, **functions: Callable) -> None:
    for name, function in functions.items():
        to.command(name)(terminal.command(function))


_add(
    app, demo=demo.demo, explain=explain.show, heads=heads.heads, backends=backends.show, parity=parity.compare,
    kernel=kernel.kernel, bench=bench.bench, convert=weights.convert, compare=compare.compare, audit=audit.audit,
    grade=grade.grade, page=page.write, write=write.write,
)  # fmt: skip
files_of_weights, case_files = typer.Typer(**OPTIONS), typer.Typer(**OPTIONS)
_add(files_of_weights, show=weights.show)
_add(case_files, write=case.write, check=case.check)
app.add_typer(files_of_weights, name="weights", help="Show what files of weights hold.", no_args_is_help=True)
app.add_typer(case_files, name="case", help="Write and check cases as files, for any framework.", no_args_is_help=True)
