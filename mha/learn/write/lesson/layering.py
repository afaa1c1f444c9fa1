"""Make the layer one class that needs no library: without checks, with its bases and its configuration in it."""

from typing import Any

import libcst as cst

from mha.core.call import Plan
from mha.core.options.names import BackendName
from mha.learn.write.trees import nodes
from mha.learn.write.trees.nodes import code
from mha.learn.write.trees.program import LAYER, Program, bound, methods, takes
from mha.learn.write.trees.walking import Changing

# What only a library needs: checks, and what is kept for whoever watches.
DROPPED = (
    "check_widths", "must_fit", "refuse_masks", "check", "arrays.refuse_to_narrow", "call.cache.use_up",
)  # fmt: skip
SAID = {
    "call.by_positions()": "call.positions is not None or call.key_positions is not None",
    "call.is_packed()": "call.segments is not None",
    "call.segment_ids().values()": "(call.segments, call.segments if call.key_segments is None else call.key_segments)",
    "rotary.angles()": "rotary.frequencies if rotary.frequencies is not None else "
    "[rotary.base ** (-2 * i / rotary.dim) for i in range(rotary.dim // 2)]",
    "norm.size(num_heads, width)": 'num_heads * width if norm.over == "all" else width',
    "self.norm.size(self.num_heads, self.width)": "self.num_heads * self.width if self.norm.over == 'all' "
    "else self.width",
    "0 in (queries.shape[1], keys.shape[1])": "False",  # nobody attends to nothing
    "queries.shape[1] == 0": "False",
    "numbers.dtype == torch.uint64": "False",  # lengths are signed integers
    "numbers.dtype == tf.uint64": "False",
    "numbers.dtype == mx.uint64": "False",
}


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


def to_one_class(program: Program, backend: BackendName) -> None:
    """Take checks and other needs of a library out of the lesson; make its layer one class with an entry and steps."""
    _without_plan(program)
    _without_library(program)
    _with_plain_names(program)
    _with_bases(program)
    _with_idioms(program, backend)


def _without_plan(program: Program) -> None:
    """Write `call.window` for `call.plan.window`, and `call._replace(window=a)` for `call.with_plan(window=a)`."""
    fields = {f"call.plan.{name}": nodes.expression(f"call.{name}") for name in Plan._fields}
    fields["call.plan"] = cst.Name("call")

    def change(call: cst.Call) -> cst.Call:
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "with_plan":
            return call
        of = call.func.value
        if isinstance(of, cst.Call):  # call._replace(...).with_plan(...)
            return of.with_changes(args=[*of.args, *call.args])
        return call.with_changes(func=call.func.with_changes(attr=cst.Name("_replace")))

    program.map_definitions(lambda tree: nodes.replace(nodes.map_calls(tree, change), fields))


def _without_library(program: Program) -> None:
    def without(line: Any) -> list[Any]:
        made = nodes.small(line)
        call = made.value if isinstance(made, cst.Expr) else None
        return [] if isinstance(call, cst.Call) and code(call.func) in (*DROPPED, "record_step") else [line]

    class Simpler(Changing):
        def leave_Call(self, node: cst.Call, call: cst.Call) -> Any:
            if code(call.func) == "record_step" and len(call.args) == 2:
                return call.args[1].value
            if code(call.func) == "getattr" and code(call.args[0].value) in ("torch", "mx"):
                return call.args[1].value  # a dtype, which is an object there
            return nodes.in_brackets(nodes.expression(SAID[code(call)])) if code(call) in SAID else call

        def leave_Comparison(self, node: cst.Comparison, new: cst.Comparison) -> Any:
            return nodes.expression(SAID[code(new)]) if code(new) in SAID else new

    program.map_definitions(lambda tree: Simpler().change(nodes.map_each(tree, without)))


