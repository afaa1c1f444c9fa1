"""The files of results that several commands write: JUnit's XML, and a page for browsers."""

import math
from collections.abc import Iterable
from typing import Annotated, Any

import mha
from mha.cli import terminal
from mha.cli.terminal import option
from mha.parity import Report, Result
from mha.parity.cases.run import pages
from mha.parity.cases.run.pages import Finding
from mha.parity.diagnosis.compare.report import describe_row

Junit = Annotated[str | None, option("FILE", "Also write every result as JUnit's XML to FILE.")]
Html = Annotated[str | None, option("FILE", "Also write the results as a page for browsers to FILE.")]
PLACES = "Red differs, green is the same, orange differs in padding, gray is padding."
BARS = "Red differs, green is the same, gray was not compared."


class ResultFiles:
    """The files that --junit and --html name, checked before anything is computed."""

    def __init__(self, title: str, junit: str | None, html: str | None) -> None:
        self.title = title
        self.junit = terminal.writable("--junit", junit) if junit else None
        self.html = terminal.writable("--html", html) if html else None

    def write(self, results: list[Result], about: pages.About, finding: Finding | None = None) -> None:
        """Write them; about: for each backend, what ran and its version; finding: what the page says first."""
        if self.junit:
            terminal.write(self.junit, pages.junit(results, about, self.title))
        if self.html:
            terminal.write(self.html, pages.html(results, about, self.title, finding))

    def write_report(
        self, name: str, report: Any, results: Iterable[Result], differing: Report | None, path: str = ""
    ) -> None:
        """Write the results of a report, one more if it is false for a reason that none of them has.

        name: of what was judged; report: with `verdict`, and perhaps `bars`; differing: of its first wrong layer, at
        the path.
        """
        if not (self.junit or self.html):
            return
        several = list(results)
        if not report and all(one.passed for one in several):
            several.append(Result(name, "verdict", "", "", report.verdict, math.inf, 1.0))
        named = report.bars() if hasattr(report, "bars") else ()
        about = {one.backend: {"mha": mha.__version__} for one in several}
        self.write(several, about, find(differing, str(report), path, report.verdict, pages.bars(named)))


def find(
    differing: Report | None, report: str, path: str = "", verdict: str = "", bars: tuple[str, ...] = ()
) -> Finding:
    """Return what a page says first: the verdict, the array that differs first, where, and why.

    differing: the report of the layer at the path, or of the kernel, None = none differs; report: the whole as text.
    """
    words, pictures = [verdict] if verdict else [], []
    first = None if differing is None else differing.first
    if differing is not None and first is not None:
        words += [": ".join(filter(None, ["first to differ", path, describe_row(first)])), str(differing.diagnosis)]
        if first.place is not None:
            pictures.append((f"{first.title or first.name}. {PLACES}", first.place.picture))
    if bars:
        pictures.append((BARS, bars))
    return Finding("\n".join(words), pictures, report)
