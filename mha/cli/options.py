"""Run commands so that an error is one line, which names options as they are typed, not as Python's arguments."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import typer

from mha.cli import terminal
from mha.weights import argument_names


def command(function: Callable) -> Callable:
    """Wrap the function of a command: a CommandError prints one line and ends with exit code 2."""
    options = _option_names(function)

    @functools.wraps(function)
    def run(**given: Any) -> None:
        try:
            with argument_names.named(options):
                function(**given)
        except terminal.CommandError as error:
            terminal.complain(error)
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
