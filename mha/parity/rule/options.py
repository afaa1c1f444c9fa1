"""Options by name, each declared once in a TypedDict: `Annotated[type, Option(default, check)]`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class Option(NamedTuple):
    """The default of an option, and the check of another value: a function of name and value, which returns it."""

    default: Any = None
    check: Callable[[str, Any], Any] = lambda name, value: value


def signature_of(options: type) -> inspect.Signature:
    """Return the signature of a function that takes these options alone."""
    found = []
    for name, hint in options.__annotations__.items():
        (option,), kind = hint.__metadata__, hint.__origin__
        found.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=kind))
    return inspect.Signature(found)


def spell_out(options: type) -> Callable[[Function], Function]:
    """Give a function that takes `**options` a signature with each of them, for help and completion."""

    def decorate(function: Function) -> Function:
        own = [one for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD]
        every = [*own, *signature_of(options).parameters.values()]
        function.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        return function

    return decorate


def complete(function: str, options: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options, checked; TypeError, in Python's own words, if the function takes none of such a name."""
    rows = {name: hint.__metadata__[0] for name, hint in options.__annotations__.items()}
    if unknown := [name for name in given if name not in rows]:
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown[0]!r}")
    every = {name: given.get(name, row.default) for name, row in rows.items()}
    return {name: X if X is rows[name].default else rows[name].check(name, X) for name, X in every.items()}
