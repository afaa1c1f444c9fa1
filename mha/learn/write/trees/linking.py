"""Take out parameters and results of functions that carry no information, and functions that nobody calls."""

import functools
import re
from typing import Any

import libcst as cst

from mha.learn.write.trees import folding, nodes
from mha.learn.write.trees.nodes import code
from mha.learn.write.trees.program import Program, bound, defaults, takes
from mha.learn.write.trees.walking import walk


def link(program: Program, roots: set[tuple[str, str]]) -> None:
    """Take out parameters that are constant or unused, and unreachable definitions; roots: the entries from outside."""
    for owner, name, _ in list(program.functions()):
        tree = program.function(owner, name)
        if (owner, name) not in roots and not tree.decorators:
            _without_parameters(program, owner, name, tree)
            _without_results(program, owner, name)
    for owner, tree in list(program.definitions.items()):
        if isinstance(tree, cst.ClassDef):
            _without_fields(program, owner)
    prune(program, roots)


def _without_parameters(program: Program, owner: str, name: str, tree: Any) -> None:
    """Take out the parameters of a function that are the same in every call, or unused."""
    sites = program.sites(owner, name)
    fields = program.fields(owner) if owner and name == program.setup and program.setup != "__init__" else None
    if not sites or isinstance(tree.params.star_arg, cst.Param):
        return
    given = takes(tree) if fields is None else [*fields]
    default: Any = defaults(tree) if fields is None else fields
    calls = [bound(call, given) for _, _, call in sites]
    if any(call is None for call in calls):
        return
    gone = []
    for parameter in given:
        first, *others = [(call or {}).get(parameter, default.get(parameter)) for call in calls]
        alike = folding.is_constant(first) and all(nodes.same(value, first) for value in others)
        if fields is None:
            used = parameter in nodes.live(nodes.body_of(tree))
        else:
            used = any(f"self.{parameter}" in code(line) for line in program.definitions[owner].body.body)
        if used and not alike:
            continue
        if fields is None:
            new = nodes.replace(tree, {parameter: first}) if used else tree
            if parameter in nodes.targets(tree.body) and used:
                new = _put_constant(tree, parameter, first)
            tree = _taking_less(new, parameter)
            program.put(owner, name, tree)
        else:
            program.definitions[owner] = _with_field(program.definitions[owner], parameter, first if used else None)
        gone.append(parameter)
    if gone:
        _giving_less(program, owner, name, given, gone)


def _without_results(program: Program, owner: str, name: str) -> None:
    """Take out returned values that nobody reads, or that the caller has already: a constant, or its own argument."""
    tree, sites = program.function(owner, name), program.sites(owner, name)
    if tree is None or len(sites) != 1 or not isinstance(nodes.small(nodes.body_of(tree)[-1]), cst.Return):
        return
    of_class, caller, call = sites[0]
    *body, last = nodes.body_of(tree)
    values = nodes.elements(nodes.small(last).value or nodes.NONE)
    if values is None or nodes.returns(tree) != 1:
        return
    double: dict[int, Any] = {}  # of results that are not returned: what their caller says instead, if anything

    def less(line: Any) -> list[Any]:
        made = nodes.as_assignment(line)
        targets = nodes.elements(made[0]) if made is not None and made[1] is call else None
        if targets is None or len(targets) != len(values):
            return [line]
        for n, value in enumerate(values):
            first = next((m for m in range(n) if nodes.same(values[m], value) and nodes.is_name(targets[m])), None)
            if code(targets[n]) == "_":
                double[n] = None
            elif (constant := _constant_after(body, value)) is not None:
                double[n] = constant
            elif first is not None:
                double[n] = targets[first]
        left = nodes.tuple_of([each for n, each in enumerate(targets) if n not in double], bare=True)
        said = [nodes.assignment(targets[n], value) for n, value in double.items() if value is not None]
        return [nodes.assignment(left, call, like=line), *said] if double else [line]

    function = program.function(of_class, caller)
    made = nodes.map_each(function, less)
    if double and made is not function:
        returned = nodes.tuple_of([each for n, each in enumerate(values) if n not in double], bare=True)
        new = last.with_changes(body=[cst.Return(returned)])
        program.put(of_class, caller, made)
        program.put(owner, name, nodes.with_body(tree, [*body, new]))


def _constant_after(lines: list[Any], value: cst.BaseExpression) -> cst.BaseExpression | None:
    """The constant value of an expression after these statements, if it has one."""
    if folding.is_constant(value):
        return value
    last = next((line for line in reversed(lines) if code(value) in nodes.targets(line)), None)
    made = None if last is None else nodes.as_assignment(last)
    return made[1] if made is not None and nodes.is_name(made[0]) and folding.is_constant(made[1]) else None


def _put_constant(tree: Any, parameter: str, value: cst.BaseExpression) -> Any:
    """Put a constant for a parameter into the first statement that reads it, which assigns it another value."""
    body = nodes.body_of(tree)
    at = next(n for n, line in enumerate(body) if parameter in nodes.names(line))
    target, old = nodes.as_assignment(body[at])  # type: ignore[misc]
    body[at] = nodes.assignment(target, nodes.replace(old, {parameter: value}), like=body[at])
    return nodes.with_body(tree, body)


