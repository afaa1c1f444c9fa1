"""Rules for every source file, whatever is in it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


SOURCES = [
    path for folder in ("backends", "mha", "tests", "docs", "examples") for path in (ROOT / folder).rglob("*.py")
]


def test_no_control_characters():
    """An editor shows none of them, and some lose them."""
    assert len(SOURCES) > 50
    assert [path for path in SOURCES if re.search(r"[\x00-\x09\x0b-\x1f\x7f]", path.read_text(encoding="utf-8"))] == []


def test_no_file_is_several_things():
    assert {path.name: lines(path) for path in SOURCES if lines(path) > 450} == {}


def lines(path):
    return len(path.read_text(encoding="utf-8").splitlines())
