"""Write JAX's layer as a module of Flax's NNX, which holds its parts, while one of linen only describes them."""

from typing import Any

import libcst as cst

from mha.learn.write.trees import nodes
from mha.learn.write.trees.nodes import code
from mha.learn.write.trees.program import LAYER, Program, methods
from mha.learn.write.trees.walking import walk

SAME = {f"nn.{name}": nodes.expression(f"nnx.{name}") for name in ("Module", "Dropout", "sigmoid")}
DENSE = "nnx.Linear(in_size, out_size, use_bias=bias, dtype=dtype, param_dtype=dtype, rngs=rngs)"
DRAWN = ("dense", "pooling", "dot", "additive", "nnx.Dropout")  # calls of what draws random numbers, now or later
ARRAYS = {"nn.initializers.zeros": "jnp.zeros", "nn.initializers.ones": "jnp.ones"}


def use_nnx(program: Program) -> None:
    """Put NNX in the place of linen in all classes, and pass `rngs`, by name, where linen draws by itself."""
    tree = program.function("", "dense")
    program.put("", "dense", nodes.with_body(tree, [nodes.statement(f"return {DENSE}\n")]))
    for name in ("dense", "pooling"):
        program.put("", name, _drawing(program.function("", name)))
    for name, each in list(program.definitions.items()):
        if isinstance(each, cst.ClassDef):
            program.definitions[name] = _with_constructor(each, draws=name == LAYER or "Attention" in name)
    program.map_definitions(lambda tree: nodes.map_calls(nodes.replace(tree, SAME), _change))
    program.setup = "__init__"
    program.imports["nnx"] = "from flax import nnx"


def _drawing(tree: Any) -> Any:
    """A function that takes `rngs`, by name."""
    params = tree.params.with_changes(star_arg=cst.ParamStar(), kwonly_params=[cst.Param(cst.Name("rngs"))])
    return tree.with_changes(params=params)


def _with_constructor(tree: Any, draws: bool) -> Any:
    """A class with a constructor in the place of its fields and of `setup`; draws: whether it takes `rngs`."""
    fields = [nodes.small(line) for line in tree.body.body if isinstance(nodes.small(line), cst.AnnAssign)]
    setup = methods(tree).get("setup")
    if setup is None and not fields:
        return tree
    others = [line for line in nodes.body_of(tree) if line is not setup and nodes.small(line) not in fields]
    lines = nodes.body_of(_with_any_dtype(setup)) if setup is not None else []
    arguments = {f"self.{code(field.target)}": field.target for field in fields}
    lines = [nodes.replace(line, arguments) for line in lines]
    read = "".join(code(line) for line in others)
    kept = [(nodes.expression(text), name) for text, name in arguments.items() if text in read]
    lines = [*([nodes.of_pairs(kept)] if kept else []), *lines]
    made: Any = nodes.statement("def __init__(self):\n    pass\n")
    params = [cst.Param(cst.Name("self")), *(cst.Param(field.target, default=field.value) for field in fields)]
    made = nodes.with_body(nodes.with_parameters(made, params), lines)
    own = {
        code(target): nodes.expression(f"{code(target)}[...]")
        for each in walk(made)
        for target, value in nodes.pairs(each)
        if code(value).startswith("self.param(")
    }
    others = [nodes.replace(line, own) for line in others]
    return nodes.with_body(tree, [_drawing(made) if draws else made, *others])


def _with_any_dtype(setup: Any) -> Any:
    """A setup with the dtype that a parameter asks for, not JAX's substitute for one that is switched off."""
    asked = {
        code(target): value.args[0].value
        for line in walk(setup)
        for target, value in nodes.pairs(line)
        if code(value).startswith("jax.dtypes.canonicalize_dtype(")
    }
    left = nodes.map_each(setup, lambda line: [] if asked.keys() & nodes.targets(line) else [line])
    return nodes.replace(left, asked)


def _change(call: cst.Call) -> Any:
    function = code(call.func)
    if function in DRAWN:
        return call.with_changes(args=[*call.args, nodes.keyword("rngs", cst.Name("rngs"))])
    if function == "self.param":  # (name, initializer, shape, dtype)
        _, array, shape, dtype = (code(each.value) for each in call.args)
        return nodes.expression(f"nnx.Param({ARRAYS[array]}({shape}, {dtype}))")
    if function == "self.dropping":  # which knows whether it is deterministic
        return call.with_changes(args=[cst.Arg(call.args[0].value)])
    return call
