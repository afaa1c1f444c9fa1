"""Which module imports which, read from the sources of `mha`, its backends, the tests and the scripts of docs/."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def sources(root: Path = ROOT) -> dict[str, Path]:
    """The files of a checkout by the names of their modules, which tests import by file in tests/ and docs/."""
    found = {}
    for folder, name in {"mha": "mha", "backends": "mha.backends", "tests": "", "docs": "", "examples": ""}.items():
        for path in (root / folder).rglob("*.py"):
            parts = path.relative_to(root / folder).with_suffix("").parts
            if "backends" not in parts:  # a link in mha/
                parts = parts[1:] if parts[0] in ("helpers", "programs") else parts
                full = [*name.split("."), *parts] if name else parts
                found[".".join(full).removesuffix(".__init__")] = path
    return found


def modules(named: Mapping[str, Path]) -> dict[str, set[str]]:
    """The modules of these names, each with those that it imports, wherever it does."""
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in named.items()}
    packages = {name: name if path.name == "__init__.py" else name.rpartition(".")[0] for name, path in named.items()}
    return {name: set(_imports(packages[name], named, ast.walk(tree))) for name, tree in trees.items()}


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
