"""The files of results that several commands write: JUnit's XML, and a page for browsers."""

from typing import Annotated

import typer

from mha.cli import terminal
from mha.parity import Result
from mha.parity.cases.run import pages

Junit = Annotated[str | None, typer.Option(metavar="FILE", help="Also write every result as JUnit's XML to FILE.")]
Html = Annotated[
    str | None, typer.Option(metavar="FILE", help="Also write every result as a page for browsers to FILE.")
]


class ResultFiles:
    """The files that --junit and --html name, checked before anything is computed."""

    def __init__(self, title: str, junit: str | None, html: str | None) -> None:
        self.title = title
        self.junit = terminal.writable("--junit", junit) if junit else None
        self.html = terminal.writable("--html", html) if html else None

    def write(self, results: list[Result], about: dict[str, dict[str, str]], report: str = "") -> None:
        """Write them; about: for each backend, what ran and its version; report: a text for the page."""
        if self.junit:
            terminal.write(self.junit, pages.junit(results, self.title))
        if self.html:
            terminal.write(self.html, pages.html(results, about, self.title, report))
