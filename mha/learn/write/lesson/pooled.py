"""Simplify the pooling of a layer: give it one method, and without weights make it a step of the layer itself."""

import libcst as cst

from mha.learn.write.trees import nodes
from mha.learn.write.trees.nodes import code
from mha.learn.write.trees.program import LAYER, Program, bound, defaults, methods, takes

POOLING = {"dot": "DotProductAttention", "additive": "AdditiveAttention"}


def with_one_method(program: Program, blanks: bool) -> None:
    """Give the poolings one method, `weigh`; blanks: whether it blanks inputs that no query sees once more."""
    for name in POOLING.values():
        weigh = program.function(name, "weigh")
        if blanks:
            line = nodes.statement("queries, keys, values = zero_unused(queries, keys, values, visible)\n")
            weigh = nodes.with_body(weigh, [line, *nodes.body_of(weigh)])
        called = program.function(name, program.entry)
        weigh = weigh.with_changes(name=called.name)
        documented = [line for line in called.body.body[:1] if nodes.is_docstring(line)]
        weigh = weigh.with_changes(body=weigh.body.with_changes(body=[*documented, *nodes.body_of(weigh)]))
        program.put(name, "weigh", None)
        program.put(name, program.entry, weigh)


def without_part(program: Program) -> None:
    """Make the dot-product pooling, which has no weights, a step of the layer: `self.weigh`."""
    name = POOLING["dot"]
    if program.parts(LAYER).get("attention") != name:
        return
    setup, steps = program.function(LAYER, program.setup), methods(program.definitions[name])
    call = next(call for call in nodes.calls(setup) if code(call.func) == name)
    part = steps.get("__init__")
    given = bound(call, program.fields(name) if part is None else takes(part)) or {}
    if part is not None:
        given = defaults(part) | given
    own = {f"self.{field}": value for field, value in given.items()}
    inside = part if part is not None else steps.get(program.setup)
    lines = [
        nodes.assignment(target, nodes.replace(value, own | given))
        for line in (nodes.body_of(inside) if inside is not None else [])
        for target, value in nodes.pairs(line)
        if not (isinstance(value, cst.Name) and value.value in given)
    ]
    program.put(
        LAYER, program.setup, nodes.map_each(setup, lambda line: lines if call in nodes.calls(line) else [line])
    )
    for method, tree in steps.items():
        if method not in (program.setup, "__init__"):
            tree = tree.with_changes(name=cst.Name("weigh")) if method == program.entry else tree
            program.add(LAYER, nodes.replace(tree, own))
    program.definitions[LAYER] = nodes.replace(
        program.definitions[LAYER], {"self.attention": nodes.expression("self.weigh")}
    )
    del program.definitions[name]
