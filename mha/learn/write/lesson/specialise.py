"""Specialise the lesson for one configuration: fold known values, and inline functions that are called once."""

from collections.abc import Callable, Collection
from typing import Any

import libcst as cst

from mha.core.call import ARGUMENTS
from mha.learn.write.lesson import caching, chapters, facts, pooled, spreading, texts
from mha.learn.write.lesson.variants import kernels
from mha.learn.write.recipe import Recipe
from mha.learn.write.trees import folding, inlining, linking, nodes, tidying
from mha.learn.write.trees.folding import PRESENT
from mha.learn.write.trees.nodes import code
from mha.learn.write.trees.program import LAYER, Program, takes

# Names that stay functions however short they are: they are the lesson's words.
WORDS = {"transpose_qkv", "transpose_output", "visible_keys", "visible_softmax", "widen"}


def specialise(recipe: Recipe) -> Program:
    """The program of the layer and the calls of a recipe."""
    config, backend, asked = recipe.config, recipe.backend, recipe.takes
    program, known = chapters.program(backend, recipe.kind), facts.values_of(config, asked)
    caching.without_what_is_not_asked(program, asked)
    pooled.with_one_method(program, blanks="cache" in asked)
    if recipe.fused:
        kernels.fuse(program, backend, blanks="cache" in asked)
    same = facts.names(config)
    program.map_definitions(lambda tree: nodes.replace(tree, same))
    _in_one(program, known)
    pooled.without_part(program)
    spreading.spread_call(program)
    spreading.spread_parts(program)
    program.map_definitions(lambda tree: nodes.replace(tree, same))
    program.words = texts.words_of(program)
    of_call = {name.removeprefix("call."): value for name, value in known.items() if name.startswith("call.")}
    _enter(program, of_call, asked)
    known |= {name: of_call[name] for name in ("window", "chunk", "gates", "sinks") if of_call[name] is not None}
    if config.window is not None:
        known["window[0]"] = known["window"][0]
    _until_nothing_changes(program, known, asked)
    program.map_functions(lambda owner, name, tree: tidying.drop_guard(tree))
    program.map_functions(lambda owner, name, tree: nodes.map_calls(tree, _in_order(program, owner)))
    program.map_functions(lambda owner, name, tree: tidying.join_lines(tree))
    if "cache" in asked:
        caching.with_empty(program, backend, config)
    linking.prune(program, _roots(program))
    return program


def _roots(program: Program) -> set[tuple[str, str]]:
    """The methods of the layer that users or their framework call."""
    names = program.entry, program.setup, caching.EMPTY, *program.asked
    return {(LAYER, name) for name in names if program.function(LAYER, name)}


def _in_one(program: Program, known: dict[str, Any]) -> None:
    """Inline the steps of the layer, which still pass a call on, into its entry."""
    linking.prune(program, _roots(program))
    program.map_functions(lambda owner, name, tree: tidying.tidy(tree, known))
    linking.prune(program, _roots(program))
    inputs = program.function(LAYER, "zero_unused")
    if inlining.returns_early(inputs):  # beside a cache, tokens are placed instead
        program.put(LAYER, "zero_unused", inlining.in_branches(inputs))
    while inlining.inline_one(program, program.definitions.keys() - {"pooling"}, only=""):
        pass
    while inlining.inline_one(program, {program.entry} | WORDS, only=LAYER):
        linking.prune(program, _roots(program))
        program.map_functions(lambda owner, name, tree: tidying.tidy(tree, known))


def _until_nothing_changes(program: Program, known: dict[str, Any], asked: Collection[str]) -> None:
    """Fold, take out and inline until nothing changes, since each may make room for the others."""
    before = ""
    while program.text() != before:
        before = program.text()
        program.map_functions(lambda owner, name, tree: tidying.tidy(tree, _within(name, known)))
        linking.link(program, _roots(program))
        while inlining.inline_one(program, {program.entry} | WORDS):
            pass
        if "cache" not in asked:
            program.put(LAYER, program.entry, _hiding_once(program.function(LAYER, program.entry)))


def _in_order(program: Program, owner: str) -> Callable[[cst.Call], cst.Call]:
    """A function that passes arguments by position in a call where they are in the order of the parameters."""

    def change(call: cst.Call) -> cst.Call:
        of, name = program.callee(owner, call) or ("", "")
        tree = program.function(of, name)
        if tree is None or name == "setup" or isinstance(tree.params.star_arg, cst.Param):
            return call
        order = takes(tree)
        given = [order[n] if each.keyword is None else each.keyword.value for n, each in enumerate(call.args)]
        if any(each.star for each in call.args) or given != order[: len(given)]:
            return call
        by_name = {each.name.value for each in tree.params.kwonly_params}
        pairs = zip(given, call.args, strict=True)
        return call.with_changes(args=[each if name in by_name else cst.Arg(each.value) for name, each in pairs])

    return change


def _hiding_once(tree: Any) -> Any:
    """The layer's entry with one call of `visible_keys`: split heads have the same visible keys as the inputs."""
    calls = [call for call in nodes.calls(tree) if code(call.func) == "visible_keys"]
    if len(calls) < 2:
        return tree
    assigned = (nodes.as_assignment(line) for line in nodes.body_of(tree))
    name = next(code(made[0]) for made in assigned if made is not None and made[1] is calls[0])
    second = code(calls[1])
    return nodes.map_calls(tree, lambda call: cst.Name(name) if code(call) == second else call)


def _within(name: str, known: dict[str, Any]) -> dict[str, Any]:
    """The known values inside of a function of this name."""
    if name == "visible_softmax":  # which calls itself without sinks
        return {text: value for text, value in known.items() if text != "sinks"}
    return known | {"in_size": PRESENT} if name == "dense" else known


def _enter(program: Program, known: dict[str, Any], asked: Collection[str]) -> None:
    """Give the layer's entry the arguments of the recipe, and the layer's own window and chunk."""
    tree = program.function(LAYER, program.entry)
    own = {name: nodes.expression(f"config.{name}") for name in ("window", "chunk")}
    tree = nodes.replace(tree, own)
    params = []
    for each in tree.params.params:
        name = each.name.value
        if name in asked:
            params.append(cst.Param(cst.Name(name), default=nodes.expression(repr(ARGUMENTS[name]))))
        elif name not in spreading.FIELDS:
            params.append(each)
    tree = nodes.with_parameters(tree, params)
    targets = nodes.targets(tree.body)
    changed = [name for name in (*ARGUMENTS, "columns") if name not in asked and name in targets]
    first = [nodes.assignment(cst.Name(name), nodes.expression(repr(ARGUMENTS.get(name)))) for name in changed]
    tree = nodes.with_body(tree, [*first, *nodes.body_of(tree)])
    fixed = [name for name in spreading.FIELDS if name in known and name not in {*asked, *changed, "window", "chunk"}]
    by: Any = {name: made for name in fixed if (made := folding.literal(known[name])) is not None}
    program.put(LAYER, program.entry, nodes.replace(tree, by))
