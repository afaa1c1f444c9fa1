"""The site: each page of docs/ is in its navigation, each public name in its reference."""

import pydoc
import re

import pages
import pytest

import mha
from mha import explain, heads, parallel, plot

DOCS = pages.ROOT / "docs"


def test_every_page_is_in_the_navigation_once():
    navigation = pages.text("mkdocs.yml").partition("nav:")[2].partition("theme:")[0]
    found = re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    notebooks = {path.relative_to(DOCS).with_suffix(".md").as_posix() for path in DOCS.rglob("*.ipynb")}
    assert sorted(found) == sorted({*written, *notebooks, "changes.md", "contributing.md"})


def test_every_public_name_is_in_the_reference():
    reference = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    shown = set(re.findall(r"^(?:::: | +heading: )(\S+)$", reference, re.MULTILINE))
    assert {f"mha.{name}" for name in mha.__all__} <= shown
    for module in (explain, heads, parallel, plot):
        assert {f"mha.{module.__name__.rpartition('.')[2]}.{name}" for name in module.__all__} <= shown
    assert {"mha.parity", "mha.testing"} <= shown


NAMES = re.compile(r"(?<![\w/.-])mha(?:\.[A-Za-z_]\w*)+")
ABSENT = {
    "mha.d2l.mlx",  # the page of MLX says that there is none
}


@pytest.mark.all_backends
def test_every_name_that_the_docs_use_exists():
    """Whatever room it lies in: as an attribute, and if it is a module as an import."""
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]
    names = {name for page in pages for name in NAMES.findall(page.read_text(encoding="utf-8"))}
    assert len(names) > 70
    assert [name for name in sorted(names - ABSENT) if pydoc.locate(name) is None] == []
