"""`mha backends`, and the option with which the other commands choose backends."""

from collections.abc import Collection
from typing import Annotated, Any

import typer

from mha import parity
from mha.cli import terminal
from mha.cli.terminal import option
from mha.core import dispatch
from mha.core.options.names import BackendName
from mha.core.tables import plain_table

# The options of every command that takes one backend, or several.
Backend = Annotated[str | None, typer.Option(help="The backend; default: MHA_BACKEND, else numpy.")]
Backends = Annotated[str | None, option("A,B", "Backends joined by commas; default: all that are installed.")]


def show() -> None:
    """List the backends: which are installed, and which are not.

    The table has the version and the device of each backend, or why it does not work and what to install. Of PyTorch,
    the device is that of layers which nobody has moved. The backend
    that MHA_BACKEND chooses is marked "selected", and also "readable" if MHA_READABLE is 1. The command imports every
    installed framework, which takes some seconds.

    Exit code 0 if the backend that MHA_BACKEND chooses (numpy if it is not set) works, 1 if it does not, 2 if
    MHA_BACKEND names no backend.

    \b
    Example:
      MHA_BACKEND=jax mha backends
    """
    selected = choose_backend(None)
    works = False
    table = plain_table("backend", "version", "device", "note")
    for name, backend in dispatch.backends().items():
        device, note = "", backend.problem or ""
        if backend.installed:
            try:
                module: Any = dispatch.load(name)
                device = module.device()
            except Exception as error:
                note = f"broken: {parity.one_line(error)}"
        works = works or (name == selected and not note)
        marks = ["selected"] + ["readable"] * dispatch.is_readable() if name == selected else []
        note = ", ".join(filter(None, [*marks, note]))
        table.add_row(name, backend.version or "", device, note)
    terminal.console().print(table)
    raise typer.Exit(0 if works else 1)


def choose_backend(backend: str | None) -> BackendName:
    """Return the name of the backend to use; None = the one that MHA_BACKEND chooses.

    An unknown name ends the command, and so does an MHA_READABLE that is neither 0 nor 1.
    """
    with terminal.errors():
        dispatch.is_readable()
        return dispatch.backend_name() if backend is None else dispatch.parse_backend("--backend", backend)


def choose_backends(backends: str | None, elsewhere: Collection[BackendName] = ()) -> list[BackendName]:
    """Return the named backends, each once; None = all that are installed. The command ends if one is not.

    elsewhere: those that need not be installed here.
    """
    known = dispatch.backends()
    asked = [name for name, backend in known.items() if backend.installed or name in elsewhere]
    with terminal.errors():
        dispatch.is_readable()
        if backends is not None:
            asked = [dispatch.parse_backend("--backends", name.strip()) for name in backends.split(",")]
    names = list(dict.fromkeys(asked))
    for name in names:
        if name not in elsewhere and (problem := known[name].problem):
            terminal.fail(f"backend {name!r}: {problem}")
    return names
