"""Decide what is known before a call: conditions of options that are there or not, and what follows from them.

What is known of an expression stands under its text: a constant; `PRESENT`, neither None nor false; or a tuple of such.
"""

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import libcst as cst

from mha.written.trees import nodes
from mha.written.trees.nodes import code

PRESENT = object()
UNKNOWN = object()
COMPARED: dict[type, Callable[[Any, Any], bool]] = {cst.Equal: operator.eq, cst.NotEqual: operator.ne}


def folded(node: Any, known: Mapping[str, Any]) -> Any:
    """A node with constants for names and attributes whose values are known, and without branches that never run."""
    if not isinstance(node, cst.FunctionDef):
        return node.visit(_Folding(known))
    lines: list[Any] = []
    for line in node.body.body:
        made = line.visit(_Folding(known))
        if isinstance(made, cst.FlattenSentinel):
            lines += made
        elif not isinstance(made, cst.RemovalSentinel):
            lines.append(line if nodes.same(line, made) else made)
    return node.with_changes(body=node.body.with_changes(body=lines or [nodes.statement("pass\n")]))


def value_of(node: cst.BaseExpression, known: Mapping[str, Any]) -> Any:
    """What is known of an expression: a constant, PRESENT, a tuple of such, or UNKNOWN."""
    if (text := code(node)) in known:
        return known[text]
    values = nodes.elements(node)
    if values is not None:
        return tuple(value_of(each, known) for each in values)
    if isinstance(node, cst.Comparison | cst.BooleanOperation | cst.UnaryOperation | cst.IfExp):
        made = folded(node, known)
        return UNKNOWN if type(made) is type(node) and nodes.same(made, node) else value_of(made, known)
    if isinstance(node, cst.List | cst.Dict) and node.elements:
        return PRESENT
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return UNKNOWN


def literal(value: Any) -> cst.BaseExpression | None:
    """The expression of a constant; None for what has no such, or none that is short."""
    if value is None or isinstance(value, (bool, str, int, float)) or value in ((), {}):
        return nodes.expression(repr(value).replace("'", '"'))
    return None


def truth(node: cst.BaseExpression, known: Mapping[str, Any]) -> bool | None:
    """Whether an expression is true; None = that is not known."""
    if isinstance(node, cst.BooleanOperation):
        decides = isinstance(node.operator, cst.Or)
        if decides in (truth(node.left, known), truth(node.right, known)):
            return decides
    value = value_of(node, known)
    if value is UNKNOWN:
        return None
    return True if value is PRESENT else bool(value)


def is_constant(value: cst.BaseExpression) -> bool:
    """Whether an expression is a constant that is as short to write as a name."""
    known = value_of(value, {})
    return known is not UNKNOWN and known is not PRESENT and literal(known) is not None


def is_none(value: Any) -> bool | None:
    """Whether something of which this is known is None; None = that is not known."""
    return None if value is UNKNOWN else value is None


