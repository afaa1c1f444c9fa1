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
    imports = sorted(
        {line for name, line in program.imports.items() if re.search(rf"\b{name}\b", _without_texts(body))}
    )
    return format_text(header + "\n" + "\n".join(imports) + "\n\n\n" + body)


def _without_texts(body: str) -> str:
    return re.sub(r'""".*?"""|#[^\n]*', "", body, flags=re.DOTALL)


def _in_order(program: Program) -> list[Any]:
    """The definitions in the order of the lesson, the layer last."""
    trees_of = dict(program.definitions)
    layer = trees_of.pop(LAYER)
    constants = [tree for tree in trees_of.values() if isinstance(tree, cst.SimpleStatementLine)]
    others = [tree for tree in trees_of.values() if not isinstance(tree, cst.SimpleStatementLine)]
    return [*constants, *others, layer]


def put_constructor(program: Program, config: Config, backend: BackendName) -> dict[str, str]:
    """Give the layer a constructor with the numbers that it uses; return their defaults as text, by name."""
    known = facts.constructor(config)
    used = _config_reads(program)
    unknown = used - known.keys()
    if unknown:
        raise ValueError(f"the lesson asks for {', '.join(sorted(unknown))}, which no argument of the layer says")
    by_width = facts.by_width(config) and "config.key_dim" in used
    ordered = [name for name in known if name in used or name in ("config.num_hiddens", "config.num_heads")]
    if by_width:
        ordered.remove("config.key_dim")
    given = {known[name][0]: known[name][1] for name in ordered}
    if "dtype" in given and backend in DTYPES:
        given["dtype"] = f"{DTYPES[backend]}{config.dtype}"
    fields = program.setup != "__init__"
    width = "num_hiddens // num_heads"
    of_methods = _config_reads(program, methods=True)
    for owner, name, tree in list(program.functions()):
        if owner != LAYER:
            program.put(owner, name, _with_dtypes(tree, DTYPES.get(backend, "")))
            continue
        inside = name == program.setup
        by: dict[str, cst.BaseExpression] = {}
        for expression in used:
            argument = known[expression][0]
            by[expression] = nodes.expression(f"self.{argument}" if fields or not inside else argument)
        if by_width and inside:
            by["config.key_dim"] = nodes.expression("self.num_hiddens // self.num_heads" if fields else width)
        made = nodes.replace(tree, by)
        if inside:
            made = _keep(made, [known[name][0] for name in known if name in of_methods], fields, by_width, width, given)
            if not fields:
                made = _taking(made, given)
        program.put(owner, name, made)
    if fields:
        lines = [
            nodes.statement(f"{name}: {facts.annotation(name)}{f' = {value}' if value else ''}\n")
            for name, value in given.items()
        ]
        layer = program.definitions[LAYER]
        body = list(layer.body.body)
        place = 1 if nodes.is_docstring(body[0]) else 0
        body[place:place] = lines
        program.definitions[LAYER] = layer.with_changes(body=layer.body.with_changes(body=body))
    return given


def _config_reads(program: Program, methods: bool = False) -> set[str]:
    """The expressions of a configuration that the layer reads; methods: without those that only its setup reads."""
    return {
        text
        for owner, name, tree in program.functions()
        if owner == LAYER and not (methods and name == program.setup)
        for text in re.findall(r"\bconfig\.[\w.]+", _without_texts(code(tree)))
    }


def _keep(tree: Any, names: list[str], fields: bool, by_width: bool, width: str, given: dict[str, str]) -> Any:
    """The setup of the layer, which also keeps the numbers that other methods read."""
    own = [] if fields else [name for name in names if name in given]
    lines = []
    for wide in (False, True):  # the long names on lines of their own
        part = [name for name in own if (len(name) > LONG) == wide]
        for some in [[name] for name in part] if wide else [part] * bool(part):
            lines.append(nodes.statement(f"{', '.join(f'self.{name}' for name in some)} = {', '.join(some)}\n"))
    if by_width and "key_dim" in names:
        lines.append(nodes.statement(f"self.key_dim = {'self.num_hiddens // self.num_heads' if fields else width}\n"))
    body = nodes.body_of(tree)
    place = 1 if body and code(body[0]).strip().startswith("super().__init__") else 0
    body[place:place] = lines
    return nodes.with_body(tree, body)


def _with_dtypes(tree: Any, of: str) -> Any:
    """A function with an object of the framework for its default dtype; of: the prefix of dtypes, "" = text stays."""
    params = [
        each.with_changes(default=nodes.expression(f"{of}{code(each.default)[1:-1]}"))
        if of and each.name.value == "dtype" and each.default is not None
        else each
        for each in tree.params.params
    ]
    return tree.with_changes(params=tree.params.with_changes(params=params))


def _taking(tree: Any, given: dict[str, str]) -> Any:
    """The constructor with these parameters and defaults."""
    made = [cst.Param(cst.Name("self"))]
    for name, value in given.items():
        made.append(cst.Param(cst.Name(name), default=None if not value else nodes.expression(value)))
    return tree.with_changes(params=tree.params.with_changes(params=made))


def format_text(text: str, beside: str = "") -> str:
    """Format a text by ruff, with its imports in order; beside: a module in the same folder."""
    own = [] if not beside else ["--config", f'lint.isort.known-first-party=["{beside}"]']
    for options in (["check", "--select", "I,F401,F841,RUF100", "--fix"], ["format"]):
        command = [
            sys.executable,
            "-m",
            "ruff",
            options[0],
            "--isolated",
            "--line-length",
            "120",
            "--quiet",
            *own,
            *options[1:],
        ]
        done = subprocess.run([*command, "-"], input=text, capture_output=True, text=True)
        if done.returncode not in (0, 1) or (options[0] == "format" and done.returncode):
            raise RuntimeError(f"ruff could not read the file that was made: {done.stderr}")
        text = done.stdout
    return text
