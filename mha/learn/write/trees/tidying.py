"""Make a function's body as one would write it: no second names, nothing unused, no empty steps."""

from collections import Counter
from typing import Any

import libcst as cst

from mha.learn.write.trees import folding, nodes
from mha.learn.write.trees.nodes import code

SHORT = 52  # characters of what is put in the place of a name
LONG = 105  # of a statement in which it is put


_STABLE: set[tuple[str, Any]] = set()  # functions of which nothing more can be said


def tidy(function: Any, known: dict[str, Any]) -> Any:
    """Take constants, duplicates and unused values out of a function until nothing changes."""
    said = tuple(sorted((name, repr(value)) for name, value in known.items()))
    if (code(function), said) in _STABLE:
        return function
    while True:
        before = function
        function = nodes.map_each(function, _parts)
        function = nodes.map_lines(function, folding.without_what_never_runs)
        function = folding.fold(function, known | _constants(function))
        function = _without_copies(function)
        function = nodes.with_body(function, _without_aliases(nodes.body_of(function)))
        function = _unpack(function)
        function = nodes.with_body(function, _without_twins(nodes.body_of(function)))
        function = nodes.with_body(function, _without_dead(nodes.body_of(function), set()))
        function = nodes.map_lines(function, _same_conditions)
        function = nodes.map_lines(function, _without_empty)
        if nodes.same(function, before):
            _STABLE.add((code(before), said))
            return before


def _parts(line: Any) -> list[Any]:
    """An assignment of tuples to tuples, without parts that assign themselves, and constants on lines of their own."""
    pairs = _pairs(line)
    left = [(target, value) for target, value in pairs if code(target) != code(value)]
    if not pairs or (len(pairs) == 1 and left == nodes.pairs(line)):
        return [line]
    together = [pair for pair in left if not _is_alone(*pair)]
    made = [nodes.of_pairs(together)] if together else []
    made += [nodes.assignment(*pair) for pair in left if _is_alone(*pair)]
    return [nodes.with_comments(each, line) if each is made[0] else each for each in made]


def _is_alone(target: Any, value: Any) -> bool:
    """Whether a part of an assignment of tuples shall be a line of its own, as a constant is."""
    named = isinstance(target, cst.Name) or code(target).startswith("self.")
    return named and folding.value_of(value, {}) not in (folding.UNKNOWN, folding.PRESENT)


def _pairs(line: Any) -> list[tuple[Any, Any]]:
    """The pairs of target and value of an assignment, none where a tuple of targets gets the results of a call.

    A star before the first value takes the targets that the other values leave.
    """
    pairs = nodes.pairs(line)
    if len(pairs) != 1 or not isinstance(pairs[0][0], cst.Tuple):
        return pairs
    left, value = nodes.elements(pairs[0][0]) or [], pairs[0][1]
    if not isinstance(value, cst.Tuple) or not isinstance(value.elements[0], cst.StarredElement):
        return []
    rest = [each.value for each in value.elements[1:]]
    cut = len(left) - len(rest)
    return [(nodes.tuple_of(left[:cut], bare=True), value.elements[0].value), *zip(left[cut:], rest, strict=True)]


def _constants(function: Any) -> dict[str, Any]:
    """The names that a function assigns once, to a constant, with the constant."""
    count = Counter(nodes.targets(function.body))
    given = {each.name.value for each in nodes.parameters(function)}
    found = {}
    for line in nodes.body_of(function):
        made = nodes.as_assignment(line)
        if made is None or not isinstance(made[0], cst.Name):
            continue
        name = made[0].value
        if count[name] == 1 and name not in given and folding.is_constant(made[1]):
            found[name] = folding.value_of(made[1], {})
    return found


