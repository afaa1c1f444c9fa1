"""The mutants of a source: each is one small change of its syntax tree that a test should notice.

Not of docstrings and other texts, annotations, decorators, or what only type checkers read.
"""

import ast
import collections
import dataclasses
from collections.abc import Iterator

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn,
    ast.Add: ast.Sub, ast.Mult: ast.Div, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.And: ast.Or,
}  # fmt: skip
OPERATORS |= {other: one for one, other in OPERATORS.items()}
OPERATORS |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult}
NAMES = {"min": "max", "any": "all", "minimum": "maximum", "argmin": "argmax", "floor": "ceil", "zeros": "ones"}
NAMES |= {other: one for one, other in NAMES.items()}
SYMMETRIC = ("min", "max", "smaller", "larger", "minimum", "maximum", "array_equal")  # whose arguments may be swapped
UNSEEN = ("annotation", "returns", "decorator_list")  # fields of nodes that are left as they are
GUARDS = ("strict", "encoding")  # arguments that ask Python for what it does here anyway
DROPPED = (ast.Raise, ast.AugAssign, ast.Delete, ast.Break, ast.Continue)


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of a file.

    line: where it is; function: in which; before, after: the code that changes; number: of those in the function that
    change the same code so; start, end: bytes of the source that text takes the place of.
    """

    file: str
    line: int
    function: str
    before: str
    after: str
    number: int
    start: int
    end: int
    text: str

    def planted(self, source: str) -> str:
        """The source of the file with the change."""
        whole = source.encode()
        return (whole[: self.start] + self.text.encode() + whole[self.end :]).decode()

    @property
    def name(self) -> str:
        """What it changes, in words that stay the same while other code changes."""
        place = f"{self.function}: " if self.function else ""
        return f"{place}{self.before} -> {self.after}{f' ({self.number})' if self.number > 1 else ''}"


def mutants(file: str, source: str) -> list[Mutant]:
    """All mutants of a source, in its order."""
    starts = [0]
    for line in source.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    found, alike = [], collections.Counter[tuple[str, str, str]]()
    tree = ast.parse(source)
    rests = [operand for node in ast.walk(tree) for operand in _rests(node)]
    for node, whole, function in _nodes(tree, None, ""):
        if node in rests:
            continue
        old = node.test if isinstance(node, ast.If) else node
        place = whole or old
        start = starts[place.lineno - 1] + place.col_offset
        end = starts[place.end_lineno - 1] + place.end_col_offset  # type: ignore[operator]
        for new in _changes(node):
            outer = _with(whole, old, new) if whole else new
            text = f"({ast.unparse(outer)})" if isinstance(outer, ast.expr) else ast.unparse(outer)
            named = function, _on_one_line(old), _on_one_line(new)
            alike[named] += 1
            found.append(Mutant(file, old.lineno, *named, alike[named], start, end, text))
    return found


def _nodes(
    node: ast.AST, whole: ast.JoinedStr | None, function: str
) -> Iterator[tuple[ast.expr | ast.stmt, ast.JoinedStr | None, str]]:
    """The statements and expressions that may change, each with the f-string that it is in, and the function.

    Before Python 3.12, no place of a node in an f-string was right: the f-string is replaced as a whole.
    """
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
        return
    if isinstance(node, (ast.expr, ast.stmt)):
        yield node, whole, function
    if isinstance(node, ast.JoinedStr):
        whole = whole or node
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        function = f"{function}.{node.name}".removeprefix(".")
    for field, value in ast.iter_fields(node):
        if field not in UNSEEN and not (isinstance(node, ast.keyword) and node.arg in GUARDS):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child, whole, function)


def _changes(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """What a node may be changed to, itself left as it is."""
    match node:
        case ast.Compare(ops=operators):
            for i, one in enumerate(operators):
                yield _set(node, ops=[*operators[:i], OPERATORS[type(one)](), *operators[i + 1 :]])
        case ast.BoolOp(op=operator, values=values):
            yield _set(node, op=OPERATORS[type(operator)]())
            for i in range(len(values)):
                rest = [*values[:i], *values[i + 1 :]]
                yield _set(node, values=rest) if len(rest) > 1 else rest[0]
        case ast.BinOp(op=operator) if type(operator) in OPERATORS and not (
            _is_text(node.left) or _is_text(node.right)
        ):
            yield _set(node, op=OPERATORS[type(operator)]())
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield from (ast.Constant(value + 1), *[ast.Constant(value - 1)] * (value > 0))
        case ast.Constant(value=float() as value):
            yield from (ast.Constant(value * 2), ast.Constant(value / 2)) if value else (ast.Constant(1.0),)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.IfExp():
            yield _set(node, body=node.orelse, orelse=node.body)
        case ast.If(test=ast.Name() | ast.Call() | ast.Attribute() as test):
            yield ast.UnaryOp(ast.Not(), test)  # in the place of the test alone
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in ("None", "False"):  # conditions, both
            yield ast.Return(ast.Constant(None))
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            for i, one in enumerate(node.generators):
                if one.ifs:
                    yield _set(node, generators=[*node.generators[:i], _set(one, ifs=[]), *node.generators[i + 1 :]])
        case ast.Call():
            yield from _calls(node)
        case ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield ast.Pass()
        case _ if isinstance(node, DROPPED):
            yield ast.Pass()


def _calls(node: ast.Call) -> Iterator[ast.Call]:
    """What a call may be changed to: less one named argument, its first two swapped, or another function or order."""
    for i, keyword in enumerate(node.keywords):
        if keyword.arg and keyword.arg not in GUARDS:
            yield _set(node, keywords=[*node.keywords[:i], *node.keywords[i + 1 :]])
    first, second, *rest = [*node.args, None, None][: max(2, len(node.args))]
    starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
    fixed = starred or ast.unparse(node.func).rpartition(".")[2] in SYMMETRIC
    if second is not None and not fixed and ast.dump(first) != ast.dump(second):  # type: ignore[arg-type]
        yield _set(node, args=[second, first, *rest])
    if ast.unparse(node.func).rpartition(".")[2] in ("sorted", "sort"):
        yield _set(node, keywords=[*node.keywords, ast.keyword("reverse", ast.Constant(True))])
        for keyword in node.keywords:
            match keyword.value:
                case ast.Lambda(body=ast.Tuple(elts=[one, next_one, *others])) as key:  # what comes first in the order
                    yield _with(node, key, _set(key, body=ast.Tuple([next_one, one, *others])))
    if isinstance(node.func, ast.Name) and node.func.id in NAMES:
        yield _set(node, func=ast.Name(NAMES[node.func.id]))
    if isinstance(node.func, ast.Attribute) and node.func.attr in NAMES:
        yield _set(node, func=_set(node.func, attr=NAMES[node.func.attr]))


def _rests(node: ast.AST) -> list[ast.expr]:
    """The 1 of each -1 that stands for the rest in a reshape, where NumPy takes any number below 0 for it."""
    match node:
        case ast.Call(func=ast.Attribute(attr="reshape"), args=sizes):
            return [one.operand for one in sizes if isinstance(one, ast.UnaryOp)]
    return []


def _set(node, **fields):
    """A copy of a node with other fields."""
    return type(node)(**dict(ast.iter_fields(node)) | fields)


def _with(whole, node, after):
    """A copy of a tree with another node in the place of one."""
    if whole is node:
        return after
    if isinstance(whole, list):
        return [_with(one, node, after) for one in whole]
    if isinstance(whole, ast.AST):
        return type(whole)(**{field: _with(value, node, after) for field, value in ast.iter_fields(whole)})
    return whole


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _on_one_line(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())
