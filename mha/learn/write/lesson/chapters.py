"""Read the lesson of a framework as syntax trees: the definitions of its chapters by name, and their imports."""

import dataclasses
import functools
from typing import Any

import libcst as cst

from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.names import BackendName
from mha.learn.write.lesson import caching, layering
from mha.learn.write.lesson.variants import nnx
from mha.learn.write.trees import nodes
from mha.learn.write.trees.nodes import code
from mha.learn.write.trees.program import LAYER, Program

ASKED = {"tensorflow": ("compute_mask", "supports_masking")}  # by Keras: what becomes of a mask
READ = ("hiding", "pooling", "heads", "weights", "slots", "cache", "layer", "arrays")


def program(backend: BackendName, kind: str | None = None) -> Program:
    """Read the lesson of a framework as one program, without the needs of a library; no framework is imported.

    kind: of its modules, None = the lesson's.
    """
    made = _read(backend, kind)
    return dataclasses.replace(made, definitions=dict(made.definitions), imports=dict(made.imports))


@functools.lru_cache
def _read(backend: BackendName, kind: str | None) -> Program:
    definitions: dict[str, Any] = {}
    imports: dict[str, str] = {}
    for chapter in READ:
        path = dispatch.FOLDER / backend / f"{chapter}.py"
        for line in cst.parse_module(path.read_text()).body:
            if isinstance(line, cst.FunctionDef | cst.ClassDef):
                definitions.setdefault(line.name.value, line)
            elif (made := nodes.as_assignment(line)) is not None and isinstance(made[0], cst.Name):
                definitions.setdefault(made[0].value, line)
            elif isinstance(nodes.small(line), cst.Import | cst.ImportFrom):
                imports |= _imports(nodes.small(line))
    definitions["FURTHEST"] = nodes.statement(f"FURTHEST = {checks.FURTHEST}\n")
    entry = dispatch.facts("METHOD", "__call__")[backend]
    setup = "setup" if "def setup" in code(definitions[LAYER]) else "__init__"
    lesson = Program(definitions, imports, entry, setup, ASKED.get(backend, ()))
    layering.to_one_class(lesson, backend)
    if kind == "nnx":
        nnx.use_nnx(lesson)
    caching.use_tuple(lesson, backend)
    return lesson


def _imports(line: Any) -> dict[str, str]:
    """The statements that import each name, of modules outside of `mha`."""
    module = "" if isinstance(line, cst.Import) else "." if line.relative else code(line.module)
    if module.startswith((".", "mha")):
        return {}
    start = f"from {module} import" if module else "import"
    return {
        each.evaluated_alias or each.evaluated_name.split(".")[0]: f"{start} {code(each).rstrip(', ')}"
        for each in line.names
        if not each.evaluated_name.startswith("mha")
    }
