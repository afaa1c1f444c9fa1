"""`mha kernel`: a kernel in a file, on the cases of `mha.testing.assert_kernel`."""

import functools
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import mha
from mha.cli import terminal
from mha.cli.backends import choose_backends
from mha.cli.parity import OnlyCases, OnlyDtypes, Suite
from mha.cli.results import Html, Junit, ResultFiles, find
from mha.cli.terminal import flag, option
from mha.core import dispatch
from mha.core.options.names import BackendName
from mha.parity import Result, one_line
from mha.parity.rule.heads import LAYOUTS
from mha.parity.testing.kernels.check_kernel import run_kernel
from mha.parity.testing.kernels.failing import KernelRun


def kernel(
    function: Annotated[str, typer.Argument(metavar="FILE:FUNCTION", help="A Python file, and the kernel in it.")],
    backend: Annotated[str | None, option("NAME", "The framework of its arrays.")] = None,
    suite: Suite = "quick",
    layout: Annotated[str, option("NAME", f"{', '.join(LAYOUTS)} (packed).")] = "BHTD",
    causal: Annotated[bool, flag("--causal", "Every call is causal, aligned to the upper left.")] = False,
    lower_right: Annotated[bool, flag("--lower-right", "Every call is causal, aligned to the lower right.")] = False,
    takes: Annotated[list[str] | None, option("NAME", "A parameter that it takes unseen; may be repeated.")] = None,
    groups: Annotated[
        bool, flag("--groups/--no-groups", "Whether it takes fewer heads of keys than of queries.")
    ] = True,
    equal_lengths: Annotated[bool, flag("--equal-lengths", "It takes as many keys as queries alone.")] = False,
    head_dim: Annotated[list[int] | None, option("N", "A width of heads that it takes; may be repeated.")] = None,
    multiple_of: Annotated[int, option("N", "Numbers of tokens are multiples of N.", min=1)] = 1,
    empty_rows: Annotated[
        bool, flag("--empty-rows/--no-empty-rows", "Whether queries that see no key must give 0.")
    ] = True,
    case: OnlyCases = None,
    dtype: OnlyDtypes = None,
    junit: Junit = None,
    html: Html = None,
) -> None:
    """Check that a kernel computes attention: its output, log-sum-exp and gradients, against float64 NumPy.

    It is a function of queries, keys and values. What else it names, such as causal, mask, bias, window or sinks, is
    drawn on and off. In Python, `mha.testing.assert_kernel` says how it is called, and takes more options.

    \b
    Examples:
      mha kernel flash.py:attend --backend torch --layout BTHD --causal
      mha kernel flash.py:attend --case "33 tokens" --dtype float32

    Exit code 0 if every case is the same, 1 if one differs or the kernel raises, 2 if the command is wrong.
    """
    files = ResultFiles("mha kernel", junit, html)
    if causal and lower_right:
        terminal.fail("--causal and --lower-right are two orders, expected one of them")
    with terminal.errors():
        name = choose_backends(dispatch.backend_name(backend))[0]
        options: dict[str, Any] = {
            "suite": suite, "layout": layout, "causal": "lower right" if lower_right else causal or None,
            "takes": takes, "groups": groups, "equal_lengths": equal_lengths, "head_dims": head_dim,
            "multiple_of": multiple_of, "empty_rows": empty_rows, "cases": case, "dtypes": dtype,
        }  # fmt: skip
        ran = run_kernel(load(function), name, **options)
    words = ran.describe()
    terminal.console().print(words)
    version = dispatch.version(dispatch.FRAMEWORKS[name].needs[0]) or ""
    about: dict[str, dict[str, str]] = {name: {"mha": mha.__version__, name: version}}
    files.write(list(results(name, ran)), about, find(ran.smallest and ran.smallest[1], words))
    raise typer.Exit(0 if ran.passed else 1)


def load(text: str) -> Callable[..., Any]:
    """Return the function that FILE:FUNCTION names; what is wrong with it ends the command."""
    file, colon, name = text.rpartition(":")
    if not (colon and file and name):
        terminal.fail(f"FILE:FUNCTION is {text}, expected a Python file and the name of a function in it")
    if not os.path.isfile(file):
        terminal.fail(f"there is no file {file}")
    path = Path(file).resolve()
    sys.path.insert(0, str(path.parent))  # as Python does for a program, so that it finds its neighbours
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None:
        terminal.fail(f"FILE is {file}, expected a Python file")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        terminal.fail(f"{file} cannot be imported: {one_line(error)}")
    try:
        found: Any = functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        terminal.fail(f"there is no {name} in {file}")
    return found


def results(backend: BackendName, ran: KernelRun) -> Iterator[Result]:
    """Yield a result for each array that was compared, its error by its bound, and for each case that raised."""
    for call, report in ran.reports.items():
        for row in report.rows:
            where = row.note if row.place is None else row.place.where
            yield Result(backend, row.title or row.name, call.case.name, call.dtype, where, row.ratio, 1.0)
    for call, problem in ran.raised.items():
        yield Result(backend, "kernel", call.case.name, call.dtype, one_line(problem), math.inf, 1.0)
