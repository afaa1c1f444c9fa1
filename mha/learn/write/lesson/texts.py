"""Write the docstrings of a file: those of the lesson, without words about absent options, and those of its layer."""

import re
import textwrap
from collections.abc import Collection, Iterable
from typing import Any

import libcst as cst

from mha.core.call import ARGUMENTS, ROWS
from mha.core.options.config import MODERN
from mha.core.options.config import ROWS as OPTIONS
from mha.learn.write.trees import nodes
from mha.learn.write.trees.program import LAYER, Program, takes

WIDTH = 120
OTHERS = {
    "training": "whether to drop weights",
    "return_weights": "whether to return the weights, too",
    "cache": "a Cache of earlier tokens, which queries see, too; theirs are added, and a mask is by slots after that",
}
ALSO = {"segments": ("segment",), "sinks": ("sink",), "gates": ("gate",), "score_bias": ("bias",)}


def words_of(program: Program) -> dict[tuple[str, str], set[str]]:
    """The parameters of each function of a lesson, before any is taken out: the words of its docstring."""
    found = {}
    for owner, name, tree in program.functions():
        names = {*takes(tree)}
        found[owner, name] = names | ({"interleaved"} if "rotary_interleaved" in names else set())
    return found


def put_docstrings(program: Program, asked: Collection[str], given: dict[str, str]) -> None:
    """Give all definitions docstrings that speak only of arguments and options that the file has."""
    absent = {name for name in (*ARGUMENTS, *MODERN) if name not in asked and name not in given}
    absent = {word for name in absent for word in (name, *ALSO.get(name, ()))} | {"frozen"}
    for owner, name, tree in list(program.functions()):
        if owner == LAYER and name == program.setup:
            continue
        if owner == LAYER and name == program.entry:
            program.put(owner, name, _with_docstring(tree, _of_call(asked), 8))
            continue
        gone = program.words.get((owner, name), set()) - {*takes(tree)}
        program.put(owner, name, _filter_docstring(tree, absent | gone, 8 if owner else 4))
    for name, tree in list(program.definitions.items()):
        if isinstance(tree, cst.ClassDef) and name != LAYER:
            program.definitions[name] = _filter_docstring(tree, absent, 4)
    program.definitions[LAYER] = _with_docstring(program.definitions[LAYER], _of_layer(given), 4)


def _filter_docstring(tree: Any, absent: Iterable[str], indent: int) -> Any:
    """Take the sentences with one of these words, or about `mha`, out of the docstring of a function or class."""
    text = tree.get_docstring()
    if text is None:
        return tree
    first, _, rest = text.partition("\n\n")
    pattern = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, sorted(absent)))})(?!\w)|\bmha\b")
    sentences = re.split(r"(?<=\.)\s+(?=[A-Za-z(`])", " ".join(rest.split()))
    rest = " ".join(each for each in sentences if not pattern.search(each))
    return _with_docstring(tree, " ".join(first.split()) + (f"\n\n{rest}" if rest else ""), indent)


def _with_docstring(tree: Any, text: str, indent: int) -> Any:
    """A function or class with this docstring; text: a line, then, after an empty line, the rest."""
    first, _, rest = text.partition("\n\n")
    space = " " * indent
    wrapped = textwrap.wrap(
        rest, WIDTH, initial_indent=space, subsequent_indent=space, break_long_words=False, break_on_hyphens=False
    )
    text = "\n".join([f'"""{first}', *wrapped, f'{space}"""']) if rest else f'"""{first}"""'
    body = [nodes.statement(f"{text}\n"), *nodes.body_of(tree)]
    return tree.with_changes(body=tree.body.with_changes(body=body))


MEANINGS = {name: row.meaning for name, row in OPTIONS.items()} | {
    "rotary_dim": "number of components of a head that turn, the first ones",
    "rotary_base": "pair i of n of them turns by base ** (-i / n) from one position to the next",
    "rotary_frequencies": "the angles, in radians, by which the pairs turn from one position to the next",
    "rotary_magnitude": "number that the components which turn are multiplied by",
    "qk_norm_eps": "number that is added to the mean square of queries and keys before its root",
    "value_norm_eps": "number that is added to the mean square of values before its root",
    "temperature_scale": "number by which the logarithm in the factor of the queries is multiplied",
    "temperature_floor": "number of positions after which that factor grows again",
    "temperature_shift": "whole number that is added to each position for it",
    "rngs": "flax.nnx.Rngs, which draw the weights and dropout",
}


def _of_layer(given: dict[str, str]) -> str:
    return "Multi-head attention.\n\n" + " ".join(f"{name}: {MEANINGS[name]}." for name in given)


def _of_call(asked: Collection[str]) -> str:
    meanings = {name: row.meaning for name, row in ROWS.items()} | OTHERS
    if "offset" not in asked:
        meanings = {name: meaning.replace("offset + ", "") for name, meaning in meanings.items()}
    said = " ".join(f"{name}: {meanings[name]}." for name in ARGUMENTS if name in asked)
    attend, found = "Attend with queries (B, Q, any) to keys (B, K, any) and values (B, K, any)", "the output (B, Q, D)"
    more = [
        text
        for name, text in {
            "return_weights": ", with return_weights also the weights (B, H, Q, K) before dropout",
            "cache": ", with a cache also the next one",
        }.items()
        if name in asked
    ]
    if not more:
        return f"{attend}; returns {found}.\n\n{said}"
    return f"{attend}.\n\nReturns {found}{''.join(more)}. {said}"
