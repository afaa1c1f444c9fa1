"""The command line: `mha demo`, `backends`, `parity`, `bench`, `weights show` and `convert`."""

import contextlib
import dataclasses
import importlib
import importlib.util
import io
import itertools
import json
import math
import os
import platform
import reprlib
import stat
import sys
from collections.abc import Container, Iterator, Sequence
from typing import Annotated, Any, NoReturn, TypeVar

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import mha
from mha import checks, dispatch, parity, weights
from mha import demo as demonstration
from mha.benchmarks import cases, report, run
from mha.config import Config, shapes
from mha.parity import Result
from mha.weights import files, safetensors_reader, schemes
from mha.weights.safetensors_reader import Tensors

T = TypeVar("T")
OPTIONS: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}
app = typer.Typer(**OPTIONS)
files_of_weights = typer.Typer(**OPTIONS)
app.add_typer(files_of_weights, name="weights", help="Look into files of weights.", no_args_is_help=True)


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
    """One multi-head attention over five backends, the same numbers on each.

    The backends are numpy, torch, tensorflow, jax and mxnet. The environment variable MHA_BACKEND selects one; without
    it, numpy.

    \b
    Examples:
      mha demo
      MHA_BACKEND=torch mha demo
      mha parity --backends torch,jax
      mha weights show model.safetensors

    Exit codes: 0 all well; 1 something was computed and is wrong, or a framework is broken; 2 the command was wrong,
    or what it asks for is not installed, or a file is not what it should be.
    """
    # TensorFlow talks about its start on stderr, less so if this is set before it is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no error
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo(
    backend: Annotated[str | None, typer.Option(help="The backend; default: MHA_BACKEND, else numpy.")] = None,
) -> None:
    """Show multi-head attention at work on one backend.

    The book's example as code, every step from input to output with its shape and its place in the code, and what each
    head attends to.

    \b
    Example:
      mha demo --backend jax
    """
    name = _name(backend)
    try:
        dispatch.load(name)
    except ModuleNotFoundError as error:
        _fail(error)
    # The example is shown as it runs, and it names no backend: the option stands for the variable.
    os.environ["MHA_BACKEND"] = name
    demonstration.show(_console())


@app.command()
def backends() -> None:
    """List the backends: what is installed, what is not.

    Version and device of each backend, or why it does not work and what to install. Every installed framework is
    loaded, which takes some seconds.

    Exit code 0 if the backend that MHA_BACKEND selects (numpy if it is not set) works, 1 if not, 2 if it names none.

    \b
    Example:
      MHA_BACKEND=jax mha backends
    """
    selected = _name(None)
    works = False
    table = demonstration.plain_table("backend", "version", "device", "note")
    for name, backend in dispatch.backends().items():
        device, note = "", backend.problem or ""
        if backend.installed:
            try:
                device = _device(name)
            except Exception as error:
                note = f"broken: {parity.one_line(error)}"
        works = works or (name == selected and not note)
        note = ", ".join(filter(None, ["selected" if name == selected else "", note]))
        table.add_row(name, backend.version or "", device, note)
    _console().print(table)
    raise typer.Exit(0 if works else 1)


