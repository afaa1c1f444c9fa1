"""Put a function's body in the place of its call: of methods that are called once, and of one-line functions."""

from typing import Any

import libcst as cst

from mha.learn.write.trees import folding, nodes
from mha.learn.write.trees.nodes import code
from mha.learn.write.trees.program import Program, bound, defaults, takes

SIMPLE = cst.Name, cst.Attribute, cst.Integer, cst.Float, cst.SimpleString


def inline_one(program: Program, keep: set[str], only: str | None = None) -> bool:
    """Inline one function; return whether there was one to inline.

    keep: names that stay functions; only: the class whose methods may be inlined, None = all functions.
    """
    for owner, name, tree in list(program.functions()):
        if only not in (None, owner) or name in keep or tree.decorators:
            continue
        if name == program.setup or name.startswith("__"):
            continue
        sites = program.sites(owner, name)
        if not sites or (owner, name) in (site[:2] for site in sites):
            continue
        once = len(sites) == 1
        guarded = once and not owner and _guard(tree) is not None
        # A step of a layer reads better where it is called; a function, if it is short.
        step = once and ((bool(owner) and name != program.entry) or len(nodes.body_of(tree)) <= 5)
        if guarded or (_straight(tree) and (step or _is_one_line(tree, sites))):
            of_class, caller, _ = sites[0]
            before = program.function(of_class, caller)
            made = _with(program, of_class, caller, owner, name, tree)
            if made is not before:
                program.put(of_class, caller, made)
                return True
    return False


def _straight(tree: Any) -> bool:
    """Whether a function has one return, at its end, and no names that only its own body may have."""
    body = nodes.body_of(tree)
    if not body or not isinstance(nodes.small(body[-1]), cst.Return) or nodes.small(body[-1]).value is None:
        return False
    return nodes.returns(tree) == 1 and not tree.params.star_kwarg and not isinstance(tree.params.star_arg, cst.Param)


def returns_early(tree: Any) -> bool:
    """Whether a function begins with a condition under which it returns at once."""
    first = nodes.body_of(tree)[0]
    return isinstance(first, cst.If) and isinstance(nodes.small(first.body.body[-1]), cst.Return)


def in_branches(tree: Any) -> Any:
    """Turn an early return into an if and an else, in a function that returns its parameters."""
    first, *rest = nodes.body_of(tree)
    result = nodes.tuple_of([cst.Name(name) for name in takes(tree)], bare=True)

    def assigning(lines: list[Any]) -> list[Any]:
        *before, last = lines
        return [*before, nodes.assignment(result, nodes.small(last).value, like=last)]

    block = first.body.with_changes(body=assigning(list(first.body.body)))
    branch = first.with_changes(body=block, orelse=cst.Else(first.body.with_changes(body=assigning(rest))))
    return nodes.with_body(tree, [branch, cst.SimpleStatementLine([cst.Return(result)])])


def _guard(tree: Any) -> tuple[Any, Any] | None:
    """The condition under which a function returns at once, and what; None if it does not begin so."""
    body = nodes.body_of(tree)
    first = body[0]
    if not isinstance(first, cst.If) or first.orelse is not None or len(first.body.body) != 1:
        return None
    returned: Any = nodes.small(first.body.body[0])
    if not isinstance(returned, cst.Return) or len(body) < 2 or not _straight(nodes.with_body(tree, body[1:])):
        return None
    return first.test, returned.value


def _nothing_else(line: Any, call: cst.Call, tree: Any) -> cst.BaseExpression | None:
    """The condition under which a line `x = f(x)` changes x, where f begins with a guard; None for other lines."""
    made, guard = nodes.as_assignment(line), _guard(tree)
    given = bound(call, takes(tree))
    if made is None or guard is None or given is None or made[1] is not call:
        return None
    test, value = (nodes.replace(each, given) for each in guard)
    target = code(nodes.tuple_of(nodes.elements(made[0]) or [made[0]], bare=True))
    same = code(value).strip("()") == target
    empty = code(value) == "None" and code(test) == f"{target} is None"
    if not (same or empty):
        return None
    return folding.fold(cst.UnaryOperation(cst.Not(), nodes.in_brackets(test)), {})


