"""`mha bench`: measure, and show tables or a picture."""

import dataclasses
import functools
import importlib.util
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from mha.bench import cases, devices, report, run
from mha.cli import terminal
from mha.cli.backends import Backends, choose_backends
from mha.cli.terminal import flag, option
from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.names import BackendName
from mha.parity.cases.run.groups import MOST


def bench(
    backends: Backends = None,
    shapes: Annotated[
        str | None,
        option(
            "S,M",
            "Shapes, joined by commas; empty: no tables, --plot alone.",
            show_default=f"all; with --devices {','.join(devices.SHAPES)}",
        ),
    ] = None,
    kinds: Annotated[
        str | None,
        option(
            "A,B",
            "Kinds, joined by commas.",
            show_default=f"{','.join(cases.KINDS)}; with --devices {','.join(cases.PASSES)}",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0, help="Time for all implementations of a backend on one shape, in turns.")
    ] = 10.0,
    no_memory: Annotated[bool, flag("--no-memory", "Do not measure memory for the tables.")] = False,
    to: Annotated[
        str | None, option("FILE", "Also write all numbers, and this machine's data, to FILE; - is stdout.", "--json")
    ] = None,
    count: Annotated[
        int | None,
        option(
            "N",
            "Measure instead each way of splitting a layer over N devices of this machine: "
            f"{', '.join(devices.BACKENDS)}.",
            "--devices",
            min=2,
            max=MOST,
        ),
    ] = None,
    plot: Annotated[
        str | None,
        option("FILE", "Also measure T = 128 to 8192, and draw time and memory to FILE; its suffix is the format."),
    ] = None,
) -> None:
    """Measure how fast the backends are, and how much memory they take.

    The first line of each table is attention.layer, the layer of one backend; on JAX and TensorFlow it is compiled, by
    jax.jit and tf.function. The other lines compare it with: attention(...), the call that users make, on the
    framework's own arrays and on NumPy's; the layer with return_weights (readable); the framework's own layers and its
    fused kernel with the same weights; and the time of the matrix products alone. Inference is a forward pass;
    training is a forward pass and all gradients; decoding is one token that comes after T others, which are in a cache,
    beside a cache as people write it by hand, and the framework's own. The frameworks' layers get masks that exist
    before. On PyTorch, inference is in inference_mode; lines that end with recorded are outside of it. All of it runs
    on the processor, in float32: a GPU is not used, also where there is one.

    The command first checks that the implementations of a backend give the same numbers. Then it times them in turns.
    "The layer is x times as fast" is the median of the turns, with the quartiles. "us more" is how many microseconds
    longer a user's call takes than the layer, also as the median of the turns. Memory is the peak of one call.

    With --devices, the lines are the ways that mha.parallel splits a layer: heads, ulysses, ring (in zigzag where the
    order is causal, and in order) and gather, beside the unsplit layer and, on PyTorch, its own context_parallel around
    the fused kernel. PyTorch has N processes with one thread each, and the unsplit layer one of them; JAX has N devices
    in one process, whose threads serve the unsplit layer, too. "Processor time" is that of all ranks together, divided
    by that of the unsplit layer: 1 if splitting costs nothing. "Busiest" is that of the busiest rank divided by the
    mean. Memory is the peak of the rank that takes the most, without inputs, weights and their gradients; "of memory"
    is its part of what the unsplit layer takes.

    \b
    The shapes (self-attention; the lengths are 3/4 of T):
      name  batch     T    D  heads
      S         2     6  100      5
      S32       1    32  128      4
      S64       8    64  256      8
      M         8   128  512      8
      L         1  1024  768     12
      XL        1  4096  512      8
      R        16   512  512      8  any lengths from 1 to T
      C         1  4096  512      8  causal, no lengths
      G         1  4096  512      8  2 key-value heads
      W         1  4096  512      8  as C, window=(511, 0)
      P         1  4096  256      4  16 segments of 256
      D         1  1024  512      8  one token after T others

    S-ragged, S32-ragged and S64-ragged have any lengths from 1 to T; S-all, S32-all, S64-all and XL-all have none. At
    G, the layer with 8 key-value heads is timed as well; at W, the layer with no window; at P, that with no segments,
    and on PyTorch the compiled flex_attention, which needs a C++ compiler. D-8192, D-16 and D-16-8192 have that T and
    that batch; D-G, D-G-8192, D-G-16 and D-G-16-8192 have 2 key-value heads.

    All shapes and kinds take about three hours, and --plot takes about one more. For the plot, an implementation stops
    at the last T for which half of the free memory is surely enough. --no-memory changes only the tables.

    \b
    Examples:
      mha bench --backends torch --shapes S --json bench.json
      mha bench --kinds inference --shapes "" --plot bench.svg
      mha bench --backends torch --devices 4 --shapes C

    Exit code 0 if everything was measured, 1 if something failed, 2 if the command is wrong or if a backend that it
    names is not installed.
    """
    if count is not None and plot:
        terminal.fail("--plot came with --devices, which draws nothing; leave one of them out")
    names = choose_backends(backends) if count is None else _which_split(backends)
    every = cases.KINDS if count is None else cases.PASSES
    known = [name for name, shape in cases.SHAPES.items() if count is None or not shape.decodes]
    defaults = known if count is None else devices.SHAPES
    chosen = [cases.SHAPES[name] for name in _choices("--shapes", shapes, known, defaults)]
    both = _choices("--kinds", kinds, every, every)
    sweep = plot and {*both} - {"decoding"}
    if not (sweep or any(cases.of_kind(kind, chosen) for kind in both)):
        terminal.fail(
            "nothing to measure: expected a kind in --kinds and a shape in --shapes"
            if count
            else "nothing to measure: expected a kind in --kinds, and a shape in --shapes or --plot; those that begin "
            "with D are of decoding, all others of the other kinds"
        )
    to_json = terminal.JsonFile(to)
    picture, suffix = _picture(plot) if plot else (None, "")
    results: Any
    table: Callable[..., Table]
    if count is None:
        results = _measure(names, both, chosen, seconds, not no_memory, bool(plot))
        table = report.table
    else:
        results = _measure_devices(count, names, both, chosen, seconds, not no_memory)
        table = functools.partial(report.table_of_devices, count=count)
    console = to_json.console()
    console.print(report.about(machine := run.machine(names)))
    for _, rows in itertools.groupby(results.rows, lambda row: (row.backend, row.kind)):
        console.print("", table(list(rows)), sep="\n")
    for line in results.left_out if count is None else ():
        console.print(f"left out: {line}")
    for line in results.failed:
        terminal.complain(line)
    to_json.write({"machine": machine} | dataclasses.asdict(results))
    if picture:
        terminal.write(picture, report.picture(results.sweep, suffix))
    raise typer.Exit(1 if results.failed else 0)


