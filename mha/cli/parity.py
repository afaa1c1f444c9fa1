"""`mha parity`: run the quick suite, show a table of it, and write every result."""

import dataclasses
import importlib
import math
import platform
from typing import Annotated, Any

import typer
from rich.table import Table

import mha
from mha import dispatch, parity
from mha.cli import terminal
from mha.cli.backends import Backends, chosen_all
from mha.names import BackendName
from mha.parity import Result
from mha.tables import plain_table


def compare(
    backends: Backends = None,
    to: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Also write versions and every result to FILE; - is stdout."),
    ] = None,
) -> None:
    """Check that the backends compute the same numbers.

    A quick suite, about a minute for all five. Outputs, attention weights, every step and every gradient are compared
    with NumPy in float64: both poolings, lengths, mask, causal order, three scales, many keys, every dtype that a
    backend has. The bound is what rounding explains, no fixed tolerance. Hidden keys, padding, transposes, sync, save
    and load must be exact.

    \b
    Examples:
      mha parity
      mha parity --backends torch,jax --json parity.json

    Exit code 0 if every error is within its bound, 1 if one is not or a framework is broken, 2 if the command is wrong
    or a backend that it names is not installed.
    """
    names = chosen_all(backends)
    file = terminal.json_file(to)
    results = _run(names)
    failed = [result for result in results if not result.passed]
    console = terminal.console(stderr=to == "-")
    console.print(_summary(results))
    if failed:
        wrong = ", ".join(dict.fromkeys(result.backend for result in failed))
        console.print(f"{len(failed)} of {len(results)} results failed, on {wrong}; --json FILE writes each of them")
    else:
        console.print(f"{len(results)} results on {', '.join(names)}, all within their bounds")
    if to is not None:
        terminal.write_json(file, _report(names, results))
    raise typer.Exit(1 if failed else 0)


def _run(names: list[BackendName]) -> list[Result]:
    """All results of the quick suite, with a progress bar where stderr is a terminal."""
    results: list[Result] = []
    for name in names:
        try:
            plan = parity.plan([name])
        except Exception as error:
            results.append(Result(name, "loads", "", "", parity.one_line(error), math.inf, 0.0))
            continue
        for check in terminal.track(name, plan):
            results += check()
    return results


def _summary(results: list[Result]) -> Table:
    """For each backend and check the result that comes nearest to its bound, or exceeds it most."""
    worst: dict[tuple[str, str], Result] = {}
    for result in results:
        key = result.backend, result.check
        worst[key] = max(worst.get(key, result), result, key=lambda one: (not one.passed, one.ratio))
    table = plain_table("backend", "check", "error", "bound", "ratio", "result", "where")
    for (backend, check), result in worst.items():
        numbers = (_number(result.error, ".1e"), _number(result.bound, ".1e"), _number(result.ratio, ".2f"))
        where = ", ".join(filter(None, [result.dtype, result.case, result.where])) if result.error else ""
        table.add_row(backend, check, *numbers, "pass" if result.passed else "FAIL", where)
    return table


def _number(value: float, form: str) -> str:
    return format(value, form) if value else "0"


def _report(names: list[BackendName], results: list[Result]) -> dict[str, Any]:
    """Versions and results as JSON has them: null stands for a number that is not finite."""

    def row(result: Result) -> dict[str, Any]:
        values = dataclasses.asdict(result) | {"ratio": result.ratio, "passed": result.passed}
        return {key: None if value == math.inf else value for key, value in values.items()}

    broken = {result.backend for result in results if result.check == "loads"}
    return {
        "mha": mha.__version__,
        "python": platform.python_version(),
        "backends": {name: {} if name in broken else _versions(name) for name in names},
        "passed": all(result.passed for result in results),
        "results": [row(result) for result in results],
    }


def _versions(name: BackendName) -> dict[str, str]:
    module: Any = dispatch.load(name)
    versions = {module: importlib.import_module(module).__version__ for module in dispatch.FRAMEWORKS[name].needs}
    return versions | {"device": module.device()}
