"""Find the line in which a backend's lesson computes a step, by reading the source; no framework is imported."""

import ast
import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from mha.core import dispatch
from mha.core.options.config import BENT
from mha.core.options.names import BackendName

# The function that computes each step, and the statement in it: a name that it assigns or keeps, or its number in the
# function, -1 for the last.
STEPS: dict[str, tuple[str, str | int]] = {
    **{name: ("MultiHeadAttention.project", name) for name in ("W_q", "W_k", "W_v")},
    **{f"reshape_{one}": ("transpose_qkv", -3) for one in "qkv"},
    **{f"permute_{one}": ("transpose_qkv", -2) for one in "qkv"},
    **{f"split_{one}": ("transpose_qkv", -1) for one in "qkv"},
    "norm_v": ("MultiHeadAttention.attend", "norm_v"),
    **{name: ("MultiHeadAttention.norm_heads", name) for name in ("norm_q", "norm_k")},
    **{name: ("MultiHeadAttention.transform_heads", name) for name in ("rotate_q", "rotate_k", "tempered_q")},
    "slots": ("slots_after", "slots"),
    **dict.fromkeys(("positions_after", "lost_after"), ("slots_after", "state")),
    **dict.fromkeys(("keys_after", "values_after"), ("remember", -3)),
    **{f"repeat_{one}": ("MultiHeadAttention.pool", "inputs") for one in "kv"},
    "scores": ("DotProductAttention.scores", -1),
    **{name: ("AttentionPooling.bend", name) for name in (*BENT, "biased")},
    "visible": ("MultiHeadAttention.zero_unused", "visible"),
    "visible_heads": ("repeat_heads", -1),
    "weights": ("AttentionPooling.weigh", "weights"),
    "pooled": ("AttentionPooling.weigh", "pooled"),
    "head_gated": ("gate", -1),
    "gated": ("gate_by", -1),
    "reshape_pooled": ("transpose_output", -3),
    "permute_pooled": ("transpose_output", -2),
    "merged": ("transpose_output", -1),
    "output": ("MultiHeadAttention.attend", "output"),
}


@dataclasses.dataclass(frozen=True)
class Statement:
    """A statement in a backend's source.

    file: its path in the folder of the backends, as "torch/heads.py"; line: its first line; function: the name of the
    function around it; source: its text, without indentation.
    """

    file: str
    line: int
    function: str
    source: str


def place(backend: BackendName, step: str, pooling: str = "dot", cached: bool = False) -> Statement:
    """The statement of a backend's lesson that computes a step of `STEPS`.

    pooling: "dot" or "additive"; cached: whether it is a step of a call with a cache.
    """
    name, statement = STEPS[step]
    if step == "visible" and cached:  # whose keys are known only behind the slots
        name = "MultiHeadAttention.pool"
    if step == "scores" and pooling == "additive":
        name = "AdditiveAttention.scores"
    file, lines, function = _functions(backend)[name]
    if isinstance(statement, int):
        found = function.body[statement]
    else:
        found = next(one for one in ast.walk(function) if isinstance(one, ast.stmt) and statement in _targets(one))
    source = textwrap.dedent("\n".join(lines[found.lineno - 1 : found.end_lineno]))
    return Statement(f"{backend}/{file}", found.lineno, function.name, source)


def stages(function: Callable, X: Any, *arguments: Any) -> list[Any]:
    """Run a function of a backend line by line; returns every X that a line computes, the result last."""
    definition: Any = ast.parse(inspect.getsource(function)).body[0]
    variables = dict(zip(inspect.signature(function).parameters, (X, *arguments), strict=True))
    found = []
    for statement in definition.body:
        if isinstance(statement, ast.Return) and statement.value:
            statement = ast.Assign([ast.Name("X", ast.Store())], statement.value)
        code = ast.fix_missing_locations(ast.Module([statement], []))
        exec(compile(code, inspect.getfile(function), "exec"), function.__globals__, variables)
        if "X" in _targets(statement):
            found.append(variables["X"])
    return found


@functools.cache
def _functions(backend: BackendName) -> dict[str, tuple[str, list[str], ast.FunctionDef]]:
    """The functions of all chapters by name, methods as Class.method, each with its file and the file's lines."""
    found = {}
    for chapter in dispatch.CHAPTERS:
        text = (dispatch.FOLDER / backend / f"{chapter}.py").read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            owner, inside = (f"{node.name}.", node.body) if isinstance(node, ast.ClassDef) else ("", [node])
            for one in inside:
                if isinstance(one, ast.FunctionDef):
                    found[owner + one.name] = f"{chapter}.py", text.splitlines(), one
    return found


def _targets(statement: ast.stmt) -> set[str]:
    """The names that a statement assigns to, and the names of the steps that it keeps."""
    if not isinstance(statement, ast.Assign | ast.Expr | ast.Return):
        return set()  # what is inside of others is a statement of its own
    targets = [part for target in getattr(statement, "targets", []) for part in ast.walk(target)]
    calls = [part for part in ast.walk(statement) if isinstance(part, ast.Call)]
    kept = {ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == "record_step"}
    return kept | {part.id for part in targets if isinstance(part, ast.Name)}