@app.command(name="parity")
def compare(
    backends: Annotated[
        str | None, typer.Option(metavar="A,B", help="Backends joined by commas; default: all that are installed.")
    ] = None,
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
    names = _names(backends)
    file = None if to in (None, "-") else _writable("--json", to, "expected one, or - for stdout")
    results = _run(names)
    failed = [result for result in results if not result.passed]
    console = _console(stderr=to == "-")
    console.print(_summary(results))
    if failed:
        wrong = ", ".join(dict.fromkeys(result.backend for result in failed))
        console.print(f"{len(failed)} of {len(results)} results failed, on {wrong}; --json FILE writes each of them")
    else:
        console.print(f"{len(results)} results on {', '.join(names)}, all within their bounds")
    if to is not None:
        _write_json(file, _report(names, results))
    raise typer.Exit(1 if failed else 0)


@app.command()
def bench(
    backends: Annotated[
        str | None, typer.Option(metavar="A,B", help="Backends joined by commas; default: all that are installed.")
    ] = None,
    shapes: Annotated[
        str, typer.Option(metavar="S,M", help="Shapes, joined by commas; empty: no tables, --plot alone.")
    ] = ",".join(cases.SHAPES),
    kinds: Annotated[str, typer.Option(metavar="A,B", help="Kinds, joined by commas.")] = ",".join(cases.KINDS),
    seconds: Annotated[
        float, typer.Option(min=0, help="How long to time the implementations of a backend on a shape, in turns.")
    ] = 10.0,
    no_memory: Annotated[bool, typer.Option("--no-memory", help="No memory in the tables.")] = False,
    to: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Also write every number and the machine to FILE; - is stdout."),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Also measure T = 128 to 8192, and draw time and memory; the suffix is the format."
        ),
    ] = None,
) -> None:
    """Measure how fast the backends are, and how much memory they take.

    Each backend's layer as it is called (fast), the same with return_weights (readable), the framework's own layers
    and its fused kernel with the same weights, and what the matrix products alone would take. Inference is a forward
    pass, training the forward pass and all gradients; on the processor, in float32, compiled where the framework
    compiles. The implementations of a backend take turns, and their outputs are compared before they are timed: "fast
    is x times as fast" is the median of the turns, and its quartiles. Memory is what one call takes at its peak.

    
    The shapes, self-attention with lengths of 3/4 of T:
      name  batch     T    D  heads
      S         2     8  100      5
      M         8   128  512      8
      L         1  1024  768     12
      XL        1  4096  512      8
      R        16   512  512      8  any lengths from 1 to T
      C         1  4096  512      8  the causal order, no lengths

    All of it takes an hour, and so does --plot. There, an implementation ends at the T after which half of the free
    memory may not be enough for it, whatever --no-memory says of the tables.

    
    Examples:
      mha bench --backends torch --shapes S,M --json bench.json
      mha bench --kinds inference --shapes "" --plot bench.svg

    Exit code 0 if everything was measured, 1 if something failed, 2 if the command is wrong or a backend that it names
    is not installed.
    """
    names = _names(backends)
    chosen = [cases.SHAPES[name] for name in _choices("--shapes", shapes, tuple(cases.SHAPES))]
    both = _choices("--kinds", kinds, cases.KINDS)
    if not both or not (chosen or plot):
        _fail("nothing is to be measured, expected a kind and a shape, or --plot")
    file = None if to in (None, "-") else _writable("--json", to, "expected one, or - for stdout")
    picture, suffix = _picture(plot) if plot else (None, "")
    results = _measure(names, both, chosen, seconds, not no_memory, bool(plot))
    console = _console(stderr=to == "-")
    console.print(report.about(machine := run.machine(names)), soft_wrap=True)
    for _, rows in itertools.groupby(results.rows, lambda row: (row.backend, row.kind)):
        console.print("", report.table(list(rows)), sep="\n")
    for line in results.left_out:
        console.print(f"left out: {line}", soft_wrap=True)
    for line in results.failed:
        typer.echo(f"mha: {line}", err=True)
    if to is not None:
        _write_json(file, {"machine": machine} | dataclasses.asdict(results))
    if picture:
        _write(picture, report.picture(results.sweep, suffix))
    raise typer.Exit(1 if results.failed else 0)


@files_of_weights.command()
def show(file: Annotated[str, typer.Argument(metavar="FILE", help="A safetensors file, of whatever model.")]) -> None:
    """Show what a file of weights holds.

    Every array with its shape, dtype and norm (the root of the sum of squares); the layers of attention, their naming
    scheme, prefix and number of heads, as far as names and shapes tell; and how a file that mha wrote is configured.
    All numbers are read, one array at a time.

    \b
    Examples:
      mha weights show layer.safetensors
      mha weights show model.safetensors

    Exit code 0, also if no attention is found; 2 if it is no safetensors file, or not what it says of itself.
    """
    table = demonstration.plain_table("array", "shape", "dtype", "norm", folded="array")
    with _opened(file) as source:
        for name in _track("Reading", list(source.entries)):
            entry = source.entries[name]
            norm = _norm(source.read(name)) if entry.dtype in safetensors_reader.FLOATS else ""
            table.add_row(name, str(entry.shape), safetensors_reader.FLOATS.get(entry.dtype, entry.dtype), norm)
        layers = _layers(source)
    told = [f"{name}={reprlib.repr(value)}" for name, value in source.metadata.items()]
    console = _console()
    console.print(f"{file}: {source.size:,} bytes, {len(source.entries)} arrays")
    console.print(f"metadata: {', '.join(told) or 'none'}")
    console.print(table, "", layers, sep="\n")


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A safetensors file that holds the layer.")],
    target: Annotated[str, typer.Argument(metavar="OUT", help="The file to write; one that is there is replaced.")],
    scheme: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SCHEME",
            help=f"How IN names its arrays: as they show (auto), {', '.join(schemes.SCHEMES)}.",
        ),
    ] = "auto",
    prefix: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="What the names of the layer's arrays begin with.")
    ] = None,
    num_heads: Annotated[
        int | None, typer.Option(metavar="H", help="The number of heads, where the arrays do not show it.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do all but write OUT.")] = False,
) -> None:
    """Convert an attention layer of a checkpoint to a file of mha.

    The layer is found by its scheme and prefix, checked, and written with its configuration, bit for bit; `mha.load`
    reads it on every backend. IN stays as it is.

    \b
    Examples:
      mha convert model.safetensors layer.safetensors --prefix encoder.layer.0.attention --num-heads 12
      mha convert gpt2.safetensors layer.safetensors --from gpt2 --prefix h.3.attn --num-heads 12 --dry-run

    Exit code 0 if the layer was converted, 2 if not; OUT then stays as it was.
    """
    path = _writable("OUT", target)
    if path == os.path.realpath(source):
        _fail(f"IN and OUT are one file, {target}; choose another OUT")
    with _opened(source) as opened:
        try:
            chosen, at = weights.choose(opened, scheme, prefix)
            config, arrays = weights.take(opened, chosen, at, num_heads, lambda names: _track("Reading", names))
        except TypeError as error:  # num_heads is needed
            raise ValueError(f"does not say everything: {error}; say --num-heads") from error
        names = set(opened.entries)
    console = _console()
    console.print(f"{source}: {_described(chosen, at)}")
    console.print(_options(config))
    console.print(_origins(config, arrays, chosen, at, names), "", sep="\n")
    if dry_run:
        console.print(f"{target} is not written: --dry-run")
        return
    try:
        weights.save(path, config, arrays)
    except OSError as error:
        _fail(f"{target} cannot be written: {error.strerror}")
    console.print(f"{target} is written")


