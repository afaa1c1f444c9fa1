"""The layer as one class that needs no library, and a call's arguments and an option's numbers by their names."""

import dataclasses
from typing import Any

import libcst as cst

from mha.call import ARGUMENTS
from mha.norms import Norm
from mha.positions import Rotary, Temperature
from mha.written.trees import nodes
from mha.written.trees.nodes import code
from mha.written.trees.program import LAYER, Program

# What only a library needs: checks, and what is kept for whoever watches.
DROPPED = (
    "whole_heads", "must_fit", "refuse_masks", "check", "arrays.refuse_to_narrow", "call.cache.use_up",
)  # fmt: skip
OWN = ("window", "chunk", "sinks", "gates", "traced", "columns")  # of a call, beside its arguments
PARTS = {"rotary": Rotary, "norm": Norm, "temperature": Temperature}
SAID = {
    "call.by_positions()": "call.positions is not None or call.key_positions is not None",
    "call.packed().values()": "(call.segments, call.segments if call.key_segments is None else call.key_segments)",
    "rotary.angles()": "rotary.frequencies if rotary.frequencies is not None else "
    "[rotary.base ** (-2 * i / rotary.dim) for i in range(rotary.dim // 2)]",
    "norm.size(num_heads, width)": 'num_heads * width if norm.over == "all" else width',
    "self.norm.size(self.num_heads, self.width)": "self.num_heads * self.width if self.norm.over == 'all' "
    "else self.width",
    "0 in (queries.shape[1], keys.shape[1])": "False",  # nobody attends to nothing
    "numbers.dtype == torch.uint64": "False",  # lengths are signed integers
    "numbers.dtype == tf.uint64": "False",
    "numbers.dtype == mx.uint64": "False",
}


def layered(program: Program) -> None:
    """Take out of the lesson what only a library needs, and let its layer be one class with an entry and its steps."""
    _without_library(program)
    _with_plain_names(program)
    _with_bases(program)


def _without_library(program: Program) -> None:
    def without(lines: list[Any]) -> list[Any]:
        found = []
        for line in lines:
            made = nodes.small(line)
            value = made.value if isinstance(made, cst.Expr) else None
            if not (isinstance(value, cst.Call) and code(value.func) in DROPPED):
                found.append(line)
        return found

    def change(call: cst.Call) -> Any:
        if code(call.func) == "keep" and len(call.args) == 2:
            return call.args[1].value
        if (said := SAID.get(code(call))) is not None:
            return nodes.in_brackets(nodes.expression(said))
        if code(call.func) == "getattr" and code(call.args[0].value) in ("torch", "mx"):
            return call.args[1].value  # a dtype, which is an object there
        return call

    class Conditions(cst.CSTTransformer):
        def leave_Comparison(self, original_node: cst.Comparison, updated_node: cst.Comparison) -> Any:
            said = SAID.get(code(updated_node))
            return updated_node if said is None else nodes.expression(said)

    program.each(lambda tree: nodes.lines_mapped(tree, without))
    program.each(lambda tree: tree.visit(nodes.Mapping(change)).visit(Conditions()))


def _with_plain_names(program: Program) -> None:
    """`config` for the configuration everywhere, functions that a class hands on by their names, one entry."""
    layer = program.definitions[LAYER]
    handed: dict[str, cst.BaseExpression] = {}
    kept: list[Any] = []
    for line in layer.body.body:
        made = nodes.assigned(line)
        if made is not None and "staticmethod(" in code(made[1]):
            left = nodes.elements(made[0]) or [made[0]]
            right = nodes.elements(made[1]) or [made[1]]
            for one, value in zip(left, right, strict=True):
                handed[f"self.{code(one)}"] = value.args[0].value  # type: ignore[attr-defined]
        elif (
            (isinstance(line, cst.FunctionDef) and line.name.value in (program.entry, "compute_mask", "get_config"))
            or (isinstance(line, cst.FunctionDef) and line.decorators)
            or isinstance(nodes.small(line), cst.AnnAssign)
        ):
            continue
        else:
            kept.append(line)
    layer = layer.with_changes(body=layer.body.with_changes(body=kept), decorators=[])
    layer = nodes.replaced(layer, handed | {"self.config": cst.Name("config")})

    def plain(lines: list[Any]) -> list[Any]:
        found = []
        for line in lines:
            made = nodes.assigned(line)
            if made is not None and code(made[0]) in ("self.config", "config"):
                continue
            found.append(line)
        return found

    program.definitions[LAYER] = nodes.lines_mapped(layer, plain)
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

    program.each(lambda tree: tree.visit(nodes.Mapping(less)))


