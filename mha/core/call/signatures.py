"""Let functions take the arguments of a call, by name, and layers by position, too.

Letters as in the declaration.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from mha.core.call.declaration import ARGUMENTS, ROWS, Arguments, Call

_BY_KEYWORD = frozenset(Arguments.__annotations__)
_SIGNATURE = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, default in ARGUMENTS.items()
    ]
)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def call_of(function: str, valid_lens: Any, call: Mapping[str, Any], **more: Any) -> Call:
    """Make a call of these arguments; TypeError, in Python's own words, if the function takes none of such a name."""
    if call and not call.keys() <= _BY_KEYWORD:
        unknown = next(name for name in call if name not in _BY_KEYWORD)
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown!r}")
    return Call(valid_lens, **call, **more)


def spell_out(function: _Function) -> _Function:
    """Give a function that takes `**call` a signature with every argument in it, for help and completion."""
    signature = inspect.signature(function)
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    hints = Arguments.__annotations__
    arguments = [
        inspect.Parameter(name, keyword, default=ROWS[name].default, annotation=hints[name].__origin__)
        for name in hints
    ]
    before = [one for one in own if one.kind is not keyword]
    after = [one for one in own if one.kind is keyword]
    function.__signature__ = signature.replace(parameters=[*before, *arguments, *after])  # type: ignore[attr-defined]
    return function


def bind_call(given: Sequence[Any], named: Mapping[str, Any]) -> Call:
    """Make a call of arguments by position and by name, as layers take them; TypeError for others, as Python's own."""
    if len(given) > len(ARGUMENTS) or not ARGUMENTS.keys() >= named.keys():
        _SIGNATURE.bind(*given, **named)
    return Call(*given, **named)


def takes_call(function: _Function) -> _Function:
    """Let a method (self, queries, keys, values, call) take the arguments of a call, by position or by name.

    Its signature and its docstring name every argument; TypeError, in Python's own words, where one does not fit.
    """
    signature = inspect.signature(function)
    inputs = [one for name, one in signature.parameters.items() if name != "call"]

    @functools.wraps(function)
    def method(self: Any, queries: Any, keys: Any, values: Any, *given: Any, **named: Any) -> Any:
        as_one = len(given) == 1 and type(given[0]) is Call and not named
        return function(self, queries, keys, values, given[0] if as_one else bind_call(given, named))

    rows = "\n".join(f"        {name}: {row.meaning}." for name, row in ROWS.items())
    method.__doc__ = f"{function.__doc__}\n{rows}"
    method.__signature__ = signature.replace(parameters=[*inputs, *_SIGNATURE.parameters.values()])  # type: ignore[attr-defined]
    return method  # type: ignore[return-value]
