"""The names of arguments in errors about weights: as in Python, or as a command calls its options."""

import contextlib
import contextvars
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

_NAMES: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar("names")


class Code(str):
    """A value that an error shows as it is written in Python, such as "..." for one that is not known."""


class LackingError(TypeError):
    """An argument that has to be given, since nothing else says it; `argument` is its name in Python."""

    def __init__(self, argument: str, expected: str, why: str) -> None:
        super().__init__(f"{name(argument)} is not given, expected {expected}: {why}")
        self.argument, self.expected, self.why = argument, expected, why

    def of(self, path: os.PathLike[str]) -> "LackingError":
        """Return the same error, which names the file that does not say it."""
        return LackingError(self.argument, self.expected, f"{self.why}; {os.fspath(path)} does not say it")


@contextlib.contextmanager
def use_names(names: Mapping[str, str]) -> Iterator[None]:
    """Inside, errors call arguments by other names, such as {"scheme": "--from"}."""
    outer = _NAMES.get({})
    token = _NAMES.set({**outer, **{argument: outer.get(other, other) for argument, other in names.items()}})
    try:
        yield
    finally:
        _NAMES.reset(token)


def name(argument: str) -> str:
    """Return the name of an argument in an error."""
    return _NAMES.get({}).get(argument, argument)


def setting(**values: Any) -> str:
    """Return the text to type for these arguments: `scheme='bert', prefix=''`, or `--from bert --prefix ''`."""
    options = [name(argument) for argument in values]
    if not any(option.startswith("--") for option in options):
        written = (value if isinstance(value, Code) else repr(value) for value in values.values())
        return ", ".join(f"{option}={value}" for option, value in zip(options, written, strict=True))
    typed = [_option_text(option, *given) for option, given in zip(options, values.items(), strict=True)]
    return (", " if any(one.startswith("no ") for one in typed) else " ").join(typed)


def _option_text(option: str, argument: str, value: Any) -> str:
    """Return the text to type for one option of a command."""
    if argument == "rotary":  # whose option is a base
        return f"{option} {'none' if value is None else 'BASE'}"
    if value is None:
        return f"no {option}"
    plain = isinstance(value, str) and re.fullmatch(r"[\w./-]+", value)
    return f"{option} {value if plain else repr(value)}"
