"""Make the page: put the template, the style, the scripts and all data into one file that loads nothing."""

import functools
import json
import operator
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import mha
from mha.core import dispatch
from mha.learn.languages import LANGUAGES, catalogue
from mha.learn.page import lessons
from mha.learn.page.measures import NAMES
from mha.learn.plot import copying

SCRIPTS = (
    "random.js", "attention.js", "texts.js", "forms.js", "code.js", "player.js", "tables.js", "pictures/charts.js",
    "pictures/splits.js", "pictures/slots.js", "pictures/masks.js", "pictures/copies.js", "page.js",
)  # fmt: skip


def make(measured: Mapping[Any, Any], parity: Mapping[str, Any]) -> str:
    """Make the page as HTML.

    Args:
        measured: the result of `measure`; a backend that it lacks is shown as not installed.
        parity: a report of `mha parity --json`, or a mapping with its "backends" and "results".
    """
    files = resources.files(__name__.rpartition(".")[0])
    style, template = ((files / name).read_text(encoding="utf-8") for name in ("page.css", "page.html"))
    script = "\n".join((files / "scripts" / name).read_text(encoding="utf-8") for name in SCRIPTS)
    data: dict[str, Any] = {
        "version": mha.__version__,
        "frameworks": [{"name": name, "title": title} for name, title in dispatch.facts("TITLE").items()],
        "lessons": code(),
        "measured": dict(measured),
        "facts": list(NAMES),
        "copying": copying.page_data(),
        "parity": {"backends": parity["backends"], "rows": worst(parity["results"])},
        "texts": {language: catalogue(language)["terms"] | catalogue(language)["page"] for language in LANGUAGES},
    }
    parts = {"style": style, "script": script, "data": to_json(data)}
    text = re.sub(r"<!-- (style|script|data) -->", lambda found: parts[found[1]], template)
    english = data["texts"]["en"]
    return re.sub(
        r'(data-text="([\w.]+)"[^>]*>)(?=</)', lambda found: found[1] + escape(text_of(english, found[2])), text
    )


def text_of(texts: Mapping[str, Any], key: str) -> str:
    """The text of a key such as "splits.title"."""
    return functools.reduce(operator.getitem, key.split("."), texts)  # type: ignore[return-value]


def code() -> dict[str, Any]:
    """The chapters of the lessons as aligned functions, each with text, first line and differences by framework.

    marks: for each reference framework, the differences as (start, end) of characters.
    """
    read = {backend: lessons.read(backend) for backend in dispatch.FRAMEWORKS}
    chapters = []
    for chapter in dispatch.CHAPTERS:
        named = {backend: {piece.name: piece for piece in own[chapter]} for backend, own in read.items()}
        pieces = []
        for name in lessons.order([own[chapter] for own in read.values()]):
            found = {backend: own[name] for backend, own in named.items() if name in own}
            shown = {
                backend: {"first": piece.first, "text": piece.text, "marks": marks(piece.text, backend, found)}
                for backend, piece in found.items()
            }
            pieces.append({"name": name, "by": shown})
        chapters.append({"name": chapter, "pieces": pieces})
    lines = {backend: lessons.lines(backend) for backend in read}
    return {"chapters": chapters, "lines": lines, "steps": lessons.STEPS}


def marks(text: str, backend: str, found: Mapping[Any, lessons.Piece]) -> dict[str, list[tuple[int, int]]]:
    """The differences between a text and each other framework's, by framework."""
    return {other: lessons.differing(text, piece.text) for other, piece in found.items() if other != backend}


def worst(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Count results and failures of each backend and check, and find its largest ratio; None = not finite."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in results:
        found.setdefault((one["backend"], one["check"]), []).append(one)
    rows = []
    for (backend, check), those in found.items():
        ratios, failed = [one["ratio"] for one in those], sum(not one["passed"] for one in those)
        ratio = None if None in ratios else max(ratios)
        rows.append({"backend": backend, "check": check, "count": len(those), "failed": failed, "ratio": ratio})
    return rows


def to_json(data: Mapping[str, Any]) -> str:
    """Data as JSON for a script element, without "<", which could end the element."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def escape(text: str) -> str:
    """A text with HTML's special characters escaped."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
