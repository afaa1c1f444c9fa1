"""Make the layer one class that needs no library: without checks, with its bases and its configuration in it."""

from typing import Any

import libcst as cst

from mha.core.call import Plan
from mha.learn.write.trees import nodes
from mha.learn.write.trees.nodes import code
from mha.learn.write.trees.program import LAYER, Program
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


def to_one_class(program: Program) -> None:
    """Take checks and other needs of a library out of the lesson; make its layer one class with an entry and steps."""
    _without_plan(program)
    _without_library(program)
    _with_plain_names(program)
    _with_bases(program)


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
    def without(lines: list[Any]) -> list[Any]:
        found = []
        for line in lines:
            made = nodes.small(line)
            value = made.value if isinstance(made, cst.Expr) else None
            if not (isinstance(value, cst.Call) and code(value.func) in (*DROPPED, "record_step")):
                found.append(line)
        return found

    def change(call: cst.Call) -> Any:
        if code(call.func) == "record_step" and len(call.args) == 2:
            return call.args[1].value
        if (said := SAID.get(code(call))) is not None:
            return nodes.in_brackets(nodes.expression(said))
        if code(call.func) == "getattr" and code(call.args[0].value) in ("torch", "mx"):
            return call.args[1].value  # a dtype, which is an object there
        return call

    class Conditions(Changing):
        def leave_Comparison(self, node: cst.Comparison, new: cst.Comparison) -> Any:
            said = SAID.get(code(new))
            return new if said is None else nodes.expression(said)

    program.map_definitions(lambda tree: nodes.map_lines(tree, without))
    program.map_definitions(lambda tree: Conditions().change(nodes.map_calls(tree, change)))


def _with_plain_names(program: Program) -> None:
    """Write `config` for the configuration everywhere, functions for static methods, and give the layer one entry."""
    layer = program.definitions[LAYER]
    handed: dict[str, cst.BaseExpression] = {}
    kept: list[Any] = []
    for line in layer.body.body:
        made = nodes.as_assignment(line)
        if made is not None and "staticmethod(" in code(made[1]):
            handed |= {f"self.{code(one)}": value.args[0].value for one, value in nodes.pairs(line)}
        elif (
            (isinstance(line, cst.FunctionDef) and line.name.value in (program.entry, "get_config"))
            or (isinstance(line, cst.FunctionDef) and line.decorators)
            or isinstance(nodes.small(line), cst.AnnAssign)
        ):
            continue
        else:
            kept.append(line)
    layer = layer.with_changes(body=layer.body.with_changes(body=kept), decorators=[])
    layer = nodes.replace(layer, handed | {"self.config": cst.Name("config")})

    def plain(lines: list[Any]) -> list[Any]:
        found = []
        for line in lines:
            made = nodes.as_assignment(line)
            if made is not None and code(made[0]) in ("self.config", "config"):
                continue
            found.append(line)
        return found

    program.definitions[LAYER] = nodes.map_lines(layer, plain)
    attend = program.function(LAYER, "attend")
    program.put(LAYER, "attend", attend.with_changes(name=cst.Name(program.entry)))
    # A configuration is known everywhere, so that nobody hands it on.
    for owner, name, tree in list(program.functions()):
        if "config" in (each.name.value for each in nodes.parameters(tree)):
            left = [each for each in tree.params.params if each.name.value != "config"]
            program.put(owner, name, tree.with_changes(params=tree.params.with_changes(params=left)))

    def less(call: cst.Call) -> cst.Call:
        left = [each for each in call.args if code(each.value) != "config"]
        return call if len(left) == len(call.args) else call.with_changes(args=left)

    program.map_definitions(lambda tree: nodes.map_calls(tree, less))


def _with_bases(program: Program) -> None:
    """Merge each class with its base class of the lesson."""
    for name, tree in list(program.definitions.items()):
        if not isinstance(tree, cst.ClassDef):
            continue
        base = program.definitions.get(code(tree.bases[0].value)) if tree.bases else None
        if not isinstance(base, cst.ClassDef):
            continue
        own = {line.name.value: line for line in tree.body.body if isinstance(line, cst.FunctionDef)}
        inherited = [
            line for line in base.body.body if not (isinstance(line, cst.FunctionDef) and line.name.value in own)
        ]
        inherited = [line for line in inherited if nodes.as_assignment(line) is None and not nodes.is_docstring(line)]
        first = [line for line in tree.body.body if not isinstance(line, cst.FunctionDef)]
        fields = {code(nodes.small(line).target) for line in first if isinstance(nodes.small(line), cst.AnnAssign)}
        annotated = [line for line in inherited if isinstance(nodes.small(line), cst.AnnAssign)]
        annotated = [line for line in annotated if code(nodes.small(line).target) not in fields]
        methods = [line for line in inherited if isinstance(line, cst.FunctionDef)]
        setup = own.get(program.setup)
        if setup is not None:
            above = next(
                line for line in base.body.body if getattr(getattr(line, "name", 0), "value", 0) == program.setup
            )
            own[program.setup] = _with_setup_above(setup, above)
        docstring = [line for line in first if nodes.is_docstring(line)]
        rest = [line for line in first if not nodes.is_docstring(line)]
        made = [each for each in (own.pop(program.setup, None),) if each is not None]
        body = [*docstring, *annotated, *rest, *made, *methods, *own.values()]
        program.definitions[name] = tree.with_changes(bases=base.bases, body=tree.body.with_changes(body=body))


def _with_setup_above(setup: Any, above: Any) -> Any:
    """The method that makes a layer's parts, with the body of its base class's method in the place of `super()`."""
    lines: list[Any] = []
    for line in nodes.body_of(setup):
        text = code(line).strip()
        if not text.startswith("super()."):
            lines.append(line)
            continue
        call: Any = nodes.small(line).value
        given = [each.name.value for each in nodes.parameters(above) if each.name.value != "self"]
        by = dict(zip(given, (each.value for each in call.args), strict=False))
        lines += [nodes.replace(each, by) for each in nodes.body_of(above)]
    return nodes.with_body(setup, lines)
