"""The definitions of a file in the making, by name, and which of them call which, with which arguments."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import libcst as cst

from mha.learn.write.trees import nodes
from mha.learn.write.trees.nodes import code

LAYER = "MultiHeadAttention"


@dataclasses.dataclass
class Program:
    """Functions, classes and constants by name, in the order in which a reader shall meet them.

    Attributes:
        imports: the import statements by the names that they bind.
        entry: the name of the method in which a layer computes.
        setup: the name of the method that makes its parts.
        asked: names that the framework asks a layer for, though nothing in the file does.
        words: the parameters that functions had in the lesson.
    """

    definitions: dict[str, Any]
    imports: dict[str, str]
    entry: str
    setup: str
    asked: tuple[str, ...] = ()
    words: dict[tuple[str, str], set[str]] = dataclasses.field(default_factory=dict)

    def text(self) -> str:
        """All definitions as text."""
        return "\n\n".join(code(each) for each in self.definitions.values())

    def functions(self) -> Iterator[tuple[str, str, Any]]:
        """Every function: the name of its class or "", its own name, and its tree."""
        for name, each in self.definitions.items():
            if isinstance(each, cst.FunctionDef):
                yield "", name, each
            elif isinstance(each, cst.ClassDef):
                for method, tree in methods(each).items():
                    yield name, method, tree

    def function(self, owner: str, name: str) -> Any:
        """The tree of a function or method; None if there is none."""
        tree = self.definitions.get(owner or name)
        if owner:
            return None if tree is None else methods(tree).get(name)
        return tree if isinstance(tree, cst.FunctionDef) else None

    def put(self, owner: str, name: str, tree: Any) -> None:
        """Put another tree in the place of a function or method; None removes a method."""
        if not owner:
            self.definitions[name] = tree
            return
        of_class, new = self.definitions[owner], [] if tree is None else [tree]
        old = methods(of_class).get(name)
        body = [one for line in nodes.body_of(of_class) for one in (new if line is old else [line])]
        self.definitions[owner] = nodes.with_body(of_class, body)

    def add(self, owner: str, *methods: Any) -> None:
        """Give a class more methods, behind its others."""
        of_class = self.definitions[owner]
        self.definitions[owner] = nodes.with_body(of_class, [*nodes.body_of(of_class), *methods])

    def map_functions(self, function: Callable[[str, str, Any], Any]) -> None:
        """Replace each function or method by function(owner, name, tree)."""
        for owner, name, tree in list(self.functions()):
            made = function(owner, name, tree)
            if made is not tree:
                self.put(owner, name, made)

    def map_definitions(self, function: Callable[[Any], Any]) -> None:
        """Replace each definition by function(tree)."""
        for name, tree in list(self.definitions.items()):
            self.definitions[name] = function(tree)

    def callee(self, owner: str, call: cst.Call) -> tuple[str, str] | None:
        """The class and name of the function that a call in a class, or in "", calls; None if it is defined elsewhere.

        A call of a class is a call of the method that makes its parts.
        """
        function = code(call.func)
        if function in self.definitions:
            tree = self.definitions[function]
            if isinstance(tree, cst.ClassDef):
                return function, self.setup if self.function(function, self.setup) else "__init__"
            return "", function
        if owner and function.startswith("self."):
            name = function.removeprefix("self.")
            if self.function(owner, name) is not None:
                return owner, name
            made = self.parts(owner).get(name)
            return None if made is None else (made, self.entry)
        return None

    def parts(self, owner: str) -> dict[str, str]:
        """The parts of a class by name, each with its own class, if this program defines that."""
        made = [pair for tree in methods(self.definitions[owner]).values() for pair in _calls_by_attribute(tree)]
        return {part: name for part, name in made if isinstance(self.definitions.get(name), cst.ClassDef)}

    def sites(self, owner: str, name: str) -> list[tuple[str, str, cst.Call]]:
        """The calls of a function: the class and the name of the caller, and the call."""
        return [
            (of_class, caller, call)
            for of_class, caller, tree in self.functions()
            for call in nodes.calls(tree)
            if self.callee(of_class, call) == (owner, name)
        ]

    def fields(self, owner: str) -> dict[str, cst.BaseExpression | None]:
        """The fields of a class, its annotated names, with their defaults."""
        lines = [nodes.small(line) for line in self.definitions[owner].body.body]
        return {code(line.target): line.value for line in lines if isinstance(line, cst.AnnAssign)}


@functools.lru_cache(maxsize=1000)
def methods(tree: Any) -> dict[str, Any]:
    """The methods of a class by name."""
    return {line.name.value: line for line in tree.body.body if isinstance(line, cst.FunctionDef)}


@functools.lru_cache(maxsize=1000)
def _calls_by_attribute(tree: cst.FunctionDef) -> list[tuple[str, str]]:
    """The attributes that a method sets to the result of a call, each with the function that is called."""
    pairs = filter(None, map(nodes.as_assignment, nodes.body_of(tree)))
    calls = [(code(target), value) for target, value in pairs if isinstance(value, cst.Call)]
    return [(name.removeprefix("self."), code(value.func)) for name, value in calls if name.startswith("self.")]


def bound(call: cst.Call, takes: Iterable[str]) -> dict[str, cst.BaseExpression] | None:
    """The arguments of a call by the names of parameters; None if stars hide them."""
    if any(each.star for each in call.args):
        return None
    order = list(takes)
    return {order[n] if each.keyword is None else each.keyword.value: each.value for n, each in enumerate(call.args)}


def takes(tree: cst.FunctionDef) -> list[str]:
    """The names of a function's parameters, without self."""
    return [each.name.value for each in nodes.parameters(tree) if each.name.value != "self"]


def defaults(tree: cst.FunctionDef) -> dict[str, cst.BaseExpression]:
    """The defaults of a function's parameters by name."""
    return {each.name.value: each.default for each in nodes.parameters(tree) if each.default is not None}
