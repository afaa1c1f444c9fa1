"""Spread a call, and options with parts, into arguments of their own: each function takes those that it uses."""

import dataclasses
import functools
from typing import Any

import libcst as cst

from mha.core.call import ARGUMENTS
from mha.core.options import config as options
from mha.learn.write.lesson import facts
from mha.learn.write.trees import nodes
from mha.learn.write.trees.nodes import code
from mha.learn.write.trees.program import Program

FIELDS = [*ARGUMENTS, "window", "chunk", "sinks", "gates", "traced", "columns"]  # of a call, those of its plan too
PARTS = {part.__name__.lower(): part for part in options.PARTS.values()}


def spread_call(program: Program) -> None:
    """Replace the parameter `call` of all functions by its fields."""
    changing = {name: _changes_of(tree) for _, name, tree in program.functions() if _takes(tree, "call")}
    own = {name: [each.name.value for each in nodes.parameters(tree)] for _, name, tree in program.functions()}

    def spread(owner: str, name: str, tree: Any) -> Any:
        if "call" not in nodes.names(tree) and not _takes(tree, "call"):
            return tree
        tree = _taking(tree, "call", [field for field in FIELDS if field not in own[name]])
        tree = nodes.map_each(tree, lambda line: _assign_fields(line, changing))
        tree = nodes.map_each(tree, lambda line: [_return_fields(line, changing.get(name, []))])
        tree = nodes.map_calls(tree, lambda call: _giving(call, own))
        return nodes.replace(tree, {f"call.{field}": cst.Name(field) for field in FIELDS})

    program.map_functions(spread)


def _takes(tree: Any, parameter: str) -> bool:
    return any(each.name.value == parameter for each in nodes.parameters(tree))


def _taking(tree: Any, parameter: str, instead: list[str]) -> Any:
    """A function with several parameters in the place of one, if it has that."""
    new = [cst.Param(cst.Name(name)) for name in instead]
    params = [one for each in tree.params.params for one in (new if each.name.value == parameter else [each])]
    return nodes.with_parameters(tree, params)


def _changes_of(tree: Any) -> list[str]:
    """The fields of a call that a function changes in the call that it returns, in their order."""
    changes = [call for call in nodes.calls(tree.body) if code(call.func) == "call._replace"]
    found = {each.keyword.value for call in changes for each in call.args if each.keyword is not None}
    return [field for field in FIELDS if field in found]


def _assign_fields(line: Any, changing: dict[str, list[str]]) -> list[Any]:
    """Write `call = call._replace(a=b)` as `a = b`, and a call that a function returns as its changed fields."""
    made: Any = nodes.as_assignment(line)
    if made is None:
        return [line]
    if code(made[0]) == "call" and code(made[1]).startswith("call._replace("):
        pairs = [(each.keyword, each.value) for each in made[1].args]
        return [nodes.assignment(*pair, like=line if n == 0 else None) for n, pair in enumerate(pairs)]
    targets, values = nodes.elements(made[0]), nodes.elements(made[1])
    if targets is None:
        return [line]
    if values is not None and len(values) == len(targets):
        left = [pair for pair in zip(targets, values, strict=True) if code(pair[0]) != "call"]
        return [nodes.of_pairs(left, like=line)]
    if any(code(each) == "call" for each in targets) and isinstance(made[1], cst.Call):
        fields = [cst.Name(field) for field in changing.get(code(made[1].func).removeprefix("self."), [])]
        new = [one for each in targets for one in (fields if code(each) == "call" else [each])]
        return [nodes.assignment(nodes.tuple_of(new, bare=True), made[1], like=line)]
    return [line]


def _return_fields(line: Any, changed: list[str]) -> Any:
    """Write `return a, call._replace(b=c)` as `return a, c`, with all fields that the function changes."""
    made = nodes.small(line)
    values = nodes.elements(made.value) if isinstance(made, cst.Return) and made.value is not None else None
    if values is None:
        return line
    new: list[Any] = []
    for value in values:
        if code(value).startswith("call._replace("):
            given = {each.keyword.value: each.value for each in value.args}  # type: ignore[attr-defined]
            new += [given.get(name, cst.Name(name)) for name in changed]
        else:
            new.append(value)
    return line.with_changes(body=[made.with_changes(value=nodes.tuple_of(new, bare=True))])


def _giving(call: cst.Call, own: dict[str, list[str]]) -> cst.Call:
    """Pass the fields by name in a call that passes `call` on; own: the other parameters of each function."""
    if not any(code(each.value) == "call" for each in call.args):
        return call
    takes = [name for name in own.get(code(call.func).removeprefix("self."), []) if name != "self"]
    arguments: list[cst.Arg] = []
    for number, each in enumerate(call.args):
        if code(each.value) == "call":
            arguments += [nodes.keyword(field, cst.Name(field)) for field in FIELDS if field not in takes]
        elif each.keyword is None and arguments and arguments[-1].keyword is not None:
            arguments.append(nodes.keyword(takes[number], each.value))
        else:
            arguments.append(each)
    return call.with_changes(args=arguments)


def spread_parts(program: Program) -> None:
    """Replace rotation, norm and temperature by their numbers, as parameters and arguments of their own."""
    for part, kind in PARTS.items():
        fields = [field.name for field in dataclasses.fields(kind)]
        own = {f"self.{part}.{field}": nodes.expression(f"self.{part}_{field}") for field in fields}
        program.map_functions(functools.partial(_spread_part, part, fields))
        for name, tree in list(program.definitions.items()):
            new = functools.partial(_own_fields, part, fields)
            program.definitions[name] = nodes.map_each(nodes.replace(tree, own), new)


def _spread_part(part: str, fields: list[str], owner: str, name: str, tree: Any) -> Any:
    """A function that takes, reads and passes on the fields of an option in its place."""

    def change(call: cst.Call) -> cst.Call:
        arguments: list[cst.Arg] = []
        for each in call.args:
            text = code(each.value)
            if text == part:
                arguments += [cst.Arg(cst.Name(f"{part}_{field}")) for field in fields]
            elif options.PARTS.get(text.removeprefix("config.")) is PARTS[part]:
                arguments += [cst.Arg(nodes.expression(f"{text}.{field}")) for field in fields]
            else:
                arguments.append(each)
        return call if len(arguments) == len(call.args) else call.with_changes(args=arguments)

    tree = nodes.map_calls(_taking(tree, part, [f"{part}_{field}" for field in fields]), change)
    return nodes.replace(tree, {f"{part}.{field}": cst.Name(f"{part}_{field}") for field in fields})


def _own_fields(part: str, fields: list[str], line: Any) -> list[Any]:
    """Write `self.norm = norm` as one assignment for each field, and `norm: Norm` as one annotation for each."""
    small, pairs = nodes.small(line), nodes.pairs(line)
    if isinstance(small, cst.AnnAssign) and code(small.target) == part:
        names = [f"{part}_{field}" for field in fields]
        return [nodes.statement(f"{name}: {facts.annotation(name)}\n") for name in names]
    if not any(code(target) == f"self.{part}" for target, _ in pairs):
        return [line]
    new: list[Any] = []
    for target, value in pairs:
        if code(target) == f"self.{part}":
            own = [(f"self.{part}_{field}", f"{code(value)}_{field}") for field in fields]
            new += [(nodes.expression(one), nodes.expression(other)) for one, other in own]
        else:
            new.append((target, value))
    return [nodes.assignment(*pair) for pair in new]