def _with_bases(program: Program) -> None:
    """Classes with what they have of a base class of the lesson, in one."""
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
        inherited = [line for line in inherited if nodes.assigned(line) is None and not nodes.is_docstring(line)]
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
    """A method that makes the parts of a layer, with what its base class makes in the place of that call."""
    lines: list[Any] = []
    for line in nodes.body_of(setup):
        text = code(line).strip()
        if not text.startswith("super()."):
            lines.append(line)
            continue
        call: Any = nodes.small(line).value
        given = [each.name.value for each in nodes.parameters(above) if each.name.value != "self"]
        by = dict(zip(given, (each.value for each in call.args), strict=False))
        lines += [nodes.replaced(each, by) for each in nodes.body_of(above)]
    return nodes.with_body(setup, lines)


def call_fields() -> list[str]:
    """The names of what a call has."""
    return [*ARGUMENTS, *OWN]


def spread_call(program: Program) -> None:
    """The arguments of a call, and what is known of it, as parameters of their own."""
    fields = call_fields()
    changing = {name: _changed(tree, fields) for _, name, tree in program.functions() if _takes(tree, "call")}

    def spread(owner: str, name: str, tree: Any) -> Any:
        if "call" not in nodes.names(tree) and not _takes(tree, "call"):
            return tree
        if _takes(tree, "call"):
            params: list[cst.Param] = []
            for each in tree.params.params:
                if each.name.value == "call":
                    params += [cst.Param(cst.Name(field)) for field in fields]
                else:
                    params.append(each.with_changes(comma=cst.MaybeSentinel.DEFAULT))
            tree = tree.with_changes(params=tree.params.with_changes(params=params))
        tree = nodes.lines_mapped(tree, lambda lines: _assigned_fields(lines, changing))
        tree = tree.visit(
            nodes.Mapping(lambda call: _given(call, "call", [cst.Name(field) for field in fields], fields))
        )
        return nodes.replaced(tree, {f"call.{field}": cst.Name(field) for field in fields})

    program.mapped(spread)


def _takes(tree: Any, parameter: str) -> bool:
    return any(each.name.value == parameter for each in nodes.parameters(tree))


def _changed(tree: Any, fields: list[str]) -> list[str]:
    """The fields of a call that a function changes in the call that it returns, in their order."""
    found: set[str] = set()
    for call in nodes.calls(tree.body):
        if code(call.func) == "call._replace":
            found |= {each.keyword.value for each in call.args if each.keyword is not None}
    return [field for field in fields if field in found]


def _assigned_fields(lines: list[Any], changing: dict[str, list[str]]) -> list[Any]:
    """`call = call._replace(a=b)` as `a = b`, and returned calls as the fields that changed."""
    found: list[Any] = []
    for line in lines:
        made = nodes.assigned(line)
        if made is not None and code(made[0]) == "call" and code(made[1]).startswith("call._replace("):
            call: Any = made[1]
            pairs = [(each.keyword, each.value) for each in call.args]
            found += [nodes.assignment(*pair, like=line if n == 0 else None) for n, pair in enumerate(pairs)]
            continue
        if made is not None and (targets := nodes.elements(made[0])) is not None:
            values = nodes.elements(made[1])
            if values is not None and len(values) == len(targets):
                line = _parallel(line, targets, values)
            elif any(code(each) == "call" for each in targets) and isinstance(made[1], cst.Call):
                fields = changing.get(code(made[1].func).removeprefix("self."), [])
                new = [
                    one for each in targets for one in ([*map(cst.Name, fields)] if code(each) == "call" else [each])
                ]
                line = nodes.assignment(nodes.tuple_of(new, bare=True), made[1], like=line)
        found.append(line)
    return found