class _Folding(nodes.Replacing):
    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__(self.constant)
        self.known = known

    def constant(self, text: str, node: Any) -> cst.BaseExpression | None:
        value = self.known.get(text, UNKNOWN)
        return None if value is UNKNOWN or value is PRESENT else literal(value)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        holds = truth(updated_node.test, self.known)
        if holds is None:
            return updated_node
        if holds:
            return cst.FlattenSentinel(led(updated_node.body.body, updated_node))
        orelse = updated_node.orelse
        if orelse is None:
            return cst.RemoveFromParent()
        return orelse if isinstance(orelse, cst.If) else cst.FlattenSentinel(orelse.body.body)

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> Any:
        holds = truth(updated_node.test, self.known)
        if holds is None:
            if nodes.same(updated_node.body, updated_node.orelse):
                return updated_node.body
            return updated_node
        return updated_node.body if holds else updated_node.orelse

    def leave_BooleanOperation(self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation) -> Any:
        left, right = updated_node.left, updated_node.right
        holds = truth(left, self.known)
        if holds is not None:
            return right if holds == isinstance(updated_node.operator, cst.And) else left
        if truth(right, self.known) is isinstance(updated_node.operator, cst.And):
            return left  # `x and True`, `x or False`: where only the truth of x counts
        return updated_node

    def leave_UnaryOperation(self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation) -> Any:
        if not isinstance(updated_node.operator, cst.Not):
            return updated_node
        inner = updated_node.expression
        holds = truth(inner, self.known)
        if holds is not None:
            return nodes.FALSE if holds else nodes.TRUE
        if isinstance(inner, cst.Comparison) and len(inner.comparisons) == 1:
            part = inner.comparisons[0]
            if isinstance(part.operator, cst.Is):
                return inner.with_changes(comparisons=[part.with_changes(operator=cst.IsNot())], lpar=[], rpar=[])
        return updated_node

    def leave_Comparison(self, original_node: cst.Comparison, updated_node: cst.Comparison) -> Any:
        operands = [updated_node.left, *(part.comparator for part in updated_node.comparisons)]
        kinds = {type(part.operator) for part in updated_node.comparisons}
        values = [value_of(each, self.known) for each in operands]
        if kinds == {cst.Is} and (None in values or len(values) > 2):
            return self._all_none(updated_node, operands, values)
        if kinds == {cst.IsNot} and len(values) == 2 and values[1] is None and is_none(values[0]) is not None:
            return nodes.FALSE if values[0] is None else nodes.TRUE
        if len(values) == 2 and UNKNOWN not in values and PRESENT not in values:
            compared = COMPARED.get(next(iter(kinds)))
            if compared is not None:
                return nodes.TRUE if compared(*values) else nodes.FALSE
        return updated_node

    def _all_none(self, node: cst.Comparison, operands: list[Any], values: list[Any]) -> Any:
        """A chain `a is b is None`: whether all are None."""
        left = [each for each, value in zip(operands, values, strict=True) if is_none(value) is None]
        if any(is_none(value) is False for value in values):
            return nodes.FALSE
        if not left:
            return nodes.TRUE
        if len(left) == len(operands):
            return node
        parts = [cst.ComparisonTarget(cst.Is(), each) for each in [*left[1:], nodes.NONE]]
        return node.with_changes(left=left[0], comparisons=parts)

    def leave_BinaryOperation(self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation) -> Any:
        left, right, sign = updated_node.left, updated_node.right, type(updated_node.operator)
        ones = [value_of(each, self.known) for each in (left, right)]
        if sign is cst.FloorDivide and nodes.same(left, right):
            return cst.Integer("1")
        if sign is cst.Multiply and type(ones[0]) in (int, float) and ones[0] == 1:
            return right
        if sign in (cst.Multiply, cst.FloorDivide) and type(ones[1]) in (int, float) and ones[1] == 1:
            return left
        if sign in (cst.Add, cst.Subtract) and type(ones[1]) is int and ones[1] == 0:
            return left
        if sign is cst.Add and type(ones[0]) is int and ones[0] == 0:
            return right
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Any:
        """Without `**{}`, and with the arguments that a dict or a tuple after stars has."""
        arguments: list[cst.Arg] = []
        for each in updated_node.args:
            values = nodes.elements(each.value)
            if each.star == "**" and isinstance(each.value, cst.Dict):
                entries: Any = each.value.elements
                for one in entries:
                    arguments.append(nodes.keyword(ast.literal_eval(code(one.key)), one.value))
            elif each.star == "*" and values is not None:
                arguments += [cst.Arg(value) for value in values]
            else:
                arguments.append(each)
        return updated_node.with_changes(args=arguments)

    def leave_Tuple(self, original_node: cst.Tuple, updated_node: cst.Tuple) -> Any:
        """Elements of a tuple after a star, as elements; a starred thing alone, itself."""
        found: list[Any] = []
        for each in updated_node.elements:
            inner = nodes.elements(each.value) if isinstance(each, cst.StarredElement) else None
            found += [each] if inner is None else [cst.Element(value) for value in inner]
        return updated_node.with_changes(elements=found)


def led(lines: Iterable[Any], by: cst.If) -> list[Any]:
    """The statements of a branch that always runs, with the comments before it."""
    first, *rest = lines
    return [first.with_changes(leading_lines=[*by.leading_lines, *first.leading_lines]), *rest]


def without_what_never_runs(lines: list[Any]) -> list[Any]:
    """The statements of a block up to the first that ends it."""
    for number, line in enumerate(lines):
        if isinstance(nodes.small(line), cst.Return | cst.Raise):
            return lines[: number + 1]
    return lines
