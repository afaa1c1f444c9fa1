"""`mha parity`: run a suite, show a table of it, and write every result."""

import dataclasses
import math
import os
import shutil
from typing import Annotated, Any

import typer
from rich.table import Table

import mha
from mha.cli import terminal
from mha.cli.backends import Backends, choose_backends
from mha.cli.results import Html, Junit, ResultFiles
from mha.cli.terminal import option
from mha.core import dispatch
from mha.core.devices import DeviceError
from mha.core.options import checks
from mha.core.options.config import DTYPES
from mha.core.options.names import BackendName
from mha.core.tables import plain_table
from mha.parity import Result
from mha.parity.cases import devices
from mha.parity.cases.run import groups as groups_of
from mha.parity.cases.run import pages
from mha.parity.cases.run.workers import Runner, RunOutcome
from mha.parity.cases.suite import ALL_CASES, worst_of_each

SUITES = ("quick", "full")
BY_DEVICE = tuple(name for name, uses in dispatch.facts("USES_DEVICE", False).items() if uses)
# The options of every command that runs cases.
Suite = Annotated[str, option("NAME", "quick, or full (every case in every dtype).")]
OnlyCases = Annotated[list[str] | None, option("NAME", "Run only this case, in every dtype; may be repeated.")]
OnlyDtypes = Annotated[list[str] | None, option("NAME", "Run only this dtype; may be repeated.")]


def compare(
    backends: Backends = None,
    suite: Suite = "quick",
    case: OnlyCases = None,
    dtype: OnlyDtypes = None,
    device: Annotated[
        str | None,
        option("NAME", f"Compute at this device, such as cuda: {', '.join(BY_DEVICE)}; default: see below."),
    ] = None,
    python: Annotated[
        list[str] | None, option("BACKEND=FILE", "Run this backend in another Python; may be repeated.")
    ] = None,
    distributed: Annotated[
        list[str] | None,
        option(
            "BACKEND:COUNT",
            f"Compare a layer on COUNT devices of this machine: {', '.join(devices.BACKENDS)}; may be repeated.",
        ),
    ] = None,
    limit: Annotated[float, option("SECONDS", "Stop a backend that reports nothing for SECONDS.", min=1)] = 120.0,
    to: Annotated[
        str | None, option("FILE", "Also write all versions and results to FILE; - is stdout.", "--json")
    ] = None,
    junit: Junit = None,
    html: Html = None,
) -> None:
    """Check that the backends compute the same numbers.

    The quick suite takes about a minute for all backends, the full suite about ten. It compares outputs, attention
    weights, every step and every gradient with NumPy in float64, for compiled calls and for calls of the lesson
    itself: with both poolings, all options, lengths, masks, causal order, large and small inputs, and all dtypes. Each
    bound is computed from what rounding explains; it is no fixed tolerance. Hidden keys, padding, transposes, sync,
    save and load must be exact.

    Each backend runs in its own process: if it crashes or hangs, that is a failed result, and the others go on. With
    --python, a backend runs in another Python, which must have this version of mha as well.

    By default, PyTorch computes on the processor, and each of the others where it does by itself. The report names the
    device of each backend and the kernels that pooled, and says whether products of float32 may be in TF32 there. With
    --device, PyTorch and JAX compute at a device that they know by this name: their layers and arrays are made there.

    With --distributed, a layer is split over processes or devices of this machine, by batch, heads and sequence, in
    each way that the framework offers. Output and gradients are compared in the same manner. If a rank dies, the other
    ranks of its run are stopped.

    \b
    Examples:
      mha parity
      mha parity --backends torch,jax --json parity.json
      mha parity --suite full --html parity.html
      mha parity --case "all options" --dtype float32
      mha parity --device cuda
      mha parity --python mxnet=/opt/mxnet/bin/python
      mha parity --distributed torch:4 --distributed jax:8

    Exit code 0 if every error is within its bound, 1 if one is not or if a framework is broken, 2 if the command is
    wrong, or if a backend or a device that it names is not there.
    """
    if distributed:
        for name, value in (("--backends", backends), ("--python", python), ("--device", device)):
            if value:
                terminal.fail(f"{name} came with --distributed, which chooses that itself; leave one of them out")
        with terminal.errors():
            what: list[Any] = [groups_of.group("--distributed", text) for text in dict.fromkeys(distributed)]
        for one in what:
            choose_backends(one.backend)
        known = tuple(dict.fromkeys(name for one in what for name in one.cases))
        runner: Any = groups_of.GroupRunner(**_runner_options(suite, case, dtype, known), limit=limit)
    else:
        pythons = _pythons(python or [])
        what = choose_backends(backends, elsewhere=list(pythons))
        if device is not None:
            what = _at_device(what, backends is not None)
        known = tuple(one.name for one in ALL_CASES)
        runner = Runner(**_runner_options(suite, case, dtype, known), pythons=pythons, limit=limit, device=device)
    to_json = terminal.JsonFile(to)
    files = ResultFiles("mha parity", junit, html)
    try:
        outcomes = _run(runner, what)
    except DeviceError as error:
        terminal.fail(f"--{error}")
    results = [result for outcome in outcomes for result in outcome.results]
    failed = [result for result in results if not result.passed]
    console = to_json.console()
    console.print(_summary(results))
    if devices_used := [f"{one.backend} {one.about['device']}" for one in outcomes if "device" in one.about]:
        console.print(f"computed at: {'; '.join(devices_used)}")
    if kernels := [f"{one.backend} {one.about['kernels']}" for one in outcomes if "kernels" in one.about]:
        console.print(f"pooled by: {'; '.join(kernels)}")
    for outcome in outcomes:
        for cause in pages.causes(outcome.results):
            console.print(f"{outcome.backend}: {cause}")
    if failed:
        wrong = ", ".join(dict.fromkeys(result.backend for result in failed))
        console.print(f"{len(failed)} of {len(results)} results failed, on {wrong}; --json FILE writes each of them")
    elif results:
        console.print(
            f"{len(results)} results on {', '.join(one.backend for one in outcomes)}, all within their bounds"
        )
    else:
        terminal.fail("nothing was compared: no backend has such a case in such a dtype")
    to_json.write(_report(outcomes, results))
    files.write(results, {one.backend: one.about for one in outcomes})
    raise typer.Exit(1 if failed else 0)


