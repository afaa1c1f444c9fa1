"""The five lessons as text, cut into the functions that they share; where they differ; which line does which step.

Nothing here imports a framework: `layer.py` is read, not run, so that a framework need not be installed.
"""

import ast
import dataclasses
import difflib
import re

from mha import dispatch
from mha.explain.lines import computed
from mha.names import BackendName

# How a framework names the methods that every layer has.
SAME_METHOD = {"setup": "__init__", "forward": "__call__", "call": "__call__"}
TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
IMPORTS = "imports"

# The function and the statement in it that does each step of the player: a name
# that is assigned, or a number, of the statements after the docstring.
STEPS: dict[str, tuple[str, str | int]] = {
    "W_q": ("MultiHeadAttention.steps", "W_q"),
    "W_k": ("MultiHeadAttention.steps", "W_k"),
    "W_v": ("MultiHeadAttention.steps", "W_v"),
    "split_q_reshape": ("transpose_qkv", 1),
    "split_q_permute": ("transpose_qkv", 2),
    "split_q": ("transpose_qkv", 3),
    "split_k": ("MultiHeadAttention.steps", "split_k"),
    "split_v": ("MultiHeadAttention.steps", "split_v"),
    "visible": ("MultiHeadAttention.attend", "visible"),
    "scores": ("DotProductAttention.scores", -1),
    "weights": ("AttentionPooling.weigh", "weights"),
    "pooled": ("AttentionPooling.weigh", "pooled"),
    "merged_reshape": ("transpose_output", 1),
    "merged_permute": ("transpose_output", 2),
    "merged": ("transpose_output", 3),
    "output": ("MultiHeadAttention.steps", "output"),
}


@dataclasses.dataclass(frozen=True)
class Piece:
    """A function, the head of a class, or the imports of one lesson: its name as all have it, lines from `first`."""

    name: str
    first: int
    text: str


@dataclasses.dataclass(frozen=True)
class Lesson:
    """One backend's `layer.py`: its sections by title, the first without one, each with its pieces in order."""

    backend: BackendName
    sections: dict[str, list[Piece]]
    lines: dict[str, int]

    def piece(self, name: str) -> Piece | None:
        """The piece of a name, or None if this lesson has none."""
        return next((one for pieces in self.sections.values() for one in pieces if one.name == name), None)


def read(backend: BackendName) -> Lesson:
    """The lesson of a backend; lines: of each step of `STEPS`, as numbered in the file."""
    source = (dispatch.FOLDER / backend / "layer.py").read_text(encoding="utf-8")
    lines, tree = source.splitlines(), ast.parse(source)
    titles = {number: line[2:] for number, line in enumerate(lines, 1) if re.match(r"# \d\. ", line)}
    sections: dict[str, list[Piece]] = {"": [], **{title: [] for title in titles.values()}}
    for name, first, last in _spans(tree):
        title = ([""] + [title for number, title in titles.items() if number < first])[-1]
        sections[title].append(Piece(name, first, "\n".join(lines[first - 1 : last])))
    return Lesson(backend, sections, {step: _line(tree, *place) for step, place in STEPS.items()})


def order(lessons: list[Lesson]) -> dict[str, list[str]]:
    """The names of all pieces by section, each once; what only some lessons have comes where it stands there."""
    found: dict[str, list[str]] = {}
    for lesson in lessons:
        for title, pieces in lesson.sections.items():
            names = found.setdefault(title, [])
            at = 0
            for piece in pieces:
                if piece.name not in names:
                    names.insert(at, piece.name)
                at = names.index(piece.name) + 1
    return found


def differing(text: str, reference: str) -> list[tuple[int, int]]:
    """The words of a text that a reference has not at this place, as (start, end) of characters, without margins.

    Words are names, numbers and single signs; what is only moved in or broken differently is no difference.
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
    """The words of a text that are no space, each with where it starts."""
    return [(found[0], found.start()) for found in TOKEN.finditer(text) if not found[0].isspace()]


def _spans(tree: ast.Module) -> list[tuple[str, int, int]]:
    """Name, first and last line of each piece of a file, in order."""
    spans: list[tuple[str, int, int]] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
            head = [one for one in node.body if not isinstance(one, ast.FunctionDef)]
            spans.append((node.name, _first(node), head[-1].end_lineno or 0))
            named = {method.name for method in methods}
            for method in methods:
                common = SAME_METHOD.get(method.name, method.name)
                around = common == method.name and named & {own for own, name in SAME_METHOD.items() if name == common}
                shown = f"{common}, {', '.join(around)}" if around else common
                spans.append((f"{node.name}.{shown}", _first(method), method.end_lineno or 0))
        elif isinstance(node, ast.FunctionDef):
            spans.append((node.name, _first(node), node.end_lineno or 0))
        elif spans and spans[-1][0] == IMPORTS:
            spans[-1] = (IMPORTS, spans[-1][1], node.end_lineno or 0)
        else:
            spans.append((IMPORTS, _first(node), node.end_lineno or 0))
    return spans


def _first(node: ast.stmt) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])


def _line(tree: ast.Module, function: str, statement: str | int) -> int:
    """The line of a statement in a function: the one that assigns a name, or the one of this number."""
    *owner, name = function.split(".")
    body = tree.body
    if owner:
        (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and [node.name] == owner)
    (found,) = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    if isinstance(statement, int):
        return found.body[statement if statement < 0 else statement + 1].lineno
    (line,) = {one.lineno for one in ast.walk(found) if isinstance(one, ast.Assign) and statement in computed(one)}
    return line
