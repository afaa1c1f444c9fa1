"""Read the lessons as text: cut their chapters into functions, find differences and the lines of steps.

Nothing here imports a framework: the files are read, not run, so that a framework need not be installed.
"""

import ast
import dataclasses
import difflib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from mha.core import dispatch
from mha.core.options.names import BackendName
from mha.learn.explain.lines import place

# The frameworks' own names of methods that every layer has.
SAME_METHOD = {"setup": "__init__"} | {
    method: "__call__" for method in dispatch.facts("METHOD", "__call__").values() if method != "__call__"
}
TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
IMPORTS = "imports"

# The steps of the player, in order.
STEPS = (
    "W_q", "W_k", "W_v", "reshape_q", "permute_q", "split_q", "split_k", "split_v", "visible", "scores", "weights",
    "pooled", "reshape_pooled", "permute_pooled", "merged", "output",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Piece:
    """A function, the head of a class, or the imports of a chapter: its common name, its first line and its text."""

    name: str
    first: int
    text: str


def read(backend: BackendName) -> dict[str, list[Piece]]:
    """The chapters of a backend's lesson by name, each with its pieces in order."""
    return {chapter: _pieces(dispatch.FOLDER / backend / f"{chapter}.py") for chapter in dispatch.CHAPTERS}


def lines(backend: BackendName) -> dict[str, str]:
    """The line of each step of `STEPS` in a backend's folder, as "heads.py:24"."""
    found = {step: place(backend, step) for step in STEPS}
    return {step: f"{one.file.partition('/')[2]}:{one.line}" for step, one in found.items()}


def order(chapters: list[list[Piece]]) -> list[str]:
    """Merge the names of a chapter's pieces over several backends into one order, each name once."""
    names: list[str] = []
    for pieces in chapters:
        at = 0
        for piece in pieces:
            if piece.name not in names:
                names.insert(at, piece.name)
            at = names.index(piece.name) + 1
    return names


def differing(text: str, reference: str) -> list[tuple[int, int]]:
    """The words of a text that differ from a reference, as (start, end) of characters.

    Words are names, numbers and single signs; another indentation or line break is no difference.
    """
    ours, theirs = _words(text), _words(reference)
    matcher = difflib.SequenceMatcher(None, [word for word, _ in ours], [word for word, _ in theirs], autojunk=False)
    marked: list[tuple[int, int]] = []
    for change, first, last, _, _ in matcher.get_opcodes():
        if change == "equal":
            continue
        for word, start in ours[first:last]:
            joins = marked and text[marked[-1][1] : start].strip(" ") == ""  # words in a row are one mark
            marked.append((marked.pop()[0] if joins else start, start + len(word)))
    return marked


def _words(text: str) -> list[tuple[str, int]]:
    """The words of a text, without spaces, each with its position."""
    return [(found[0], found.start()) for found in TOKEN.finditer(text) if not found[0].isspace()]


def _pieces(path: Path) -> list[Piece]:
    """The pieces of a file in order, each with the comments and constants in front of it."""
    source, pieces, first = path.read_text(encoding="utf-8"), [], 1
    lines = source.splitlines()
    for name, last in _ends(ast.parse(source)):
        while not lines[first - 1]:
            first += 1
        pieces.append(Piece(name, first, "\n".join(lines[first - 1 : last])))
        first = last + 1
    return pieces


def _ends(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Name and last line of each piece of a file, in order."""
    imports = itertools.takewhile(lambda node: not isinstance(node, (ast.ClassDef, ast.FunctionDef)), tree.body)
    yield IMPORTS, max(node.end_lineno or 0 for node in imports)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
            head = [one for one in node.body if not isinstance(one, ast.FunctionDef)]
            yield node.name, head[-1].end_lineno or 0
            named = {method.name for method in methods}
            for method in methods:
                common = SAME_METHOD.get(method.name, method.name)
                around = common == method.name and named & {own for own, name in SAME_METHOD.items() if name == common}
                shown = f"{common}, {', '.join(around)}" if around else common
                yield f"{node.name}.{shown}", method.end_lineno or 0
        elif isinstance(node, ast.FunctionDef):
            yield node.name, node.end_lineno or 0