def _is_one_line(tree: Any, sites: list[tuple[str, str, cst.Call]]) -> bool:
    """Whether a function only returns a name, or calls another function with its own arguments."""
    body = nodes.body_of(tree)
    if len(body) != 1:
        return False
    value: Any = nodes.small(body[0]).value
    if isinstance(value, SIMPLE):
        return True
    given = takes(tree)
    often = {name for name in given if nodes.names(value).count(name) > 1}
    for _, _, call in sites:
        arguments = bound(call, given) or {}
        if any(not isinstance(arguments.get(name), SIMPLE) for name in often):
            return False
    return isinstance(value, cst.Call) and len(code(value)) <= 88


def _with(program: Program, of_class: str, caller: str, owner: str, name: str, tree: Any) -> Any:
    """The caller with a function's body in the place of its first call."""
    function = program.function(of_class, caller)
    done = [False]

    def in_block(lines: list[Any]) -> list[Any]:
        made: list[Any] = []
        for number, line in enumerate(lines):
            found = None if done[0] else _call_in(program, of_class, line, owner, name)
            if found is None:
                made.append(line)
                continue
            after = lines[number + 1 :]
            inner = not any(one is other for one in lines for other in function.body.body)
            live = nodes.live(after) if not inner else set(nodes.names(function.body))  # which what follows may read
            if _straight(tree):
                made += _body_for(line, found, tree, live)
                done[0] = True
            elif (test := _nothing_else(line, found, tree)) is not None:
                rest = nodes.with_body(tree, nodes.body_of(tree)[1:])
                block = cst.IndentedBlock(_body_for(line, found, rest, live))
                made.append(cst.If(test, block))
                done[0] = True
            else:
                made.append(line)
        return made

    new = nodes.map_lines(function, in_block)
    return new if done[0] else function


def _call_in(program: Program, of_class: str, line: Any, owner: str, name: str) -> cst.Call | None:
    """The call of the function in the head of a statement, not in its blocks."""
    head = line
    if isinstance(line, cst.If):
        head = line.test
    elif not isinstance(line, cst.SimpleStatementLine):
        return None
    return next((call for call in nodes.calls(head) if program.callee(of_class, call) == (owner, name)), None)


def _body_for(line: Any, call: cst.Call, tree: Any, used_after: set[str]) -> list[Any]:
    """The statements that replace a line with a call: the function's own, then the line with the returned value."""
    given = bound(call, takes(tree))
    if given is None:
        raise ValueError(f"the call {code(call)} hides its arguments behind stars")
    given = defaults(tree) | given
    body = nodes.body_of(tree)
    beside = set(nodes.names(line)) if isinstance(line, cst.SimpleStatementLine) else set()
    written = [each for one in body for each in nodes.targets(one)]
    by: dict[str, cst.BaseExpression] = {}
    before: list[Any] = []
    own_targets = set(nodes.targets(line))
    for parameter, value in given.items():
        uses = sum(nodes.names(one).count(parameter) for one in body) - written.count(parameter)
        if parameter in written:
            if nodes.is_name(value) and (code(value) not in used_after or code(value) in own_targets):
                by[parameter] = value
            elif (first := _read_first(body, parameter, value)) is not None:
                body = [first, *body[1:]]
            else:
                before.append(nodes.assignment(cst.Name(parameter), value))
        elif isinstance(value, SIMPLE) or uses <= 1:
            by[parameter] = value
        else:
            fresh = _fresh(parameter, used_after | beside)
            before.append(nodes.assignment(cst.Name(fresh), value))
            by[parameter] = cst.Name(fresh)
    for local in set(written) - set(given):
        if local in (used_after | beside) - own_targets:
            by[local] = cst.Name(_fresh(local, used_after | beside))
    moved = [nodes.replace(one, by, stores=True) for one in body]
    last = moved.pop()
    result = nodes.in_brackets(nodes.small(last).value)
    new = nodes.map_calls(line, lambda each: result if each is call else each)
    if isinstance(new, cst.SimpleStatementLine) and new.trailing_whitespace.comment is None:
        new = new.with_changes(trailing_whitespace=last.trailing_whitespace)
    return [*before, *moved, new]


def _read_first(body: list[Any], parameter: str, value: cst.BaseExpression) -> Any:
    """The first statement with a parameter's value in it, if it reads the parameter once and gives it another."""
    made = nodes.as_assignment(body[0])
    if made is None or parameter not in nodes.targets(body[0]) or nodes.names(made[1]).count(parameter) != 1:
        return None
    return nodes.assignment(made[0], nodes.replace(made[1], {parameter: value}), like=body[0])


def _fresh(name: str, taken: set[str]) -> str:
    """A name like this one that is free."""
    return next(each for each in (name, *(f"{name}_{n}" for n in range(2, 100))) if each not in taken)
