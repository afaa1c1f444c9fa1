"""Small tools for syntax trees that keep comments: make libcst's nodes from text, change them, and look into them."""

import functools
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst

from mha.learn.write.trees.walking import Changing, walk

EMPTY = cst.Module([])
NONE, TRUE, FALSE = (cst.Name(name) for name in ("None", "True", "False"))


@functools.lru_cache(maxsize=100_000)
def code(node: cst.CSTNode) -> str:
    """The text of a node."""
    return EMPTY.code_for_node(node)


def expression(text: str) -> cst.BaseExpression:
    """The expression of this text."""
    return cst.parse_expression(text)


def statement(text: str) -> Any:
    """The statement of this text."""
    return cst.parse_statement(text)


def same(first: cst.CSTNode, second: cst.CSTNode) -> bool:
    """Whether two nodes read the same."""
    return first is second or code(first) == code(second)


def elements(value: cst.BaseExpression) -> list[cst.BaseExpression] | None:
    """The elements of a tuple without stars; None if it is anything else."""
    if isinstance(value, cst.Tuple) and all(isinstance(each, cst.Element) for each in value.elements):
        return [each.value for each in value.elements]
    return None


def tuple_of(values: Sequence[cst.BaseExpression], bare: bool = False) -> cst.BaseExpression:
    """A tuple of values, without brackets if it is bare; of one value, that value."""
    if len(values) == 1:
        return values[0]
    made = [cst.Element(value) for value in values]
    return cst.Tuple(made, lpar=[], rpar=[]) if bare else cst.Tuple(made)


def keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    """An argument by name."""
    bare = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(value, cst.Name(name), equal=bare)


def in_brackets(value: Any) -> Any:
    """An expression that can stand as a part of any other."""
    plain = cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float, cst.SimpleString, cst.List
    if isinstance(value, plain) or value.lpar:
        return value
    return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def is_name(value: cst.CSTNode) -> bool:
    """Whether an expression is a name, and no constant such as None."""
    return isinstance(value, cst.Name) and value.value not in ("None", "True", "False")


def small(line: cst.CSTNode) -> Any:
    """The single small statement of a line; None if the line is a block or has several."""
    if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
        return line.body[0]
    return None


def as_assignment(line: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """Target and value of an assignment to one target; None for anything else."""
    made = small(line)
    if isinstance(made, cst.Assign) and len(made.targets) == 1:
        return made.targets[0].target, made.value
    return None


def pairs(line: cst.CSTNode) -> list[tuple[Any, Any]]:
    """The pairs of target and value of an assignment, one for each part of a tuple; none for anything else."""
    made = as_assignment(line)
    if made is None:
        return []
    left, right = elements(made[0]), elements(made[1])
    if left is not None and right is not None and len(left) == len(right):
        return list(zip(left, right, strict=True))
    return [made]


def assignment(target: Any, value: cst.BaseExpression, like: Any = None) -> cst.SimpleStatementLine:
    """An assignment, with the comments of another line."""
    if isinstance(target, cst.Tuple):
        target = target.with_changes(lpar=[], rpar=[])
    if isinstance(value, cst.Tuple) and len(value.elements) > 1:
        value = value.with_changes(lpar=[], rpar=[])
    line = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(target)], value)])
    return line if like is None else with_comments(line, like)


def of_pairs(made: Sequence[tuple[Any, Any]], like: Any = None) -> cst.SimpleStatementLine:
    """One assignment of several values to their targets, with the comments of another line."""
    targets, values = zip(*made, strict=True)
    return assignment(tuple_of(targets, bare=True), tuple_of(values, bare=True), like=like)


def with_comments(line: Any, like: Any) -> Any:
    """A line with the comments of another one; its own comment stays if the other has none."""
    trailing = line.trailing_whitespace if like.trailing_whitespace.comment is None else like.trailing_whitespace
    return line.with_changes(trailing_whitespace=trailing, leading_lines=[*like.leading_lines, *line.leading_lines])


