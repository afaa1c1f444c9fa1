"""Write the results of a suite as a file: JUnit's XML for services that show tests, or a page for people."""

import itertools
from collections.abc import Iterable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from mha.parity.cases.suite import Result

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; } caption, th { text-align: left; }
td, th { padding: 0.1rem 0.8rem 0.1rem 0; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
.failed { font-weight: bold; color: #b00020; } :root { color-scheme: light dark; }
@media (prefers-color-scheme: dark) { .failed { color: #ff8a80; } }
"""


def junit(results: Iterable[Result], title: str) -> bytes:
    """Write results as JUnit's XML: a suite for each backend, a case for each result; title: of all of them."""
    root = Element("testsuites", name=title)
    for backend, group in itertools.groupby(results, lambda result: result.backend):
        several = list(group)
        failures = str(sum(not result.passed for result in several))
        suite = SubElement(root, "testsuite", name=backend, tests=str(len(several)), failures=failures)
        for result in several:
            name = ", ".join(filter(None, [result.dtype, result.case])) or result.check
            case = SubElement(suite, "testcase", classname=f"{backend}.{result.check}", name=name)
            if not result.passed:
                SubElement(case, "failure", message=_why(result))
    return ElementTree.tostring(root, "utf-8", xml_declaration=True)


def html(results: list[Result], about: dict[str, dict[str, str]], title: str, report: str = "") -> bytes:
    """Write results as one page without scripts, with a title, and a report as text.

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
    if report:
        SubElement(SubElement(body, "div", {"class": "wide"}), "pre").text = "\n".join(
            map(_printable, report.split("\n"))
        )
    for backend, group in itertools.groupby(results, lambda result: result.backend):
        several = list(group)
        _text(body, "h2", backend)
        _text(body, "p", ", ".join(f"{name} {version}" for name, version in about.get(backend, {}).items()))
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


def _why(result: Result) -> str:
    return f"{_printable(result.where)}: error {result.error:.2g}, bound {result.bound:.2g}, ratio {result.ratio:.2g}"


def _text(parent: Element, name: str, text: str, **attributes: str) -> None:
    SubElement(parent, name, attributes).text = text if name == "style" else _printable(text)


def _printable(text: str) -> str:
    """Replace control characters, which an error may hold and XML may not."""
    return "".join(one if one.isprintable() else " " for one in text)
