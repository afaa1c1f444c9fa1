"""Which module imports which, read from the sources of `mha`, its backends, the tests and the scripts of docs/."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def sources(root: Path = ROOT) -> dict[str, Path]:
    """The files of a checkout by the names of their modules, which tests import by file in tests/ and docs/."""
    found = {}
    for folder, name in {"mha": "mha", "backends": "mha.backends", "tests": "", "docs": "", "examples": ""}.items():
        for path in (root / folder).rglob("*.py"):
            parts = path.relative_to(root / folder).with_suffix("").parts
            if "backends" not in parts:  # a link in mha/
                full = [*name.split("."), *parts] if name else parts
                found[".".join(full).removesuffix(".__init__")] = path
    return found


def modules(named: Mapping[str, Path], typed: bool = True) -> dict[str, set[str]]:
    """The modules of these names, each with those that it imports, wherever it does.

    typed: also what is imported for type checkers alone.
    """
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in named.items()}
    packages = {name: name if path.name == "__init__.py" else name.rpartition(".")[0] for name, path in named.items()}
    return {name: set(_imports(packages[name], named, _nodes(tree, typed))) for name, tree in trees.items()}


def _nodes(tree: ast.AST, typed: bool) -> Iterator[ast.AST]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if typed or not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            waiting += ast.iter_child_nodes(node)


def _imports(package: str, named: Mapping[str, Path], nodes: Iterator[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in named)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            of = ".".join([*above, *filter(None, [node.module])])
            for one in node.names:
                yield from [name for name in (f"{of}.{one.name}", of) if name in named][:1]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mha":
            yield from [name for name in [f"mha.{node.attr}"] if name in named]  # which mha imports when it is used


def distances(start: str, graph: Mapping[str, set[str]]) -> dict[str, int]:
    """By how many imports a module reaches each of those that it reaches; itself by 0."""
    found, now = {start: 0}, [start]
    while now:
        later = dict.fromkeys(name for one in now for name in graph[one] if name not in found)
        found |= dict.fromkeys(later, found[now[0]] + 1)
        now = list(later)
    return found
