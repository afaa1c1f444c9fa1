"""Fold what is known before a call: constants, conditions on options, and the branches that these decide.

Known values have the text of their expression for a key: a constant; `PRESENT`, neither None nor false; or a tuple.
"""

import ast
from collections.abc import Iterable, Mapping
from typing import Any

import libcst as cst

from mha.learn.write.trees import nodes
from mha.learn.write.trees.nodes import code

PRESENT = object()
UNKNOWN = object()
ONE = "1", "1.0"


def fold(node: Any, known: Mapping[str, Any]) -> Any:
    """A node with constants in the place of known names and attributes, and without branches that never run."""
    folding = _Folding(known)
    if not isinstance(node, cst.FunctionDef):
        return folding.change(node)
    return nodes.with_body(node, folding.change_all(nodes.body_of(node)) or [nodes.statement("pass\n")])


def value_of(node: cst.BaseExpression, known: Mapping[str, Any]) -> Any:
    """The known value of an expression: a constant, PRESENT, a tuple of such, or UNKNOWN."""
    if (text := code(node)) in known:
        return known[text]
    values = nodes.elements(node)
    if values is not None:
        return tuple(value_of(each, known) for each in values)
    if isinstance(node, cst.Comparison | cst.BooleanOperation | cst.UnaryOperation | cst.IfExp):
        made = fold(node, known)
        return UNKNOWN if type(made) is type(node) and nodes.same(made, node) else value_of(made, known)
    if isinstance(node, cst.List | cst.Dict) and node.elements:
        return PRESENT
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return UNKNOWN


def literal(value: Any) -> cst.BaseExpression | None:
    """The expression of a constant; None if it has no short one."""
    if value is None or isinstance(value, (bool, str, int, float)) or value in ((), {}):
        return nodes.expression(repr(value).replace("'", '"'))
    return None


def truth(node: cst.BaseExpression, known: Mapping[str, Any]) -> bool | None:
    """Whether an expression is true; None = unknown."""
    if isinstance(node, cst.BooleanOperation):
        decides = isinstance(node.operator, cst.Or)
        if decides in (truth(node.left, known), truth(node.right, known)):
            return decides
    value = value_of(node, known)
    if value is UNKNOWN:
        return None
    return True if value is PRESENT else bool(value)


def is_constant(value: cst.BaseExpression) -> bool:
    """Whether an expression is a constant as short as a name."""
    known = value_of(value, {})
    return known is not UNKNOWN and known is not PRESENT and literal(known) is not None


