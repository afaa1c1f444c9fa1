"""The files `of_NAME.py` in a folder of the tests, each with the models of a framework: what each says of itself."""

import ast
from pathlib import Path


def said(place):
    """What stands in capitals in the files beside one, by their NAMES, where it says its BACKEND; none is imported."""
    every = {}
    for path in sorted(Path(place).parent.glob("of_*.py")):
        plain = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
        named = {node.targets[0].id: node.value for node in plain if isinstance(node.targets[0], ast.Name)}
        every[path.stem.removeprefix("of_")] = {
            name: ast.literal_eval(value)
            for name, value in named.items()
            if name in ("BACKEND", "KINDS", "LIKE", "PATHS")
        }
    return {name: one for name, one in every.items() if "BACKEND" in one}
