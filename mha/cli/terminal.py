"""Tools of every command: files to write, a progress bar, the one line of an error, and the console."""

import contextlib
import functools
import inspect
import json
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console

from mha.core.tables import progress, wrap
from mha.weights import argument_names, files

T = TypeVar("T")


class CommandError(Exception):
    """An error that ends a command; its text says what is wrong."""


def option(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """Describe an option: a word for its value, and what it is for; names: as it is typed, if not as its argument."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def flag(name: str, help: str) -> Any:
    """Describe an option without a value: as it is typed, and what it is for."""
    return typer.Option(name, help=help)


def writable(argument: str, name: str, expected: str = "expected one") -> str:
    """Check the file to write later, and return its path; a wrong one ends the command before it computes."""
    path = os.path.realpath(name)
    folder = os.path.dirname(path)
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        regular = True
    except (OSError, ValueError) as error:
        fail(f"{argument} is {name}, which cannot be looked up: {error}")
    if not regular:
        fail(f"{argument} is {name}, which is no regular file; {expected}")
    if not os.path.isdir(folder):
        fail(f"{argument} is {name}, but there is no folder {folder}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        fail(f"{argument} is {name}, but nothing may be written in {folder}")
    return path


class JsonFile:
    """The file that --json names, checked before anything is computed; None = none, "-" = stdout."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.path = None if name is None or name == "-" else writable("--json", name, "expected one, or - for stdout")

    def console(self) -> "Terminal":
        """Return the console for what else a command prints."""
        return console(stderr=self.name == "-")

    def write(self, value: dict[str, Any]) -> None:
        """Write a value, if a file was named."""
        if self.name is not None:
            write_json(self.path, value)

    def show(self, report: Any) -> NoReturn:
        """Write a report, or print it if no file was named, and end the command: 1 if it is not true."""
        if self.name is None:
            console().print(report)
        else:
            write_text(self.path, report.to_json())
        raise typer.Exit(0 if report else 1)


def write_json(file: str | None, value: dict[str, Any]) -> None:
    """Write a value as JSON to a file, None = stdout."""
    write_text(file, json.dumps(value, indent=1, allow_nan=False))


def write_text(file: str | None, text: str) -> None:
    """Write a text to a file, None = stdout."""
    if file is None:
        typer.echo(text)
    else:
        write(file, f"{text}\n".encode())


def write(file: str, data: bytes) -> None:
    """Write a whole file; if that cannot be done, the old one stays and the command ends."""
    with errors():
        files.write(file, data)


def track(description: str, things: list[T]) -> Iterator[T]:
    """Yield the things one by one, with a progress bar."""
    with progress() as bar:
        yield from bar.track(things, description=description)


def fail(problem: object) -> NoReturn:
    """End the command, saying in one line what is wrong with it."""
    raise CommandError(problem)


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """End the command with the one line of an error that is raised inside, where what was typed may be wrong."""
    try:
        yield
    except (OSError, TypeError, ValueError, ImportError) as error:
        fail(error)


@contextlib.contextmanager
def file_errors(name: str | None = None) -> Iterator[None]:
    """End the command as `errors` does; of a file that is not there, say just this, with its name as it was typed."""
    with errors():
        try:
            yield
        except FileNotFoundError as error:
            fail(f"there is no file {name or error.filename}")


class Terminal(Console):
    """A console that breaks lines only between words, and in a pipe nowhere."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as `rich` does, except that a word wider than the terminal is neither broken nor cut."""
        if self.is_terminal:
            objects = tuple("\n".join(self._fit_lines(one)) if isinstance(one, str) else one for one in objects)
        super().print(*objects, overflow="ignore", crop=False, **options)

    def _fit_lines(self, text: str) -> Iterator[str]:
        for line in text.split("\n"):
            yield from wrap(line, self.width) if cell_len(line) > self.width else [line]


def console(stderr: bool = False) -> Terminal:
    """Return a console as wide as the terminal; in a pipe, wide enough for tables."""
    made = Terminal(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.file.isatty():
        made.width = 200
    return made


def complain(problem: object) -> None:
    """Print an error on stderr; in a pipe, as one line."""
    console(stderr=True).print(f"mha: {problem}")


def command(function: Callable) -> Callable:
    """Wrap the function of a command: a CommandError prints one line and ends with exit code 2."""
    options = _option_names(function)

    @functools.wraps(function)
    def run(**given: Any) -> None:
        try:
            with argument_names.use_names(options):
                function(**given)
        except CommandError as error:
            complain(error)
            raise typer.Exit(2) from None

    return run


def _option_names(function: Callable) -> dict[str, str]:
    """Return the options of a command's function as they are typed, by the names of its arguments."""
    written = {}
    for name, parameter in inspect.signature(function).parameters.items():
        for described in parameter.annotation.__metadata__:
            if isinstance(described, typer.models.OptionInfo):
                # Inside Annotated, typer takes what is written first for the default.
                names = map(str, (described.default, *(described.param_decls or ()), f"--{name.replace('_', '-')}"))
                written[name] = next(one for one in names if one.startswith("--"))
    return written