class _Folding(nodes.Replacing):
    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__(self.constant)
        self.known = known

    def constant(self, text: str, node: Any) -> cst.BaseExpression | None:
        value = self.known.get(text, UNKNOWN)
        return None if value is UNKNOWN or value is PRESENT else literal(value)

    def leave_If(self, node: cst.If, new: cst.If) -> Any:
        holds = truth(new.test, self.known)
        if holds is None:
            return new
        if holds:
            return cst.FlattenSentinel(branch_body(new.body.body, new))
        orelse = new.orelse
        if orelse is None:
            return cst.RemoveFromParent()
        return orelse if isinstance(orelse, cst.If) else cst.FlattenSentinel(orelse.body.body)

    def leave_IfExp(self, node: cst.IfExp, new: cst.IfExp) -> Any:
        holds = truth(new.test, self.known)
        return new if holds is None else new.body if holds else new.orelse

    def leave_BooleanOperation(self, node: cst.BooleanOperation, new: cst.BooleanOperation) -> Any:
        left, right = new.left, new.right
        holds = truth(left, self.known)
        if holds is not None:
            return right if holds == isinstance(new.operator, cst.And) else left
        if truth(right, self.known) is isinstance(new.operator, cst.And):
            return left  # `x and True`, `x or False`: where only the truth of x counts
        return new

    def leave_UnaryOperation(self, node: cst.UnaryOperation, new: cst.UnaryOperation) -> Any:
        if not isinstance(new.operator, cst.Not):
            return new
        inner = new.expression
        holds = truth(inner, self.known)
        if holds is not None:
            return nodes.FALSE if holds else nodes.TRUE
        if isinstance(inner, cst.Comparison) and len(inner.comparisons) == 1:
            part = inner.comparisons[0]
            if isinstance(part.operator, cst.Is):
                return inner.with_changes(comparisons=[part.with_changes(operator=cst.IsNot())], lpar=[], rpar=[])
        return new

    def leave_Comparison(self, node: cst.Comparison, new: cst.Comparison) -> Any:
        operands = [new.left, *(part.comparator for part in new.comparisons)]
        values = [value_of(each, self.known) for each in operands]
        kind = type(new.comparisons[0].operator)
        if kind is cst.Is and (None in values or len(values) > 2):
            return self._all_none(new, operands, values)
        if kind is cst.IsNot and values[1] is None and values[0] is not UNKNOWN:
            return nodes.FALSE if values[0] is None else nodes.TRUE
        if kind in (cst.Equal, cst.NotEqual) and UNKNOWN not in values and PRESENT not in values:
            return nodes.TRUE if (values[0] == values[1]) == (kind is cst.Equal) else nodes.FALSE
        return new

    def _all_none(self, node: cst.Comparison, operands: list[Any], values: list[Any]) -> Any:
        """Fold a chain `a is b is None`: whether all are None."""
        left = [each for each, value in zip(operands, values, strict=True) if value is UNKNOWN]
        if any(value is not None and value is not UNKNOWN for value in values):
            return nodes.FALSE
        if not left:
            return nodes.TRUE
        if len(left) == len(operands):
            return node
        parts = [cst.ComparisonTarget(cst.Is(), each) for each in [*left[1:], nodes.NONE]]
        return node.with_changes(left=left[0], comparisons=parts)

    def leave_BinaryOperation(self, node: cst.BinaryOperation, new: cst.BinaryOperation) -> Any:
        left, right, sign = code(new.left), code(new.right), type(new.operator)
        if sign is cst.FloorDivide and left == right:
            return cst.Integer("1")
        if (sign is cst.Multiply and left in ONE) or (sign is cst.Add and left == "0"):
            return new.right
        return new.left if sign in (cst.Multiply, cst.FloorDivide) and right in ONE else new

    def leave_Call(self, node: cst.Call, new: cst.Call) -> Any:
        """Drop `**{}`, and write the arguments of a dict or a tuple after stars one by one."""
        if not any(each.star for each in new.args):
            return new
        arguments: list[cst.Arg] = []
        for each in new.args:
            values = nodes.elements(each.value)
            if each.star == "**" and isinstance(each.value, cst.Dict):
                entries: Any = each.value.elements
                for one in entries:
                    arguments.append(nodes.keyword(ast.literal_eval(code(one.key)), one.value))
            elif each.star == "*" and values is not None:
                arguments += [cst.Arg(value) for value in values]
            else:
                arguments.append(each)
        return new.with_changes(args=arguments)

    def leave_Tuple(self, node: cst.Tuple, new: cst.Tuple) -> Any:
        """Write the elements of a tuple after a star one by one; a starred value alone becomes that value."""
        if not any(isinstance(each, cst.StarredElement) for each in new.elements):
            return new
        found: list[Any] = []
        for each in new.elements:
            inner = nodes.elements(each.value) if isinstance(each, cst.StarredElement) else None
            found += [each] if inner is None else [cst.Element(value) for value in inner]
        return new.with_changes(elements=found)


def branch_body(lines: Iterable[Any], by: cst.If) -> list[Any]:
    """The statements of a branch that always runs, after the comments of its head."""
    first, *rest = lines
    return [first.with_changes(leading_lines=[*by.leading_lines, *first.leading_lines]), *rest]


def without_what_never_runs(lines: list[Any]) -> list[Any]:
    """The statements of a block up to the first that ends it."""
    for number, line in enumerate(lines):
        if isinstance(nodes.small(line), cst.Return | cst.Raise):
            return lines[: number + 1]
    return lines
