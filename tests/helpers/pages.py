"""The README and the pages of docs/, and the Python code in them, which tests run as it stands."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def text(page):
    """A page, named from the root of the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def code(page):
    """The blocks of Python code on a page, in their order."""
    return re.findall(r"```python\n(.*?)```", text(page), re.DOTALL)
