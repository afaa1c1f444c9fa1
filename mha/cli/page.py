"""`mha page`: write the comparison page."""

import json
from typing import Annotated, Any

import typer

from mha import page
from mha.cli import parity, terminal
from mha.cli.backends import Backends, chosen_all
from mha.names import BackendName
from mha.parity.workers import Runner


def write(
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")] = "page.html",
    backends: Backends = None,
    report: Annotated[
        str | None,
        typer.Option("--parity", metavar="FILE", help="What `mha parity --json` wrote, instead of another run."),
    ] = None,
) -> None:
    """Write the comparison page: the five frameworks side by side, for a browser.

    One file that needs no network: the code with its differences marked, a step player, the table of differences as
    measured here, and what mha parity comes to, which is run unless --parity names its report. That takes a minute or
    two. The code of frameworks that are not installed is shown too.

    \b
    Examples:
      mha page -o page.html
      mha page --backends torch,jax
      mha parity --json parity.json && mha page --parity parity.json

    Exit code 0 if all is well, 1 if a framework could not be measured or a result of parity failed; the page shows it.
    """
    names = chosen_all(backends)
    file = terminal.writable("--output", output)
    told = _finished(report) if report else parity.finish(Runner(), names)
    measured = _measured(names)
    terminal.write(file, page.make(measured, told).encode())
    broken = [name for name, found in measured.items() if "problem" in found]
    failed = sum(not one["passed"] for one in told["results"])
    said = [f"{name} could not be measured: {measured[name]['problem']}" for name in broken]
    said += [f"{failed} of {len(told['results'])} results of parity failed"] if failed else []
    terminal.console().print("\n".join([f"wrote {output}", *said]))
    raise typer.Exit(1 if said else 0)


def _finished(file: str) -> dict[str, Any]:
    """The report in a file; one that is none ends the command."""
    try:
        with open(file, encoding="utf-8") as opened:
            told = json.load(opened)
        page.worst(told["results"])
        dict(told["backends"])
    except OSError as error:
        terminal.fail(f"--parity is {file}, which cannot be read: {error.strerror}")
    except (ValueError, TypeError, KeyError):
        terminal.fail(f"--parity is {file}, expected a report as `mha parity --json {file}` writes it")
    return told


def _measured(names: list[BackendName]) -> dict[BackendName, dict[str, Any]]:
    """What each framework makes different, with a progress bar where stderr is a terminal."""
    with terminal.progress() as bar:
        task = bar.add_task("differences", total=len(names))
        return page.measure(names, lambda name: bar.advance(task))
