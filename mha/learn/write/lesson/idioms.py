"""Replace the lesson's code that only `mha` needs: in a file of its own, a layer makes its weights, in one thread."""

from typing import Any

import libcst as cst

from mha.core.options.names import BackendName
from mha.learn.write.trees import nodes
from mha.learn.write.trees.nodes import code
from mha.learn.write.trees.program import Program

# Functions that need not think of several threads, of arrays without elements, or of weights that come later.
SIMPLER = {
    "numpy": {},
    "mlx": {"dense": "nn.Linear(in_size, out_size, bias=bias)"},
    "mxnet": {
        "dense": "nn.Dense(out_size, flatten=False, use_bias=bias, in_units=in_size, dtype=dtype)",
        "data": "parameter.data()",
        "where": "np.where(condition, X, Y)",
    },
}
# What hands on its first argument, where nobody asks for more.
HANDS_ON = ("evaluate", "arrays.evaluate", "over_axes")
# The kernel of a dense layer as Glorot and Bengio (2010) draw it: NumPy has no layers that do.
DRAWN = (
    "self.kernel = (math.sqrt(6 / (in_size + out_size)) * np.random.default_rng().uniform(-1, 1, (in_size, out_size)))"
    ".astype(dtype)\n"
)


def apply_idioms(program: Program, backend: BackendName) -> None:
    """Put a framework's idioms in the place of the lesson's, whose layers get their weights from `mha`."""
    for name, text in SIMPLER.get(backend, {}).items():
        tree = program.function("", name)
        program.put("", name, nodes.with_body(tree, [nodes.statement(f"return {text}\n")]))
    if backend == "numpy":
        tree = program.function("Dense", "__init__")
        lines = [nodes.statement(DRAWN) if "self.kernel" in code(line) else line for line in nodes.body_of(tree)]
        program.put("Dense", "__init__", nodes.with_body(tree, lines))
        program.imports.setdefault("math", "import math")
    program.map_definitions(lambda tree: nodes.map_calls(tree, _change))


def _change(call: cst.Call) -> Any:
    if code(call.func) in HANDS_ON and call.args:
        return call.args[0].value
    if code(call) == "next_key()":
        return nodes.NONE
    arguments: list[cst.Arg] = []
    for each in call.args:
        if each.star == "**" and code(each.value).startswith("(options |"):
            arguments.append(nodes.keyword("dtype", nodes.expression("config.dtype")))
            arguments.append(each.with_changes(value=cst.Name("options")))
        else:
            arguments.append(each)
    return call if len(arguments) == len(call.args) else call.with_changes(args=arguments)
