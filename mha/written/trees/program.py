"""The definitions of a file that is being made, by name, and what holds between them: who calls whom, with what."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import libcst as cst

from mha.written.trees import nodes
from mha.written.trees.nodes import code

LAYER = "MultiHeadAttention"


@dataclasses.dataclass
class Program:
    """Functions, classes and constants by name, in the order in which they are to be read.

    imports: the import statements by the names that they bind; entry: the method of a layer in which it computes;
    setup: the one that makes its parts; words: the parameters that functions had in the lesson.
    """

    definitions: dict[str, Any]
    imports: dict[str, str]
    entry: str
    setup: str
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
                for line in each.body.body:
                    if isinstance(line, cst.FunctionDef):
                        yield name, line.name.value, line

    def function(self, owner: str, name: str) -> Any:
        """The tree of a function or method; None if there is none."""
        return next((tree for a, b, tree in self.functions() if (a, b) == (owner, name)), None)

    def put(self, owner: str, name: str, tree: Any) -> None:
        """Put another tree in the place of a function or method; None removes it."""
        if not owner:
            if tree is None:
                del self.definitions[name]
            else:
                self.definitions[name] = tree
            return
        of_class = self.definitions[owner]
        lines: list[Any] = []
        for line in of_class.body.body:
            if isinstance(line, cst.FunctionDef) and line.name.value == name:
                lines += [] if tree is None else [tree]
            else:
                lines.append(line)
        self.definitions[owner] = of_class.with_changes(body=of_class.body.with_changes(body=lines))

    def add(self, owner: str, *methods: Any) -> None:
        """Give a class more methods, behind its others."""
        of_class = self.definitions[owner]
        body = of_class.body.with_changes(body=[*of_class.body.body, *methods])
        self.definitions[owner] = of_class.with_changes(body=body)

    def mapped(self, function: Callable[[str, str, Any], Any]) -> None:
        """Put a function of each function or method in its place."""
        for owner, name, tree in list(self.functions()):
            made = function(owner, name, tree)
            if made is not tree:
                self.put(owner, name, made)

    def each(self, function: Callable[[Any], Any]) -> None:
        """Put a function of each definition in its place."""
        for name, tree in list(self.definitions.items()):
            self.definitions[name] = function(tree)

    def called(self, owner: str, call: cst.Call) -> tuple[str, str] | None:
        """Class and name of the function that a call inside of a class, or "", calls; None if it is not one of these.

        A class that is called is its method that makes its parts.
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
        """The classes of this program that parts of a layer are of, by the names of the parts."""
        found: dict[str, str] = {}
        for _, _, tree in (each for each in self.functions() if each[0] == owner):
            for line in nodes.body_of(tree):
                if (made := nodes.assigned(line)) is None or not isinstance(made[1], cst.Call):
                    continue
                name = code(made[1].func)
                if code(made[0]).startswith("self.") and isinstance(self.definitions.get(name), cst.ClassDef):
                    found[code(made[0]).removeprefix("self.")] = name
        return found

    def sites(self, owner: str, name: str) -> list[tuple[str, str, cst.Call]]:
        """The calls of a function: the class and name of who calls, and the call."""
        found = []
        for of_class, caller, tree in self.functions():
            for call in nodes.calls(tree):
                if self.called(of_class, call) == (owner, name):
                    found.append((of_class, caller, call))
        return found

    def fields(self, owner: str) -> list[str]:
        """The annotated names of a class, which are its fields where it is made from them."""
        lines = [nodes.small(line) for line in self.definitions[owner].body.body]
        return [code(line.target) for line in lines if isinstance(line, cst.AnnAssign)]


def bound(call: cst.Call, takes: list[str]) -> dict[str, cst.BaseExpression] | None:
    """The arguments of a call by the names of parameters; None if stars hide them."""
    found: dict[str, cst.BaseExpression] = {}
    for number, argument in enumerate(call.args):
        if argument.star:
            return None
        found[takes[number] if argument.keyword is None else argument.keyword.value] = argument.value
    return found


def takes(tree: cst.FunctionDef) -> list[str]:
    """The names of a function's parameters, without self."""
    return [each.name.value for each in nodes.parameters(tree) if each.name.value != "self"]


def defaults(tree: cst.FunctionDef) -> dict[str, cst.BaseExpression]:
    """The defaults of a function's parameters by name."""
    return {each.name.value: each.default for each in nodes.parameters(tree) if each.default is not None}