def _parallel(line: Any, targets: list[Any], values: list[Any]) -> Any:
    """`a, call = b, call._replace(c=d)` as `a, c = b, d`."""
    pairs: list[tuple[Any, Any]] = []
    for target, value in zip(targets, values, strict=True):
        if code(target) == "call" and code(value).startswith("call._replace("):
            pairs += [(each.keyword, each.value) for each in value.args]
        elif code(target) != "call" or code(value) != "call":
            pairs.append((target, value))
    left, right = zip(*pairs, strict=True)
    return nodes.assignment(nodes.tuple_of(left, bare=True), nodes.tuple_of(right, bare=True), like=line)


def _given(call: cst.Call, name: str, values: list[Any], keywords: list[str]) -> cst.Call:
    """A call with arguments by name in the place of one that is this name."""
    arguments: list[cst.Arg] = []
    changed = False
    for each in call.args:
        if code(each.value) != name:
            arguments.append(each)
            continue
        changed = True
        bare = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        arguments += [cst.Arg(v, cst.Name(k), equal=bare) for v, k in zip(values, keywords, strict=True)]
    return call.with_changes(args=arguments) if changed else call


def spread_parts(program: Program) -> None:
    """The numbers of a rotation, a norm or a temperature as parameters of their own."""
    for part, kind in PARTS.items():
        fields = [field.name for field in dataclasses.fields(kind)]
        names = {f"{part}.{field}": cst.Name(f"{part}_{field}") for field in fields}
        own = {f"self.{part}.{field}": nodes.expression(f"self.{part}_{field}") for field in fields}

        def spread(owner: str, name: str, tree: Any, part: str = part, fields: Any = fields, names: Any = names) -> Any:
            if _takes(tree, part):
                params: list[cst.Param] = []
                for each in tree.params.params:
                    if each.name.value == part:
                        params += [cst.Param(cst.Name(f"{part}_{field}")) for field in fields]
                    else:
                        params.append(each.with_changes(comma=cst.MaybeSentinel.DEFAULT))
                tree = tree.with_changes(params=tree.params.with_changes(params=params))

            def change(call: cst.Call) -> cst.Call:
                arguments: list[cst.Arg] = []
                for each in call.args:
                    text = code(each.value)
                    if text == part or text in OPTIONS_OF[part]:
                        parts = [f"{text}.{field}" if text != part else f"{part}_{field}" for field in fields]
                        arguments += [cst.Arg(nodes.expression(one)) for one in parts]
                    else:
                        arguments.append(each)
                return call if len(arguments) == len(call.args) else call.with_changes(args=arguments)

            return nodes.replaced(tree.visit(nodes.Mapping(change)), names)

        program.mapped(spread)
        for name, tree in list(program.definitions.items()):
            program.definitions[name] = _own_fields(nodes.replaced(tree, own), part, fields)


OPTIONS_OF = {
    "rotary": ("config.rotary",),
    "norm": ("config.qk_norm", "config.value_norm"),
    "temperature": ("config.temperature",),
}


def _own_fields(tree: Any, part: str, fields: list[str]) -> Any:
    """`self.norm = norm` as one assignment for each field, and `norm: Norm` as one annotation for each."""

    def change(lines: list[Any]) -> list[Any]:
        found: list[Any] = []
        for line in lines:
            made = nodes.assigned(line)
            small = nodes.small(line)
            if isinstance(small, cst.AnnAssign) and code(small.target) == part:
                found += [nodes.statement(f"{part}_{field}: {ANNOTATIONS[field]}\n") for field in fields]
                continue
            pairs = None if made is None else [made]
            if made is not None and (left := nodes.elements(made[0])) is not None:
                right = nodes.elements(made[1])
                pairs = list(zip(left, right, strict=True)) if right is not None and len(left) == len(right) else None
            if pairs is None or not any(code(target) == f"self.{part}" for target, _ in pairs):
                found.append(line)
                continue
            new: list[Any] = []
            for target, value in pairs:
                if code(target) == f"self.{part}":
                    own = [(f"self.{part}_{field}", f"{code(value)}_{field}") for field in fields]
                    new += [(nodes.expression(one), nodes.expression(other)) for one, other in own]
                else:
                    new.append((target, value))
            found += [nodes.assignment(*pair) for pair in new]
        return found

    return nodes.lines_mapped(tree, change)


ANNOTATIONS = {"kind": "str", "eps": "float", "over": "str", "after": "bool"}