def _taking_less(tree: Any, parameter: str) -> Any:
    """A function without one of its parameters."""
    tree = nodes.with_parameters(tree, [each for each in tree.params.params if each.name.value != parameter])
    by_name = [each for each in tree.params.kwonly_params if each.name.value != parameter]
    by_name = [each.with_changes(comma=cst.MaybeSentinel.DEFAULT) for each in by_name]
    star = tree.params.star_arg if by_name else cst.MaybeSentinel.DEFAULT
    return tree.with_changes(params=tree.params.with_changes(kwonly_params=by_name, star_arg=star))


def _giving_less(program: Program, owner: str, name: str, given: list[str], gone: list[str]) -> None:
    """Take the arguments of some parameters out of every call of a function."""

    def less(of_class: str, call: cst.Call) -> cst.Call:
        if program.callee(of_class, call) != (owner, name):
            return call
        left = [
            each
            for number, each in enumerate(call.args)
            if (given[number] if each.keyword is None else each.keyword.value) not in gone
        ]
        left = [each.with_changes(comma=cst.MaybeSentinel.DEFAULT) for each in left]
        return call.with_changes(args=left, whitespace_before_args=cst.SimpleWhitespace(""))

    for of_class, caller in {site[:2] for site in program.sites(owner, name)}:
        change = functools.partial(less, of_class)
        program.put(of_class, caller, nodes.map_calls(program.function(of_class, caller), change))


def _with_field(tree: Any, field: str, value: cst.BaseExpression | None) -> Any:
    """A class without one of its fields, and with a constant where it is read."""
    lines = [
        line
        for line in tree.body.body
        if not (isinstance(nodes.small(line), cst.AnnAssign) and code(nodes.small(line).target) == field)
    ]
    tree = tree.with_changes(body=tree.body.with_changes(body=lines))
    return tree if value is None else nodes.replace(tree, {f"self.{field}": value})


def _without_fields(program: Program, owner: str) -> None:
    """Take attributes out of a class that are constant, or that nothing reads."""
    tree = program.definitions[owner]
    made: dict[str, list[Any]] = {}
    for line in walk(tree):
        for target, value in nodes.pairs(line):
            if code(target).startswith("self."):
                made.setdefault(code(target), []).append(value)
    everything = program.text()
    for attribute, values in made.items():
        name, value = attribute.removeprefix("self."), values[0]
        if len(values) != 1 or name in program.asked:
            continue
        if folding.is_constant(value):
            tree = nodes.replace(tree, {attribute: value})
        elif isinstance(value, cst.Call) and "." in code(value.func):
            continue  # a part or a parameter of a framework, which it finds by itself
        elif _reads(tree, attribute) or f".{name}" in everything.replace(attribute, ""):
            continue
        tree = nodes.map_each(tree, functools.partial(_not_assigning, attribute=attribute))
    program.definitions[owner] = tree


def _reads(tree: Any, attribute: str) -> bool:
    """Whether an attribute stands anywhere but in the target of an assignment."""
    stored = {id(each) for target in walk(tree) if isinstance(target, cst.AssignTarget) for each in walk(target)}
    everywhere = (each for each in walk(tree) if isinstance(each, cst.Attribute) and id(each) not in stored)
    return any(code(each) == attribute for each in everywhere)


def _not_assigning(line: Any, attribute: str) -> list[Any]:
    """A statement without the assignment to an attribute."""
    pairs = nodes.pairs(line)
    left = [pair for pair in pairs if code(pair[0]) != attribute]
    if len(left) == len(pairs):
        return [line]
    return [nodes.of_pairs(left, like=line)] if left else []


def prune(program: Program, roots: set[tuple[str, str]]) -> None:
    """Take out definitions, methods and imports that no root reaches."""
    # What completes a function stands in its decorators.
    completes = {
        name: {code(each.decorator).split(".")[0] for each in getattr(tree, "decorators", ())}
        for name, tree in program.definitions.items()
    }
    reached: set[str] = set()
    new = {owner for owner, _ in roots}
    while new:
        reached |= new
        new = {other for name in reached for other in _mentions(program.definitions[name])}
        new |= {name for name, functions in completes.items() if functions & reached}
        new = (new & program.definitions.keys()) - reached
    program.definitions = {name: tree for name, tree in program.definitions.items() if name in reached}
    kept = {name for _, name in roots} | {program.entry, program.setup, "__init__", "setup"}
    for owner, name, _ in list(program.functions()):
        if owner and name not in kept and not name.startswith("__"):
            text = "\n".join(code(tree) for a, b, tree in program.functions() if (a, b) != (owner, name))
            if not re.search(rf"\bself\.(\w+\.)?{name}\(", text):
                program.put(owner, name, None)


def _mentions(tree: Any) -> set[str]:
    """The names of other definitions that a definition mentions."""
    if isinstance(tree, cst.FunctionDef):
        return {*nodes.names(tree)} - {*nodes.targets(tree.body), *takes(tree)}
    if isinstance(tree, cst.ClassDef):
        heads = [each.value for each in tree.bases]
        return set().union(*(_mentions(line) for line in (*tree.body.body, *heads)))
    return set(nodes.names(tree))
