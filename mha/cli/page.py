"""`mha page`: write the comparison page."""

import json
from typing import Annotated, Any

import typer

from mha.cli import parity, terminal
from mha.cli.backends import Backends, choose_backends
from mha.cli.terminal import option
from mha.learn import page
from mha.parity.cases.run.workers import Runner


def write(
    output: Annotated[str, option("FILE", "The file to write.", "--output", "-o")] = "page.html",
    backends: Backends = None,
    report: Annotated[
        str | None, option("FILE", "Show the report that `mha parity --json` wrote; run no suite.", "--parity")
    ] = None,
) -> None:
    """Write the comparison page, an HTML file that shows the frameworks side by side.

    The file needs no network. It shows the code with its differences marked, a player of the steps, a table of
    differences as measured on this machine, and the results of mha parity. Without --parity, the quick suite is run,
    which takes a minute or two. Frameworks that are not installed are shown with their code alone.

    \b
    Examples:
      mha page -o page.html
      mha page --backends torch,jax
      mha parity --json parity.json && mha page --parity parity.json

    Exit code 0 if all is well, 1 if a framework could not be measured or if a result of mha parity failed; the page
    shows both.
    """
    names = choose_backends(backends)
    file = terminal.writable("--output", output)
    compared = _read_report(report) if report else parity.finish(Runner(), names)
    with terminal.progress() as bar:
        task = bar.add_task("differences", total=len(names))
        measured = page.measure(names, lambda name: bar.advance(task))
    terminal.write(file, page.make(measured, compared).encode())
    broken = [name for name, found in measured.items() if "problem" in found]
    failed = sum(not one["passed"] for one in compared["results"])
    said = [f"{name} could not be measured: {measured[name]['problem']}" for name in broken]
    said += [f"{failed} of {len(compared['results'])} results of mha parity failed"] if failed else []
    terminal.console().print("\n".join([f"wrote {output}", *said]))
    raise typer.Exit(1 if said else 0)


def _read_report(file: str) -> dict[str, Any]:
    """Read the report in a file; any other file ends the command."""
    try:
        with open(file, encoding="utf-8") as opened:
            report = json.load(opened)
        page.worst(report["results"])
        dict(report["backends"])
    except OSError as error:
        terminal.fail(f"--parity is {file}, which cannot be read: {error.strerror}")
    except (ValueError, TypeError, KeyError):
        terminal.fail(f"--parity is {file}, expected a report as `mha parity --json {file}` writes it")
    return report
