"""`mha case write` and `mha case check`: one case of the suite as a file for any framework, and files on backends."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mha import checks, dispatch
from mha.cli import terminal
from mha.cli.backends import chosen_all
from mha.config import DTYPES
from mha.names import BackendName, FloatName
from mha.parity import Result, case_files
from mha.parity.case_files import CaseFile
from mha.parity.suite import ALL_CASES
from mha.tables import plain_table

Results = dict[tuple[str, BackendName], list[Result]]  # by file and backend


def write(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write; one that is there is replaced.")],
    case: Annotated[
        str, typer.Option(metavar="NAME", help="A case of the full suite; a name that is unknown shows all names.")
    ] = "all options",
    dtype: Annotated[str, typer.Option(metavar="NAME", help=f"What to compute in: {', '.join(DTYPES)}.")] = "float32",
) -> None:
    """Write a case of the suite for somebody with another framework.

    A safetensors file with everything that it takes to compute the same and to judge the result: how the layer is
    configured, weights, inputs, what hides keys, every step from input to output, attention weights, output and
    gradients by NumPy in float64, and how far each may be off in the dtype.

    \b
    Examples:
      mha case write case.safetensors
      mha case write case.safetensors --case "score bias" --dtype bfloat16

    Exit code 0 if the file was written, 2 if not; FILE then stays as it was.
    """
    known = {one.name: one for one in ALL_CASES}
    try:
        chosen = known[checks.choice("--case", case, tuple(known))]
        dtype_name = checks.choice("--dtype", dtype, DTYPES)
        path = terminal.writable("FILE", file)
        made = case_files.from_case(chosen, dtype_name)
    except ValueError as error:
        terminal.fail(error)
    terminal.write(path, case_files.to_bytes(made))
    console = terminal.console()
    console.print(f"{file} is written: {chosen.name!r} in {dtype_name}, {len(made.expected)} results")


def check(
    names: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Files that `mha case write` wrote, or folders of them.")
    ],
    backends: Annotated[
        str | None,
        typer.Option(
            "--backends", "--backend", metavar="A,B", help="Backends joined by commas; default: all that are installed."
        ),
    ] = None,
) -> None:
    """Compute what case files say, and compare.

    Every step, the output (with and without attention weights) and every gradient, on each backend. The table has the
    ratios, error by bound, which are at most 1 where rounding explains the error; of several files, the largest one of
    each. Where a backend lacks the dtype of a file, there is none.

    \b
    Examples:
      mha case check case.safetensors --backends torch
      mha case check vectors

    Exit code 0 if every error is within its bound. 1 if one is not, and then the first step that leaves its bound is
    named, or if a framework is broken. 2 if a file is no case file, or if the command is wrong.
    """
    chosen = chosen_all(backends)
    cases = {file: _read(file) for name in names for file in _files(name)}
    dtypes = {name: _dtypes(name) for name in chosen}
    plan = [(file, name) for file in cases for name in chosen if cases[file].config.dtype in dtypes[name]]
    if not plan:
        terminal.fail(f"{', '.join(chosen)} has no {', '.join(sorted({one.config.dtype for one in cases.values()}))}")
    results = {(file, name): case_files.check(cases[file], name) for file, name in terminal.track("Checking", plan)}
    console = terminal.console()
    console.print((_of_one if len(cases) == 1 else _of_many)(cases, chosen, results))
    failures = [f"{file} on {name}: {_failure(found)}" for (file, name), found in results.items() if _failed(found)]
    for line in failures:
        console.print(line)
    if not failures:
        console.print(f"{len(plan)} checks on {', '.join(chosen)}, all within their bounds")
    raise typer.Exit(1 if failures else 0)


def _files(name: str) -> list[str]:
    """A file, or the safetensors files of a folder."""
    if not os.path.isdir(name):
        return [name]
    if not (found := sorted(map(str, Path(name).glob("*.safetensors")))):
        terminal.fail(f"{name} is a folder without safetensors files")
    return found


def _read(name: str) -> CaseFile:
    """The case in a file; what is wrong with it ends the command."""
    try:
        return case_files.read(name)
    except FileNotFoundError:
        terminal.fail(f"{name} is not there")
    except (OSError, ValueError) as error:
        terminal.fail(error)


def _dtypes(name: BackendName) -> Sequence[FloatName]:
    """The dtypes of a backend; all of them where its framework is broken, so that the check says why."""
    try:
        module: Any = dispatch.load(name)
    except Exception:
        return DTYPES
    return module.DTYPES


def _of_one(cases: dict[str, CaseFile], backends: list[BackendName], results: Results) -> Table:
    """The ratio of every quantity of one file, on each backend."""
    [(file, case)] = cases.items()
    ratios = {name: {one.where: one for one in results.get((file, name), [])} for name in backends}
    table = plain_table(case.name, "bound", *backends)
    for where, bound in case.bounds.items():
        table.add_row(where, format(bound, ".1e"), *(_shown(ratios[name].get(where)) for name in backends))
    return table


def _of_many(cases: dict[str, CaseFile], backends: list[BackendName], results: Results) -> Table:
    """The largest ratio of every file, on each backend."""
    table = plain_table("file", "dtype", *backends)
    for file, case in cases.items():
        found = (results.get((file, name), []) for name in backends)
        worst = (max(one, key=lambda result: result.ratio, default=None) for one in found)
        table.add_row(file, case.config.dtype, *map(_shown, worst))
    return table


def _shown(result: Result | None) -> str:
    """A ratio, if there is one."""
    return "-" if result is None else f"{result.ratio:.2f}" + ("" if result.passed else " FAIL")


def _failed(results: list[Result]) -> list[Result]:
    return [result for result in results if not result.passed]


def _failure(results: list[Result]) -> str:
    """Where a case first leaves its bounds, or what was raised."""
    first, *_ = _failed(results)
    if first.error == math.inf and len(results) == 1:
        return first.where
    return f"{first.where} leaves its bound first: error {first.error:.1e}, bound {first.bound:.1e}"