def is_docstring(line: cst.CSTNode) -> bool:
    """Whether a statement is only a text."""
    made = small(line)
    return isinstance(made, cst.Expr) and isinstance(made.value, cst.SimpleString | cst.ConcatenatedString)


def body_of(function: Any) -> list[Any]:
    """The statements of a function or class without its docstring."""
    body = list(function.body.body)
    return body[1:] if body and is_docstring(body[0]) else body


def with_body(function: Any, body: Sequence[Any]) -> Any:
    """A function, class or branch with its docstring and other statements; the same object if nothing changes."""
    if are(body, body_of(function)):
        return function
    before = [line for line in function.body.body[:1] if is_docstring(line)]
    return function.with_changes(body=function.body.with_changes(body=[*before, *body]))


def are(lines: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two lists hold the same objects."""
    return len(lines) == len(others) and all(map(operator.is_, lines, others))


def parameters(function: cst.FunctionDef) -> list[cst.Param]:
    """The parameters of a function that have names of their own, self included."""
    return [*function.params.params, *function.params.kwonly_params]


def with_parameters(function: cst.FunctionDef, parameters: Sequence[cst.Param]) -> cst.FunctionDef:
    """A function with other parameters in the place of those that come by position."""
    made = [each.with_changes(comma=cst.MaybeSentinel.DEFAULT) for each in parameters]
    return function.with_changes(params=function.params.with_changes(params=made))


@functools.lru_cache(maxsize=10_000)
def names(node: cst.CSTNode) -> tuple[str, ...]:
    """The names that are read or written in a node, without attributes and keywords."""
    if isinstance(node, cst.IndentedBlock):  # whose lines are cached, too
        return tuple(name for line in node.body for name in names(line))
    return tuple(each.value for each in walk(node) if isinstance(each, cst.Name))


@functools.lru_cache(maxsize=10_000)
def targets(node: cst.CSTNode) -> tuple[str, ...]:
    """The names that a node assigns to, each as often as it is assigned."""
    if isinstance(node, cst.IndentedBlock):
        return tuple(name for line in node.body for name in targets(line))
    kinds = cst.AssignTarget, cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr
    return tuple(name for each in walk(node) if isinstance(each, kinds) for name in _stored(each.target))


def _stored(target: Any) -> list[str]:
    if isinstance(target, cst.Name):
        return [target.value]
    return [name for each in getattr(target, "elements", ()) for name in _stored(each.value)]


class Replacing(Changing):
    """Replace names and attributes by what a function of their text and node returns; None = no change."""

    def __init__(self, found: Callable[[str, Any], cst.BaseExpression | None], stores: bool = False) -> None:
        self.found, self.stores = found, stores

    def visit_AssignTarget(self, node: cst.AssignTarget) -> bool:
        return self.stores

    def leave_Attribute(self, node: cst.Attribute, new: cst.Attribute) -> Any:
        made = self.found(code(node), node)
        if made is not None or new is node:
            return made or node
        return new.with_changes(value=in_brackets(new.value))

    def leave_Name(self, node: cst.Name, new: cst.Name) -> Any:
        return self.found(node.value, node) or node

    def visit_CompFor(self, node: cst.CompFor) -> bool:
        return self.stores

    def leave_CompFor(self, node: cst.CompFor, new: cst.CompFor) -> Any:
        if self.stores:
            return new
        inner = None if node.inner_for_in is None else self.change(node.inner_for_in)
        return node.with_changes(iter=self.change(node.iter), ifs=self.change_all(node.ifs), inner_for_in=inner)


def replace(node: Any, by: dict[str, cst.BaseExpression], stores: bool = False) -> Any:
    """A node with other expressions in the place of names or dotted names that it reads; stores: or writes."""

    def new_for(text: str, old: Any) -> cst.BaseExpression | None:
        new: Any = by.get(text)
        if new is None:
            return None
        return in_brackets(new.deep_clone()) if not isinstance(new, cst.Name) else new.deep_clone()

    return Replacing(new_for, stores).change(node)


class _Mapping(Changing):
    def __init__(self, function: Callable[[cst.Call], Any]) -> None:
        self.function = function

    def leave_Call(self, node: cst.Call, new: cst.Call) -> Any:
        return self.function(new)


def map_calls(node: Any, function: Callable[[cst.Call], Any]) -> Any:
    """A node with function(call) in the place of each call in it, the inner ones first."""
    return _Mapping(function).change(node)


@functools.lru_cache(maxsize=10_000)
def calls(node: cst.CSTNode) -> tuple[cst.Call, ...]:
    """The calls in a node."""
    if isinstance(node, cst.FunctionDef):
        return tuple(call for line in node.body.body for call in calls(line))
    return tuple(each for each in walk(node) if isinstance(each, cst.Call))


@functools.lru_cache(maxsize=10_000)
def returns(node: cst.CSTNode) -> int:
    """The number of returns in a node."""
    return sum(isinstance(each, cst.Return) for each in walk(node))


def map_lines(node: Any, function: Callable[[list[Any]], list[Any]]) -> Any:
    """A function, class or statement with function(statements) in the place of each block's, the inner ones first.

    A part that does not change stays the same object, since results about it are cached.
    """
    body, orelse = getattr(node, "body", None), getattr(node, "orelse", None)
    if isinstance(body, cst.IndentedBlock):
        lines = [map_lines(line, function) for line in body.body]
        lines = function(lines) or [statement("pass\n")]
        if not are(lines, body.body):
            node = node.with_changes(body=body.with_changes(body=lines))
    if orelse is not None and not isinstance(orelse, cst.BaseExpression):
        changed = map_lines(orelse, function)
        if changed is not orelse:
            node = node.with_changes(orelse=changed)
    return node


def map_each(node: Any, function: Callable[[Any], list[Any]]) -> Any:
    """A function, class or statement with the statements function(statement) in the place of each, the inner first."""
    return map_lines(node, lambda lines: [new for line in lines for new in function(line)])


def live(lines: list[Any]) -> set[str]:
    """The names that statements read before they assign them."""
    found: set[str] = set()
    dead: set[str] = set()
    for line in lines:
        written = targets(line) if isinstance(line, cst.SimpleStatementLine) else ()
        found |= (Counter(names(line)) - Counter(written)).keys() - dead
        dead |= set(written)
    return found


def plain_brackets(tree: Any) -> Any:
    """A tree without brackets around whole arguments, values and elements."""

    class Brackets(Changing):
        def leave_Arg(self, node: cst.Arg, new: cst.Arg) -> Any:
            return new if new.star else self.leave_Element(node, new)

        def leave_Element(self, node: Any, new: Any) -> Any:
            return new.with_changes(value=_bare(new.value))

        def leave_Assign(self, node: cst.Assign, new: cst.Assign) -> Any:
            return self.leave_Element(node, new)

        def leave_Index(self, node: cst.Index, new: cst.Index) -> Any:
            return self.leave_Element(node, new)

        def leave_Return(self, node: cst.Return, new: cst.Return) -> Any:
            if isinstance(new.value, cst.Tuple) and len(new.value.elements) > 1:
                return new.with_changes(value=new.value.with_changes(lpar=[], rpar=[]))
            return new if new.value is None else self.leave_Element(node, new)

        def leave_If(self, node: cst.If, new: cst.If) -> Any:
            return new.with_changes(test=_bare(new.test))

    return Brackets().change(tree)


def _bare(value: Any) -> Any:
    if isinstance(value, cst.Tuple | cst.GeneratorExp | cst.Yield | cst.NamedExpr) or not value.lpar:
        return value
    return value.with_changes(lpar=value.lpar[1:], rpar=value.rpar[1:])
