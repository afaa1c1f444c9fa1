"""Finish a file: the constructor's arguments, the docstrings, the imports, and the format."""

import re
import subprocess
import sys
from typing import Any

import libcst as cst

from mha.core.options.config import Config
from mha.core.options.names import BackendName
from mha.learn.write.lesson import facts, texts
from mha.learn.write.recipe import Recipe
from mha.learn.write.trees import nodes
from mha.learn.write.trees.nodes import code
from mha.learn.write.trees.program import LAYER, Program

LONG = 10  # characters of a name that is kept on a line with others
DTYPES = {"torch": "torch.", "mlx": "mx."}  # where a dtype is an object of the framework


def finish(program: Program, recipe: Recipe, header: str) -> str:
    """The text of the file."""
    given = put_constructor(program, recipe.config, recipe.backend)
    program.map_definitions(nodes.plain_brackets)
    own = program.function(LAYER, program.setup).params.kwonly_params
    texts.put_docstrings(program, recipe.takes, given | {each.name.value: "" for each in own})
    parts = [code(tree).strip("\n") for tree in _in_order(program)]
    body = "\n\n\n".join(parts) + "\n"
    imports = sorted({*program.imports.values()})  # of which ruff takes out those that nobody uses
    return format_text(header + "\n" + "\n".join(imports) + "\n\n\n" + body)


def _in_order(program: Program) -> list[Any]:
    """The definitions in the order of the lesson, constants first and the layer last."""

    def place(item: tuple[str, Any]) -> tuple[bool, bool]:
        return item[0] == LAYER, not isinstance(item[1], cst.SimpleStatementLine)

    return [tree for _, tree in sorted(program.definitions.items(), key=place)]


def put_constructor(program: Program, config: Config, backend: BackendName) -> dict[str, str]:
    """Give the layer a constructor with the numbers that it uses; return their defaults as text, by name."""
    known = facts.constructor(config)
    used = _config_reads(program)
    if unknown := used - known.keys():
        raise ValueError(f"the lesson asks for {', '.join(sorted(unknown))}, which no argument of the layer says")
    by_width = facts.by_width(config) and "config.key_dim" in used
    asked = {*used, "config.num_hiddens", "config.num_heads"}
    if by_width:
        asked.remove("config.key_dim")
    given = {name: text for expression, (name, text) in known.items() if expression in asked}
    if "dtype" in given and backend in DTYPES:
        given["dtype"] = f"{DTYPES[backend]}{config.dtype}"
    fields = program.setup != "__init__"
    width = "self.num_hiddens // self.num_heads" if fields else "num_hiddens // num_heads"
    stored = {expression: nodes.expression(f"self.{name}") for expression, (name, _) in known.items()}
    own = dict(stored) if fields else {one: nodes.expression(name) for one, (name, _) in known.items()}
    if by_width:
        own["config.key_dim"] = nodes.expression(width)
    later = _config_reads(program, methods=True)
    kept = [name for expression, (name, _) in known.items() if expression in later]
    for owner, name, tree in list(program.functions()):
        if owner != LAYER:
            program.put(owner, name, _with_dtypes(tree, DTYPES.get(backend, "")))
        elif name != program.setup:
            program.put(owner, name, nodes.replace(tree, stored))
        else:
            lines = [] if fields else _keep([each for each in kept if each in given])
            if by_width and "key_dim" in kept:
                lines.append(nodes.statement(f"self.key_dim = {width}\n"))
            body = nodes.body_of(nodes.replace(tree, own))
            place = 1 if body and code(body[0]).strip().startswith("super().__init__") else 0
            made = nodes.with_body(tree, [*body[:place], *lines, *body[place:]])
            program.put(owner, name, made if fields else _taking(made, given))
    if fields:
        lines = [
            nodes.statement(f"{name}: {facts.annotation(name)}{f' = {value}' if value else ''}\n")
            for name, value in given.items()
        ]
        layer = program.definitions[LAYER]
        program.definitions[LAYER] = nodes.with_body(layer, [*lines, *nodes.body_of(layer)])
    return given


def _config_reads(program: Program, methods: bool = False) -> set[str]:
    """The expressions of a configuration that the layer reads; methods: without those that only its setup reads."""
    texts_and_comments = r'""".*?"""|#[^\n]*'
    return {
        text
        for owner, name, tree in program.functions()
        if owner == LAYER and not (methods and name == program.setup)
        for text in re.findall(r"\bconfig\.[\w.]+", re.sub(texts_and_comments, "", code(tree), flags=re.DOTALL))
    }


def _keep(names: list[str]) -> list[Any]:
    """The statements by which a layer keeps the numbers that its other methods read, the long ones one by one."""
    short = [name for name in names if len(name) <= LONG]
    rows = [short] * bool(short) + [[name] for name in names if len(name) > LONG]
    return [nodes.statement(f"{', '.join(f'self.{name}' for name in row)} = {', '.join(row)}\n") for row in rows]


def _with_dtypes(tree: Any, of: str) -> Any:
    """A function with an object of the framework for its default dtype; of: the prefix of dtypes, "" = text stays."""
    params = [
        each.with_changes(default=nodes.expression(f"{of}{code(each.default)[1:-1]}"))
        if of and each.name.value == "dtype" and each.default is not None
        else each
        for each in tree.params.params
    ]
    return nodes.with_parameters(tree, params)


def _taking(tree: Any, given: dict[str, str]) -> Any:
    """The constructor with these parameters and defaults."""
    params = [
        cst.Param(cst.Name(name), default=nodes.expression(text) if text else None) for name, text in given.items()
    ]
    return nodes.with_parameters(tree, [cst.Param(cst.Name("self")), *params])


def format_text(text: str, beside: str = "") -> str:
    """Format a text by ruff, with its imports in order; beside: a module in the same folder."""
    own = [] if not beside else ["--config", f'lint.isort.known-first-party=["{beside}"]']
    for options in (["check", "--select", "I,F401,F841,RUF100", "--fix"], ["format"]):
        command = [sys.executable, "-m", "ruff", options[0], "--isolated", "--line-length", "120", "--quiet"]
        done = subprocess.run([*command, *own, *options[1:], "-"], input=text, capture_output=True, text=True)
        if done.returncode not in (0, 1) or (options[0] == "format" and done.returncode):
            raise RuntimeError(f"ruff could not read the file that was made: {done.stderr}")
        text = done.stdout
    return text