def _with_plain_names(program: Program) -> None:
    """Write `config` for the configuration everywhere, functions for static methods, and give the layer one entry."""
    layer = program.definitions[LAYER]
    handed: dict[str, cst.BaseExpression] = {}
    kept: list[Any] = []
    for line in layer.body.body:
        static = [(one, value) for one, value in nodes.pairs(line) if code(value).startswith("staticmethod(")]
        handed |= {f"self.{code(one)}": value.args[0].value for one, value in static}
        replaced = isinstance(line, cst.FunctionDef) and (
            line.decorators or line.name.value in (program.entry, "get_config")
        )
        if not (static or replaced or isinstance(nodes.small(line), cst.AnnAssign)):
            kept.append(line)
    layer = layer.with_changes(body=layer.body.with_changes(body=kept), decorators=[])
    layer = nodes.replace(layer, handed | {"self.config": cst.Name("config")})

    def plain(line: Any) -> list[Any]:
        made = nodes.as_assignment(line)
        return [] if made is not None and code(made[0]) in ("self.config", "config") else [line]

    program.definitions[LAYER] = nodes.map_each(layer, plain)
    attend = program.function(LAYER, "attend")
    program.put(LAYER, "attend", attend.with_changes(name=cst.Name(program.entry)))
    # A configuration is known everywhere, so that nobody hands it on.
    for owner, name, tree in list(program.functions()):
        if "config" in (each.name.value for each in nodes.parameters(tree)):
            left = [each for each in tree.params.params if each.name.value != "config"]
            program.put(owner, name, nodes.with_parameters(tree, left))

    def less(call: cst.Call) -> cst.Call:
        left = [each for each in call.args if code(each.value) != "config"]
        return call if len(left) == len(call.args) else call.with_changes(args=left)

    program.map_definitions(lambda tree: nodes.map_calls(tree, less))


def _with_bases(program: Program) -> None:
    """Merge each class with its base class of the lesson."""
    for name, tree in list(program.definitions.items()):
        base = program.definitions.get(code(tree.bases[0].value)) if getattr(tree, "bases", ()) else None
        if not isinstance(base, cst.ClassDef):
            continue
        own, above, fields = methods(tree), methods(base), program.fields(name)
        inherited = [line for line in base.body.body if isinstance(nodes.small(line), cst.AnnAssign)]
        inherited = [line for line in inherited if code(nodes.small(line).target) not in fields]
        rest = [line for line in nodes.body_of(tree) if not isinstance(line, cst.FunctionDef)]
        setup = [_with_setup_above(own[program.setup], above[program.setup])] if program.setup in own else []
        steps = [each for method, each in above.items() if method not in own]
        steps += [each for method, each in own.items() if method != program.setup]
        body = [*inherited, *rest, *setup, *steps]
        program.definitions[name] = nodes.with_body(tree, body).with_changes(bases=base.bases)


def _with_setup_above(setup: Any, above: Any) -> Any:
    """The method that makes a layer's parts, with the body of its base class's method in the place of `super()`."""
    lines: list[Any] = []
    for line in nodes.body_of(setup):
        if not code(line).strip().startswith("super()."):
            lines.append(line)
            continue
        by = bound(nodes.small(line).value, takes(above)) or {}
        lines += [nodes.replace(each, by) for each in nodes.body_of(above)]
    return nodes.with_body(setup, lines)


def _with_idioms(program: Program, backend: BackendName) -> None:
    """Put a framework's idioms in the place of the lesson's, whose layers get their weights from `mha`."""
    for name, text in SIMPLER.get(backend, {}).items():
        tree = program.function("", name)
        program.put("", name, nodes.with_body(tree, [nodes.statement(f"return {text}\n")]))
    if backend == "numpy":
        tree = program.function("Dense", "__init__")
        lines = [nodes.statement(DRAWN) if "self.kernel" in code(line) else line for line in nodes.body_of(tree)]
        program.put("Dense", "__init__", nodes.with_body(tree, lines))
        program.imports.setdefault("math", "import math")
    program.map_definitions(lambda tree: nodes.map_calls(tree, _without_hand_over))


def _without_hand_over(call: cst.Call) -> Any:
    """A call without what `mha` needs: evaluation, keys for random numbers, and options that hold a dtype."""
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