# Backends by name


def _name(backend: str | None) -> str:
    try:
        return dispatch.backend_name(backend)
    except ValueError as error:
        _fail(error)


def _names(backends: str | None) -> list[str]:
    """The backends that were named, each once, or all that are installed."""
    known = dispatch.backends()
    if backends is None:
        return [name for name, backend in known.items() if backend.installed]
    names = list(dict.fromkeys(_name(backend.strip()) for backend in backends.split(",")))
    for name in names:
        if problem := known[name].problem:
            _fail(f"backend {name!r}: {problem}")
    return names


def _device(name: str) -> str:
    tab: Any = dispatch.load(name)
    return tab.device()


# The parity suite


def _run(names: list[str]) -> list[Result]:
    """All results of the quick suite, with a progress bar where stderr is a terminal."""
    results: list[Result] = []
    for name in names:
        try:
            plan = parity.plan([name])
        except Exception as error:
            results.append(Result(name, "loads", "", "", parity.one_line(error), math.inf, 0.0))
            continue
        for check in _track(name, plan):
            results += check()
    return results


def _summary(results: list[Result]) -> Table:
    """For each backend and check the result that comes nearest to its bound, or exceeds it most."""
    worst: dict[tuple[str, str], Result] = {}
    for result in results:
        key = result.backend, result.check
        worst[key] = max(worst.get(key, result), result, key=lambda one: (not one.passed, one.ratio))
    table = demonstration.plain_table("backend", "check", "error", "bound", "ratio", "result", "where")
    for (backend, check), result in worst.items():
        numbers = (_number(result.error, ".1e"), _number(result.bound, ".1e"), _number(result.ratio, ".2f"))
        where = ", ".join(filter(None, [result.dtype, result.case, result.where])) if result.error else ""
        table.add_row(backend, check, *numbers, "pass" if result.passed else "FAIL", where)
    return table


def _number(value: float, form: str) -> str:
    return format(value, form) if value else "0"


def _report(names: list[str], results: list[Result]) -> dict[str, Any]:
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


def _versions(name: str) -> dict[str, str]:
    tab: Any = dispatch.load(name)
    versions = {module: importlib.import_module(module).__version__ for module in dispatch.NEEDS[name]}
    return versions | {"device": tab.device()}


# Benchmarks


def _measure(
    backends: list[str], kinds: list[str], shapes: list[cases.Shape], seconds: float, memory: bool, sweep: bool
) -> run.Report:
    """All measurements, with a progress bar where stderr is a terminal."""
    console = _console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        # Each is shown as it begins, and counted as the next one does.
        task = progress.add_task("", total=run.steps(backends, kinds, shapes, memory, sweep), completed=-1)
        runner = run.Runner(seconds, lambda now: progress.update(task, description=now, advance=1))
        for backend, kind in itertools.product(backends, kinds):
            for shape in shapes:
                runner.table(backend, kind, shape, memory)
            if sweep:
                runner.sweep(backend, kind)
    return runner.report


def _picture(name: str) -> tuple[str, str]:
    """The file of a picture and its format; what is wrong with it is said before anything is measured."""
    if importlib.util.find_spec("matplotlib") is None:
        _fail("--plot needs matplotlib: pip install 'mha[plots]'")
    known, suffix = report.formats(), os.path.splitext(name)[1].lower()[1:]
    if suffix not in known:
        _fail(f"--plot is {name}, expected a file whose suffix is one of {', '.join(known)}")
    return _writable("--plot", name), suffix


