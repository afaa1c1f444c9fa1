"""What holds for every source file, whatever is in it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_no_control_characters():
    """An editor shows none of them, and some lose them."""
    sources = [path for folder in ("backends", "mha", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 50
    assert [path for path in sources if re.search(r"[\x00-\x09\x0b-\x1f\x7f]", path.read_text(encoding="utf-8"))] == []
