"""Walk through syntax trees past spaces, brackets and commas, ten times as fast as libcst, which stops at each.

As in libcst, `visit_X` is called before the children of a node of type X, which are left out where it returns False,
and `leave_X` after them.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import libcst as cst

Methods = dict[str, Callable[..., Any]]  # by the type of nodes that they are for
# Of a node's fields, what no name, call or statement stands in.
FORM = (
    "whitespace", "leading_lines", "trailing_whitespace", "lpar", "rpar", "lbracket", "rbracket", "lbrace", "rbrace",
    "comma", "semicolon", "colon", "operator", "equal", "dot", "indent", "header", "footer", "asynchronous",
    "lines_after", "posonly_ind", "star_etc",
)  # fmt: skip


@functools.cache
def _fields(kind: Any) -> tuple[str, ...]:
    """The fields of a type of nodes that may hold nodes other than spaces, brackets and commas."""
    return tuple(field.name for field in dataclasses.fields(kind) if not field.name.startswith(FORM))


def _methods_for(cls: type, start: str) -> Methods:
    """The methods of a class whose names start with `start`, by the types of nodes that they are for."""
    return {name.removeprefix(start): getattr(cls, name) for name in dir(cls) if name.startswith(start)}


class Reading:
    """A walk that looks at a tree, in the order of its fields."""

    _before: Methods

    def __init_subclass__(cls) -> None:
        cls._before = _methods_for(cls, "visit_")

    def read(self, node: Any) -> None:
        """Look at a node, and at all that is in it."""
        kind: Any = type(node)
        before = self._before.get(kind.__name__)
        if before is not None and before(self, node) is False:
            return
        for name in _fields(kind):
            value = getattr(node, name)
            if isinstance(value, cst.CSTNode):
                self.read(value)
            elif isinstance(value, (list, tuple)):
                for each in value:
                    self.read(each)


class Changing:
    """A walk that changes a tree: `leave_X`, given the old node and the new one, returns the node for its place.

    A part that does not change stays the same object, since results about it are cached.
    """

    _before: Methods
    _after: Methods

    def __init_subclass__(cls) -> None:
        cls._before, cls._after = _methods_for(cls, "visit_"), _methods_for(cls, "leave_")

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