def _runner_options(
    suite: str, case: list[str] | None, dtype: list[str] | None, known: tuple[str, ...]
) -> dict[str, Any]:
    """Return the arguments of `Runner` that say what to compare; an unknown name ends the command."""
    with terminal.errors():
        return {
            "suite": checks.choice("--suite", suite, SUITES),
            "cases": case and [checks.choice("--case", name, known) for name in case],
            "dtypes": dtype and [checks.choice("--dtype", name, DTYPES) for name in dtype],
        }


def _at_device(backends: list[BackendName], asked: bool) -> list[BackendName]:
    """Return the backends that compute at a device by its name; asked: whether the others were asked for, too."""
    found, able = [name for name in backends if name in BY_DEVICE], " or ".join(BY_DEVICE)
    if asked and found != backends:
        other = next(name for name in backends if name not in found)
        terminal.fail(
            f"--backends has {other!r}, expected {able} with --device: {other} chooses its device itself, and "
            "CUDA_VISIBLE_DEVICES=-1 hides all GPUs from it"
        )
    if not found:
        terminal.fail(f"--device needs {able}, of which none is installed: {dispatch.install(BY_DEVICE[0])}")
    return found


def _pythons(given: list[str]) -> dict[BackendName, str]:
    """Return the interpreters by backend; one that cannot be run ends the command."""
    found = {}
    for one in given:
        name, _, path = one.partition("=")
        with terminal.errors():
            backend = dispatch.parse_backend("--python", name)
        if not path or shutil.which(path) is None:
            terminal.fail(f"--python is {one}, expected BACKEND=FILE with a Python that can be run")
        found[backend] = os.path.abspath(path) if os.sep in path else path
    return found


def finish(runner: Runner, names: list[BackendName]) -> dict[str, Any]:
    """Run, and return the report as --json writes it."""
    outcomes = _run(runner, names)
    return _report(outcomes, [result for outcome in outcomes for result in outcome.results])


def _run(runner: Any, what: list[Any]) -> list[RunOutcome]:
    """Return the outcome of each backend or group, with a progress bar for each if stderr is a terminal."""
    with terminal.progress() as bar:
        names = {getattr(one, "name", one) for one in what}
        tasks = {name: bar.add_task(name, total=None) for name in names}

        def show(name: str, done: int, total: int) -> None:
            bar.update(tasks[name], completed=done, total=total)

        return dataclasses.replace(runner, progress=show).run(what)


def _summary(results: list[Result]) -> Table:
    """Return the table of the worst result for each backend and check, by its ratio."""
    worst = worst_of_each(results, lambda one: (one.backend, one.check))
    table = plain_table("backend", "check", "error", "bound", "ratio", "result", "where")
    for (backend, check), result in worst.items():
        formats = ((result.error, ".1e"), (result.bound, ".1e"), (result.ratio, ".2f"))
        numbers = (format(value, form) if value else "0" for value, form in formats)
        where = ", ".join(filter(None, [result.dtype, result.case, result.where])) if result.error else ""
        table.add_row(backend, check, *numbers, "pass" if result.passed else "FAIL", where)
    return table


def _report(outcomes: list[RunOutcome], results: list[Result]) -> dict[str, Any]:
    """Return versions and results, ready for JSON: None stands for a number that is not finite."""

    def row(result: Result) -> dict[str, Any]:
        values = dataclasses.asdict(result) | {"ratio": result.ratio, "passed": result.passed}
        return {key: None if value == math.inf else value for key, value in values.items()}

    return {
        "mha": mha.__version__,
        "backends": {one.backend: one.about for one in outcomes},
        "passed": all(result.passed for result in results),
        "results": [row(result) for result in results],
    }