def _without_copies(function: Any) -> Any:
    """The function without second names: `x = y`, and two names for one value in one line."""
    count = Counter(nodes.targets(function.body))
    given = {each.name.value for each in nodes.parameters(function)}

    def once(name: Any) -> bool:
        return nodes.is_name(name) and count[name.value] == 1 and name.value not in given

    by: dict[str, Any] = {}
    body = []
    for line in nodes.body_of(function):
        pairs = nodes.pairs(line)
        kept: dict[str, tuple[Any, Any]] = {}
        for target, value in pairs:
            first = kept.get(code(value))
            if first is not None and once(target):
                by[code(target)] = first[0]
            elif once(target) and nodes.is_name(value) and count[value.value] + (value.value in given) <= 1:
                by[code(target)] = value
            else:
                kept[code(value) if first is None else code(target)] = target, value
        if len(kept) == len(pairs):
            body.append(line)
        elif kept:
            body.append(nodes.of_pairs([*kept.values()], like=line))
    by = {name: by.get(value.value, value) if isinstance(value, cst.Name) else value for name, value in by.items()}
    return nodes.replace(nodes.with_body(function, body), by) if by else function


def _without_aliases(lines: list[Any]) -> list[Any]:
    """Statements without `x = y`, if neither changes afterwards."""
    for number, line in enumerate(lines):
        made = nodes.as_assignment(line)
        if made is None or not nodes.is_name(made[0]) or not nodes.is_name(made[1]):
            continue
        after = lines[number + 1 :]
        written = {each for one in after for each in nodes.targets(one)}
        if not written & {code(made[0]), code(made[1])}:
            return [*lines[:number], *(nodes.replace(one, {code(made[0]): made[1]}) for one in after)]
    return lines


def _without_dead(lines: list[Any], later: set[str]) -> list[Any]:
    """The statements of a block without assignments that nothing reads; later: the names that are read after it."""
    found: list[Any] = []
    for number, line in enumerate(lines):
        after = lines[number + 1 :]
        live = nodes.live(after) | later
        if isinstance(line, cst.If) and isinstance(line.body, cst.IndentedBlock):
            inner = _without_dead(list(line.body.body), live) or [nodes.statement("pass\n")]
            found.append(nodes.with_body(line, inner))
            continue
        pairs = _pairs(line)
        kept = [pair for pair in pairs if not (isinstance(pair[0], cst.Name) and pair[0].value not in live)]
        if len(kept) == len(pairs):
            found.append(_with_dashes(line, live))
        elif kept:
            found.append(nodes.of_pairs(kept, like=line))
    return found


def _with_dashes(line: Any, live: set[str]) -> Any:
    """An assignment of a call's results, with `_` for the parts that nothing reads; or any other line as it is."""
    made = nodes.as_assignment(line)
    targets = None if made is None else nodes.elements(made[0])
    if made is None or targets is None or not isinstance(made[1], cst.Call):
        return line
    new = [cst.Name("_") if nodes.is_name(each) and code(each) not in live else each for each in targets]
    if all(nodes.same(one, other) for one, other in zip(new, targets, strict=True)):
        return line
    return nodes.assignment(nodes.tuple_of(new, bare=True), made[1], like=line)


def _same_conditions(lines: list[Any]) -> list[Any]:
    """Merge branches of the same condition that follow each other."""
    found: list[Any] = []
    for line in lines:
        last: Any = found[-1] if found else None
        both = isinstance(line, cst.If) and isinstance(last, cst.If) and not (line.orelse or last.orelse)
        if both and nodes.same(line.test, last.test) and not {*nodes.names(line.test)} & {*nodes.targets(last.body)}:
            found[-1] = nodes.with_body(last, [*last.body.body, *line.body.body])
        else:
            found.append(line)
    return found


def _without_empty(lines: list[Any]) -> list[Any]:
    """Statements without branches in which nothing happens."""
    return [
        line
        for line in lines
        if not (isinstance(line, cst.If) and line.orelse is None and code(line.body).strip() == "pass")
        and not (isinstance(nodes.small(line), cst.Pass) and len(lines) > 1)
    ]


def _without_repeats(line: Any, before: list[Any]) -> Any:
    """A statement without assignments of an option that repeat an earlier one; None if nothing is left."""
    said = {(code(target), code(value)) for each in before for target, value in _pairs(each)}
    pairs = _pairs(line)
    left = [
        (target, value)
        for target, value in pairs
        if not (code(value).startswith("config.") and (code(target), code(value)) in said)
    ]
    if len(left) == len(pairs):
        return line
    return nodes.of_pairs(left, like=line) if left else None


