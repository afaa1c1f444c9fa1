"""Walk through syntax trees past spaces, brackets and commas, ten times as fast as libcst, which stops at each."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import libcst as cst

# Of a node's fields, those in which no variable, call or statement stands.
FORM = (
    "whitespace", "leading_lines", "trailing_whitespace", "lpar", "rpar", "lbracket", "rbracket", "lbrace", "rbrace",
    "comma", "semicolon", "colon", "operator", "equal", "dot", "indent", "header", "footer", "asynchronous",
    "lines_after", "posonly_ind", "star_etc", "attr", "keyword", "name",
)  # fmt: skip


@functools.cache
def _fields(kind: Any) -> tuple[str, ...]:
    """The fields of a type of nodes in which variables, calls and statements stand."""
    return tuple(field.name for field in dataclasses.fields(kind) if not field.name.startswith(FORM))


def walk(node: Any) -> Iterator[Any]:
    """Yield a node and all that is in it, in the order of the text."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, cst.CSTNode):
            yield node
            waiting += [getattr(node, name) for name in reversed(_fields(type(node)))]
        elif isinstance(node, (list, tuple)):
            waiting += reversed(node)


class Changing:
    """A walk that changes a tree: `leave_X`, given a node of type X and its new form, returns the one for its place.

    As in libcst, `visit_X` comes before the children, which are left out where it returns False. A part that does not
    change stays the same object, since results about it are cached.
    """

    _before: dict[str, Callable[..., Any]]  # by the type of nodes that they are for
    _after: dict[str, Callable[..., Any]]

    def __init_subclass__(cls) -> None:
        cls._before, cls._after = (
            {name.removeprefix(start): getattr(cls, name) for name in dir(cls) if name.startswith(start)}
            for start in ("visit_", "leave_")
        )

    def change(self, node: Any) -> Any:
        """The node that takes a node's place; a sentinel of libcst if there is none, or several."""
        kind: Any = type(node)
        before, after = self._before.get(kind.__name__), self._after.get(kind.__name__)
        made = node
        if before is None or before(self, node) is not False:
            changes = {}
            for name in _fields(kind):
                value = getattr(node, name)
                if isinstance(value, cst.CSTNode):
                    new = self.change(value)
                    if new is not value:
                        changes[name] = None if isinstance(new, cst.RemovalSentinel) else new
                elif isinstance(value, (list, tuple)) and value:
                    new = self.change_all(value)
                    if new is not value:
                        changes[name] = new
            if changes:
                made = node.with_changes(**changes)
        return made if after is None else after(self, node, made)

    def change_all(self, values: Any) -> Any:
        """Change each of several nodes in a row."""
        found: list[Any] = []
        for value in values:
            new = self.change(value)
            if isinstance(new, cst.FlattenSentinel):
                found += new
            elif not isinstance(new, cst.RemovalSentinel):
                found.append(new)
        return values if len(found) == len(values) and all(map(operator.is_, found, values)) else found
