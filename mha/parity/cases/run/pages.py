"""Write results as a file: JUnit's XML for services that show tests, or a page for people."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from mha.parity.cases.suite import Result

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; } caption, th { text-align: left; }
td, th { padding: 0.1rem 0.8rem 0.1rem 0; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
.failed { font-weight: bold; color: #b00020; } :root { color-scheme: light dark; } .finding { white-space: pre-line; }
svg { display: block; } svg text { fill: currentColor; font: 12px ui-monospace, monospace; white-space: pre; }
.wrong { fill: #b00020; } .same { fill: #a5c8a8; } .wrong-padding { fill: #e0a040; } .padding { fill: #8884; }
@media (prefers-color-scheme: dark) { .failed { color: #ff8a80; } .wrong { fill: #ff5252; } .same { fill: #37593b; } }
"""
ROWS = 2000  # of tables in a page, which stays small; those of results that failed come first
CELL, LINE, LETTER = 9, 16, 7.3  # of a picture: width of a cell, height of a line, width of a letter
COLOURS = {"#": "wrong", ".": "same", "x": "wrong-padding", "-": "padding"}  # by the characters of `Place.picture`
About = dict[str, dict[str, str]]  # by backend


class Finding(NamedTuple):
    """What a page says first: the result in words, pictures by what they show, and the whole report as text.

    A picture is lines of characters as of `Place.picture`: the columns' name, and for each line its name and cells.
    """

    words: str = ""
    pictures: Sequence[tuple[str, Sequence[str]]] = ()
    report: str = ""


def junit(results: Iterable[Result], about: About, title: str) -> bytes:
    """Write results as JUnit's XML: a suite for each backend, a case for each result; title: of all of them.

    about: for each backend, the names of what ran and their versions, which become properties.
    """
    root = Element("testsuites", name=title)
    for backend, group in itertools.groupby(results, lambda result: result.backend):
        several = list(group)
        failures = str(sum(not result.passed for result in several))
        suite = SubElement(root, "testsuite", name=backend, tests=str(len(several)), failures=failures)
        properties = SubElement(suite, "properties")
        for name, version in about.get(backend, {}).items():
            SubElement(properties, "property", name=name, value=_printable(version))
        for result in several:
            name = ", ".join(filter(None, [result.dtype, result.case])) or result.check
            case = SubElement(suite, "testcase", classname=f"{backend}.{result.check}", name=name)
            if not result.passed:
                SubElement(case, "failure", message=_why(result))
    return ElementTree.tostring(root, "utf-8", xml_declaration=True)


def causes(results: Iterable[Result]) -> list[str]:
    """List the causes of errors, each once."""
    return list(dict.fromkeys(one.cause for one in results if one.cause))


def bars(named: Iterable[tuple[str, float | None, str]]) -> tuple[str, ...]:
    """Draw names with their ratio and verdict as lines of a picture: a cell for each doubling of a ratio above 1."""
    lines = []
    for name, ratio, verdict in named:
        cells = "." if verdict == "same" else "-"
        if verdict == "differs":
            doublings = math.log2(ratio) if ratio is not None and 1 < ratio < math.inf else 1 if ratio else 0
            cells = "#" * min(1 + int(doublings), 60)
        lines.append(f"{name}  {cells}")
    return ("  ratio 1, 2, 4, 8, ...", *lines) if lines else ()


def html(results: Sequence[Result], about: About, title: str, finding: Finding | None = None) -> bytes:
    """Write results as one page without scripts, with a title, and what was found above them.

    about: for each backend, the names of what ran and their versions.
    """
    page = Element("html", lang="en")
    head, body = SubElement(page, "head"), SubElement(page, "body")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", name="viewport", content="width=device-width")
    _text(head, "title", title)
    _text(head, "style", STYLE)
    _text(body, "h1", title)
    failed = sum(not result.passed for result in results)
    said = f"{failed} of {len(results)} results failed." if failed else f"{len(results)} results, all within bounds."
    _text(body, "p", said, **{"class": "failed"} if failed else {})
    if finding is not None:
        _show_finding(body, finding)
    shown = sorted(results, key=lambda result: result.passed)[:ROWS] if len(results) > ROWS else results
    if left := len(results) - len(shown):
        _text(body, "p", f"{left} results are not shown.")
    for backend, group in itertools.groupby(shown, lambda result: result.backend):
        several = list(group)
        _text(body, "h2", backend)
        _text(body, "p", ", ".join(f"{name} {version}" for name, version in about.get(backend, {}).items()))
        for cause in causes(several):
            _text(body, "p", cause)
        table = SubElement(SubElement(body, "div", {"class": "wide"}), "table")
        header = SubElement(SubElement(table, "thead"), "tr")
        for name in ("check", "case", "dtype", "error", "bound", "ratio", "result", "where"):
            _text(header, "th", name, scope="col")
        rows = SubElement(table, "tbody")
        for result in several:
            row = SubElement(rows, "tr", {} if result.passed else {"class": "failed"})
            for text in (result.check, result.case, result.dtype):
                _text(row, "td", text)
            for number in (result.error, result.bound, result.ratio):
                _text(row, "td", f"{number:.2g}", **{"class": "number"})
            _text(row, "td", "pass" if result.passed else "FAIL")
            _text(row, "td", result.where)
    return b"<!DOCTYPE html>\n" + ElementTree.tostring(page, "utf-8", method="html")


def _show_finding(body: Element, finding: Finding) -> None:
    """Add words, pictures and the report to a page."""
    if finding.words:
        _text(body, "p", finding.words, **{"class": "finding"})
    for what, lines in finding.pictures:
        _text(body, "p", what)
        _draw(SubElement(body, "div", {"class": "wide"}), lines)
    _text(SubElement(body, "div", {"class": "wide"}), "pre", finding.report)


def _draw(parent: Element, lines: Sequence[str]) -> None:
    """Draw the lines of a picture, equal cells that follow each other as one."""
    (_, _, across), *rows = (line.rpartition("  ") for line in lines)
    left = LETTER * max(len(label) for label, _, _ in rows) + CELL
    width = left + max(LETTER * len(across), CELL * max(len(cells) for _, _, cells in rows))
    size = {"width": f"{width:.0f}", "height": str(LINE * len(lines))}
    svg = SubElement(parent, "svg", size | {"role": "img", "aria-label": across})
    _text(svg, "text", across, x=f"{left:.0f}", y="12")
    for y, (label, _, cells) in enumerate(rows, 1):
        _text(svg, "text", label.rstrip(), x="0", y=str(LINE * y + 12))
        x = 0
        for cell, same in itertools.groupby(cells):
            count = len(list(same))
            place = {"x": f"{left + CELL * x:.0f}", "y": str(LINE * y + 1)}
            extent = {"width": str(CELL * count - 1), "height": str(LINE - 2)}
            SubElement(svg, "rect", {"class": COLOURS[cell]} | place | extent)
            x += count


def _why(result: Result) -> str:
    numbers = f"error {result.error:.2g}, bound {result.bound:.2g}, ratio {result.ratio:.2g}"
    return f"{_printable(result.where)}: {numbers}{'. ' * bool(result.cause)}{result.cause}"


def _text(parent: Element, name: str, text: str, **attributes: str) -> None:
    SubElement(parent, name, attributes).text = (
        text if name == "style" else "\n".join(map(_printable, text.split("\n")))
    )


def _printable(text: str) -> str:
    """Replace control characters, which an error may hold and XML may not."""
    return "".join(one if one.isprintable() else " " for one in text)