def _unpack(function: Any) -> Any:
    """The function with the elements of a tuple or dict in the place of its only use, after stars in a call."""
    lines = nodes.body_of(function)
    for line in lines:
        made = nodes.as_assignment(line)
        if made is None or not isinstance(made[0], cst.Name):
            continue
        value: Any = made[1]
        if nodes.elements(value) is None and not isinstance(value, cst.Dict):
            continue
        name = made[0].value
        starred = [
            each for call in nodes.calls(function) for each in call.args if each.star and code(each.value) == name
        ]
        if len(starred) == 1 and nodes.names(function.body).count(name) == 2:
            rest = nodes.with_body(function, [each for each in lines if each is not line])
            if isinstance(value, cst.Tuple):
                value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            return nodes.replace(rest, {name: value})
    return function


def _without_twins(lines: list[Any]) -> list[Any]:
    """Statements without repetitions, and without a name for a value that is returned at once."""
    found: list[Any] = []
    for line in lines:
        if (line := _without_repeats(line, found)) is None:
            continue
        made = nodes.as_assignment(line)
        last = found[-1] if found else None
        before = None if last is None else nodes.as_assignment(last)
        if made is not None and before is not None and _is_alone(*before) and code(made[0]) == code(before[0]):
            value = nodes.replace(made[1], {code(before[0]): before[1]})
            found[-1] = nodes.assignment(made[0], value, like=line)
            continue
        returned = nodes.small(line)
        value = returned.value if isinstance(returned, cst.Return) else None
        if value is not None and before is not None and nodes.is_name(before[0]) and nodes.same(value, before[0]):
            found[-1] = nodes.with_comments(cst.SimpleStatementLine([cst.Return(before[1])]), last)
        else:
            found.append(line)
    return found


def drop_guard(function: Any) -> Any:
    """Run a branch without its condition if later statements read its names: nobody has to prove that they exist."""
    lines = nodes.body_of(function)
    made = {each.name.value for each in nodes.parameters(function)}
    for number, line in enumerate(lines):
        if isinstance(line, cst.If) and isinstance(line.test, cst.BooleanOperation) and line.orelse is None:
            assigned = filter(None, map(nodes.as_assignment, line.body.body))
            own = {name for target, _ in assigned for name in nodes.names(target)} - made
            if own & nodes.live(lines[number + 1 :]):
                lines[number : number + 1] = folding.branch_body(line.body.body, line)
                return drop_guard(nodes.with_body(function, lines))
        made |= set(nodes.targets(line))
    return function


def join_lines(function: Any) -> Any:
    """Put the value of a short name that only the next statement reads, once, into that statement."""
    once = {name for name, number in Counter(nodes.targets(function.body)).items() if number == 1}
    return nodes.with_body(function, _join_lines(nodes.body_of(function), once))


def _join_lines(lines: list[Any], once: set[str]) -> list[Any]:
    found: list[Any] = []
    for number, line in enumerate(lines):
        if isinstance(line, cst.If) and isinstance(line.body, cst.IndentedBlock):
            line = nodes.with_body(line, _join_lines(list(line.body.body), once))
        while found and (new := _with_last(found[-1], line, lines[number + 1 :], once)) is not None:
            line = new
            found.pop()
        found.append(line)
    return found


def _with_last(last: Any, line: Any, after: list[Any], once: set[str]) -> Any:
    made = nodes.as_assignment(last)
    if made is None or not nodes.is_name(made[0]) or not isinstance(line, cst.SimpleStatementLine):
        return None
    name, value = code(made[0]), code(made[1])
    reads = nodes.names(line).count(name) - nodes.targets(line).count(name)
    again = nodes.targets(line) == (name,) and line.trailing_whitespace.comment is None  # `x = f(x)`, of no new shape
    alone = name in once and len(value) <= SHORT and name not in nodes.live(after)
    if reads != 1 or last.leading_lines or not (again or alone):
        return None
    new = nodes.replace(line, {name: made[1]})
    text = code(nodes.plain_brackets(new)).split("#")[0].strip()
    if again and len(text) <= LONG - len(" # (B, Q, d)"):
        new = nodes.with_comments(new, last)
    return new if len(text) <= LONG else None
