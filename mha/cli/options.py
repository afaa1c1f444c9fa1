"""Why a command fails, in one line that names options as they are typed, where `mha` itself names arguments."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import typer

from mha.cli import terminal

START = r"(?<![\w-])"  # of an argument's name, which is no part of an option's


def command(function: Callable) -> Callable:
    """The function of a command; a CommandError that it raises is told in one line, and ends it with exit code 2."""

    @functools.wraps(function)
    def run(**given: Any) -> None:
        try:
            function(**given)
        except terminal.CommandError as error:
            terminal.complain(in_options(str(error), _written(function), given))
            raise typer.Exit(2) from None

    return run


def in_options(text: str, options: Mapping[str, str], given: Mapping[str, Any]) -> str:
    """An error's text with options in place of arguments, in what it says of their values and in what is to be typed.

    Args:
        text: such as "scheme is 'brt', expected one of ...; choose scheme='bert', prefix='a.'".
        options: how the options are written, by the names of the arguments: {"scheme": "--from", ...}.
        given: the values of the arguments, by the same names.

    Returns:
        Such as "--from is 'brt', expected one of ...; choose --from bert --prefix a.". What is said of other values,
        which a file may hold, is left as it is.
    """
    for name, option in options.items():
        value = repr(given[name])
        said = "not given" if given[name] is None else value
        for verb in ("is", "="):
            text = f"{option} {verb} {said}".join(re.split(rf"{START}{name} {verb} {re.escape(value)}(?!\w)", text))
    setting = rf"{START}({'|'.join(options) or '(?!)'})=('[^']*'|\"[^\"]*\"|[^\s,;]+)"

    def typed(found: re.Match) -> str:
        settings = [_setting(options[name], value) for name, value in re.findall(setting, found[0])]
        return (", " if any(one.startswith("no ") for one in settings) else " ").join(settings)

    return re.sub(rf"{setting}(?:, {setting})*", typed, text)


def _setting(option: str, value: str) -> str:
    """What sets an option to a value as Python writes it; without quotes, if it needs none in a shell."""
    plain = re.fullmatch(r"(['\"])([\w./-]+)\1", value)
    return f"no {option}" if value == "None" else f"{option} {plain[2] if plain else value}"


def _written(function: Callable) -> dict[str, str]:
    """The options of a command's function as they are written, by the names of its arguments."""
    written = {}
    for name, parameter in inspect.signature(function).parameters.items():
        for described in parameter.annotation.__metadata__:
            if isinstance(described, typer.models.OptionInfo):
                # Inside Annotated, typer takes what is written first for the default.
                names = map(str, (described.default, *(described.param_decls or ()), f"--{name.replace('_', '-')}"))
                written[name] = next(one for one in names if one.startswith("--"))
    return written