def _choices(name: str, value: str, known: Sequence[str]) -> list[str]:
    """The known names that were given, joined by commas, each once."""
    try:
        return list(dict.fromkeys(checks.choice(name, one.strip(), known) for one in value.split(",") if one.strip()))
    except ValueError as error:
        _fail(error)


# Files of weights


@contextlib.contextmanager
def _opened(name: str) -> Iterator[Tensors]:
    """An open safetensors file; what is wrong with it ends the command."""
    try:
        with safetensors_reader.opened(name) as source:
            yield source
    except FileNotFoundError:
        _fail(f"{name} is not there")
    except (OSError, ValueError) as error:
        _fail(error)


def _norm(array: np.ndarray) -> str:
    """The root of the sum of squares, in float64, a part of a large array at a time."""
    parts = np.array_split(array.reshape(-1), max(1, array.size // 2**20))
    largest = max(float(np.abs(part).max(initial=0)) for part in parts)
    if largest in (0, math.inf) or math.isnan(largest):
        return f"{largest:.6g}"
    squares = sum(float(np.square(part.astype(np.float64) / largest).sum()) for part in parts)
    return f"{largest * math.sqrt(squares):.6g}"


def _layers(source: Tensors) -> Table | str:
    """The layers of attention in a file."""
    if weights.is_own(source):
        config, _ = weights.take(source, "mha", "")
        return f"a layer of mha: {_options(config)}"
    found = schemes.recognise(source.entries)
    if not found:
        return f"no attention layer of a known scheme: {', '.join(schemes.SCHEMES)}"
    table = demonstration.plain_table("scheme", "prefix", "heads", "what it is", folded="prefix")
    for scheme, prefix in found:
        heads = schemes.told_heads({name: entry.shape for name, entry in source.entries.items()}, scheme, prefix)
        table.add_row(scheme, prefix, "not told" if heads is None else str(heads), schemes.SCHEMES[scheme].about)
    return table


def _described(scheme: str, prefix: str) -> str:
    return f"scheme {scheme}" + (f", prefix {prefix}" if prefix else "")


def _options(config: Config) -> str:
    return ", ".join(f"{name}={value}" for name, value in vars(config).items())


_AXES = {"io": "(in, out)", "oi": "(out, in)", "iHd": "(in, H, d)", "Hdo": "(H, d, out)", "o": "", "Hd": "(H, d)"}


def _origins(config: Config, arrays: dict[str, np.ndarray], scheme: str, prefix: str, names: Container[str]) -> Table:
    """Each weight with the array that it comes from; names: of all arrays."""
    table = demonstration.plain_table("weight", "shape", "norm", "from")
    for name in shapes(config):
        origin = "itself"
        if place := schemes.SCHEMES[scheme].places.get(name):
            part = f"part {place.part[0] + 1} of {place.part[1]}" if place.part else ""
            origin = " ".join(filter(None, [f"{prefix}{place.name}", _AXES[place.axes], part]))
            origin = origin if prefix + place.name in names else "zeros, for want of an array"
        table.add_row(name, str(arrays[name].shape), _norm(arrays[name]), origin)
    return table


# Files, errors and the terminal


def _writable(argument: str, name: str, expected: str = "expected one") -> str:
    """The file to write later; what is wrong with it is said before a minute is spent."""
    path = os.path.realpath(name)
    folder = os.path.dirname(path)
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        regular = True
    except (OSError, ValueError) as error:
        _fail(f"{argument} is {name}, which cannot be looked up: {error}")
    if not regular:
        _fail(f"{argument} is {name}, which is no regular file; {expected}")
    if not os.path.isdir(folder):
        _fail(f"{argument} is {name}, but there is no folder {folder}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        _fail(f"{argument} is {name}, but nothing may be written in {folder}")
    return path


def _write_json(file: str | None, value: dict[str, Any]) -> None:
    """Write a value as JSON to a file, None = stdout."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    if file is None:
        typer.echo(text, nl=False)
    else:
        _write(file, text.encode())


def _write(file: str, data: bytes) -> None:
    try:
        files.write(file, data)
    except OSError as error:
        _fail(error)


def _track(description: str, things: list[T]) -> Iterator[T]:
    """The things one by one, with a progress bar where stderr is a terminal."""
    console = _console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        yield from progress.track(things, description=description)


def _fail(problem: object) -> NoReturn:
    """Say in one line what is wrong with the command, and end it."""
    typer.echo(f"mha: {problem}", err=True)
    raise typer.Exit(2)


def _console(stderr: bool = False) -> Console:
    """Where to print: as wide as the terminal; in a pipe wide enough that no line is folded."""
    console = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not console.file.isatty():
        console.width = 200
    return console