def _which_split(backends: str | None) -> list[BackendName]:
    """Return the named backends, or all that are installed and split layers."""
    names, able = choose_backends(backends), " or ".join(devices.BACKENDS)
    found = [name for name in names if name in devices.BACKENDS]
    if backends is not None and found != names:
        unable = next(name for name in names if name not in found)
        terminal.fail(f"--backends is {unable!r}, expected {able} with --devices: mha.parallel splits layers of these")
    if not found:
        needed = "; ".join(dispatch.install(name) for name in devices.BACKENDS)
        terminal.fail(f"--devices needs {able}, of which none is installed: {needed}")
    return found


def _measure_devices(
    count: int, backends: list[BackendName], kinds: list[str], shapes: list[cases.Shape], seconds: float, memory: bool
) -> devices.SplitReport:
    """Run all measurements over so many devices, with a progress bar where stderr is a terminal."""
    found, tables = devices.SplitReport(count), list(itertools.product(backends, kinds, shapes))
    with terminal.progress() as progress:
        task = progress.add_task("", total=len(tables))
        for one in tables:
            found.add(*one, seconds, memory, lambda now: progress.update(task, description=now))
            progress.advance(task)
    return found


def _measure(
    backends: list[BackendName], kinds: list[str], shapes: list[cases.Shape], seconds: float, memory: bool, sweep: bool
) -> run.Report:
    """Run all measurements, with a progress bar where stderr is a terminal."""
    with terminal.progress() as progress:
        # Each is shown when it begins, and counted when the next one begins.
        task = progress.add_task("", total=None)
        runner = run.Runner(seconds, lambda now: progress.update(task, description=now, advance=1))
        total = runner.steps(backends, kinds, shapes, memory, sweep)
        progress.update(task, total=total, completed=-1)
        for backend, kind in itertools.product(backends, kinds):
            for shape in cases.of_kind(kind, shapes):
                runner.table(backend, kind, shape, memory)
            if sweep and kind != "decoding":
                runner.sweep(backend, kind)
    return runner.report


def _picture(name: str) -> tuple[str, str]:
    """Return the file of a picture and its format; a wrong name ends the command before anything is measured."""
    if importlib.util.find_spec("matplotlib") is None:
        terminal.fail(f"--plot needs matplotlib: {dispatch.pip_for(dispatch.PLOTS)}")
    known, suffix = report.formats(), os.path.splitext(name)[1].lower()[1:]
    if suffix not in known:
        terminal.fail(f"--plot is {name}, expected a file whose suffix is one of {', '.join(known)}")
    return terminal.writable("--plot", name), suffix


def _choices(name: str, value: str | None, known: Sequence[str], default: Sequence[str]) -> list[str]:
    """Return the known names that were given, joined by commas, each once; None = the default ones."""
    if value is None:
        return list(default)
    with terminal.errors():
        found = [checks.choice(name, one.strip(), known) for one in value.split(",") if one.strip()]
    return list(dict.fromkeys(found))
