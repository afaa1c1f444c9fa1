"""`mha case write` and `mha case check`: one case of the suite as a file for any framework, and files on backends."""

import itertools
import math
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mha.cli import terminal
from mha.cli.backends import choose_backends
from mha.cli.terminal import option
from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.config import DTYPES
from mha.core.options.names import BackendName
from mha.core.tables import plain_table
from mha.parity import Case, Result, case_files
from mha.parity.cases.decodes import DECODES, Decode
from mha.parity.cases.suite import ALL_CASES

Results = dict[tuple[str, BackendName], list[Result]]  # by file and backend


def write(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write; an existing file is replaced.")],
    case: Annotated[
        str, option("NAME", "A case of the full suite, or a decode; an unknown name lists all names.")
    ] = "all options",
    dtype: Annotated[str, option("NAME", f"The dtype of the case: {', '.join(DTYPES)}.")] = "float32",
) -> None:
    """Write a case of the suite to a file, for somebody with another framework.

    The safetensors file holds all that somebody needs to compute the same and to judge the result: the layer's
    configuration, its weights, the inputs, and what hides keys; every step from input to output, the attention
    weights, the output and the gradients, computed by NumPy in float64; and the largest error that each may have in
    the dtype. A decode is several calls with one cache: the output of each, and the cache after it.

    \b
    Examples:
      mha case write case.safetensors
      mha case write case.safetensors --case "score bias" --dtype bfloat16
      mha case write case.safetensors --case decode-groups-rotary

    Exit code 0 if the file was written, 2 if not; then FILE stays as it was.
    """
    known: dict[str, Case | Decode] = {one.name: one for one in ALL_CASES} | {one.name: one for one in DECODES}
    with terminal.errors():
        chosen = known[checks.choice("--case", case, tuple(known))]
        dtype_name = checks.choice("--dtype", dtype, DTYPES)
        path = terminal.writable("FILE", file)
        made = case_files.from_case(chosen, dtype_name)
    terminal.write(path, case_files.to_bytes(made))
    console = terminal.console()
    console.print(f"{file} is written: {chosen.name!r} in {dtype_name}, {len(made.expected)} results")


def check(
    names: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Files that `mha case write` wrote, or folders of them.")
    ],
    backends: Annotated[
        str | None,
        option("A,B", "Backends joined by commas; default: all that are installed.", "--backends", "--backend"),
    ] = None,
) -> None:
    """Compute the calls in case files, and compare the results with the files.

    Each backend computes every step, the output (with and without attention weights) and every gradient; of a decode,
    the output of each call and the cache after it, whose positions and lengths have to be equal. The table
    shows the ratios, error divided by bound: at most 1 if rounding explains the error. With several files, it shows
    the largest ratio of each. If a backend does not have the dtype of a file, it shows "-".

    \b
    Examples:
      mha case check case.safetensors --backends torch
      mha case check vectors

    Exit code 0 if every error is within its bound. 1 if one is not (the command names the first step that leaves its
    bound), or if a framework is broken. 2 if a file is no case file, or if the command is wrong.
    """
    chosen = choose_backends(backends)
    cases = {}
    for file in itertools.chain.from_iterable(map(_files, names)):
        with terminal.file_errors(file):
            cases[file] = case_files.read(file)
    dtypes = {name: dispatch.FRAMEWORKS[name].dtypes for name in chosen}
    pairs = [(file, name) for file in cases for name in chosen if cases[file].config.dtype in dtypes[name]]
    if not pairs:
        terminal.fail(
            f"{', '.join(chosen)} has no {', '.join(dict.fromkeys(one.config.dtype for one in cases.values()))}"
        )
    results = {(file, name): case_files.check(cases[file], name) for file, name in terminal.track("Checking", pairs)}
    console = terminal.console()
    console.print((_of_one if len(cases) == 1 else _of_many)(cases, chosen, results))
    described = {f"{file} on {name}": _failure(found) for (file, name), found in results.items()}
    failures = [f"{where}: {why}" for where, why in described.items() if why]
    for line in failures:
        console.print(line)
    if not failures:
        console.print(f"{len(pairs)} checks on {', '.join(chosen)}, all within their bounds")
    raise typer.Exit(1 if failures else 0)


def _files(name: str) -> list[str]:
    """Return a file, or the safetensors files of a folder."""
    if not os.path.isdir(name):
        return [name]
    if not (found := sorted(map(str, Path(name).glob("*.safetensors")))):
        terminal.fail(f"{name} is a folder without safetensors files")
    return found


def _of_one(cases: dict[str, case_files.CaseFile], backends: list[BackendName], results: Results) -> Table:
    """Return a table of the ratio of every quantity of one file, on each backend."""
    [(file, case)] = cases.items()
    ratios = {name: {one.where: one for one in results.get((file, name), [])} for name in backends}
    table = plain_table(case.name, "bound", *backends)
    for where, bound in case.bounds.items():
        table.add_row(where, format(bound, ".1e"), *(_ratio_text(ratios[name].get(where)) for name in backends))
    return table


def _of_many(cases: dict[str, case_files.CaseFile], backends: list[BackendName], results: Results) -> Table:
    """Return a table of the largest ratio of every file, on each backend."""
    table = plain_table("file", "dtype", *backends)
    for file, case in cases.items():
        found = (results.get((file, name), []) for name in backends)
        worst = (max(one, key=lambda result: result.ratio, default=None) for one in found)
        table.add_row(file, case.config.dtype, *map(_ratio_text, worst))
    return table


def _ratio_text(result: Result | None) -> str:
    """Format a ratio, if there is one."""
    return "-" if result is None else f"{result.ratio:.2f}" + ("" if result.passed else " FAIL")


def _failure(results: list[Result]) -> str:
    """Describe the first result outside its bound, or the error that was raised; "" = all are within."""
    first = next((one for one in results if not one.passed), None)
    if first is None:
        return ""
    if first.error == math.inf and len(results) == 1:
        return first.where
    return f"{first.where} leaves its bound first: error {first.error:.1e}, bound {first.bound:.1e}"
