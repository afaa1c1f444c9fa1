"""Where a backend's lesson computes a step: read from the source itself, so that it is never out of date."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mha import dispatch


@dataclasses.dataclass(frozen=True)
class Place:
    """A statement of a backend.

    file: from the folder of the backends, as "torch/layer.py"; line: its first line, from 1; function: the name of the
    function that it is in; source: its text, without indentation.
    """

    file: str
    line: int
    function: str
    source: str


def place(function: Callable, name: str = "", calls: str = "") -> Place:
    """Where a function of a backend computes what it calls by this name, or else where it returns.

    calls: a function or method that the statement calls, where several statements compute the name; "" = any.
    """
    statements = list(ast.walk(_tree(function)))
    found = [one for one in statements if isinstance(one, ast.Assign) and name in computed(one)]
    found = [one for one in found if calls in {"", *_called(one)}]
    returned = [one for one in statements if isinstance(one, ast.Return)]
    return _place(function, max(found or returned, key=lambda one: one.lineno))


def stages(function: Callable, X: Any, *arguments: Any) -> list[tuple[Place, Any]]:
    """Run a function of a backend line by line: the place of each line that makes another X, and that X.

    The last of them is what the function returns.
    """
    definition: Any = _tree(function).body[0]
    variables = dict(zip(inspect.signature(function).parameters, (X, *arguments), strict=True))
    file, names = inspect.getfile(function), inspect.unwrap(function).__globals__
    found = []
    for statement in definition.body:
        if isinstance(statement, ast.Return) and statement.value:
            variables["X"] = eval(compile(ast.Expression(statement.value), file, "eval"), names, variables)
        else:
            exec(compile(ast.Module([statement], []), file, "exec"), names, variables)
        if isinstance(statement, ast.Return) or "X" in computed(statement):
            found.append((_place(function, statement), variables["X"]))
    return found


def _tree(function: Callable) -> ast.Module:
    """A function's source as a tree, whose lines are numbered as in the file."""
    lines, first = inspect.getsourcelines(inspect.unwrap(function))
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    return tree


def _place(function: Callable, statement: ast.stmt) -> Place:
    function = inspect.unwrap(function)
    file = Path(inspect.getfile(function))
    lines, first = inspect.getsourcelines(function)
    own = lines[statement.lineno - first : (statement.end_lineno or statement.lineno) - first + 1]
    source = textwrap.dedent("".join(own)).rstrip()
    return Place(file.relative_to(dispatch.FOLDER).as_posix(), statement.lineno, function.__name__, source)


def computed(statement: ast.stmt) -> set[str]:
    """The names that a statement assigns to; of `steps["capped"] = scores = ...` both, and "steps"."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    parts = [part for target in targets for part in ast.walk(target)]
    keys = {str(part.value) for part in parts if isinstance(part, ast.Constant)}
    return keys | {part.id for part in parts if isinstance(part, ast.Name)}


def _called(statement: ast.stmt) -> set[str]:
    """The names of the functions and methods that a statement calls."""
    called = [part.func for part in ast.walk(statement) if isinstance(part, ast.Call)]
    return {part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "") for part in called}
