"""The notebooks of the course as they lie there: outputs and solutions are stored, nothing in them is one machine's.

`tox -e course` and `tox -e course-all` run them, solutions included: docs/make_course.py.
"""

import json
import re

import pages
import pytest

FOLDER = pages.ROOT / "docs" / "course"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def cells(name, kind):
    """The cells of a notebook that are code, or those that are Markdown."""
    return [cell for cell in read(name)["cells"] if cell["cell_type"] == kind]


def read(name):
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def printed(cell):
    """The output of a cell, as text."""
    texts = (output.get("text") or output["data"].get("text/plain", "") for output in cell["outputs"])
    return "".join(line for text in texts for line in text)


def test_the_course_has_five_notebooks_and_lists_them():
    assert [name[0] for name in NOTEBOOKS] == list("12345")
    assert re.findall(r"\]\((\S+\.ipynb)\)", pages.text("docs/course/README.md")) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_has_run_in_order(name):
    code = cells(name, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert {output["output_type"] for cell in code for output in cell["outputs"]} <= {
        "stream",
        "execute_result",
        "display_data",
    }
    assert [cell["source"] for cell in code if "print(" in "".join(cell["source"]) and not printed(cell)] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_is_stored_is_no_machines_own(name):
    """No addresses, no paths, no warnings, and no versions but those of the notebook's format."""
    for cell in cells(name, "code"):
        assert not re.search(r"0x[0-9a-f]{6,}|/tmp/|/home/|Warning", printed(cell)), printed(cell)
        assert all(output.get("name") != "stderr" for output in cell["outputs"])
    metadata = read(name)["metadata"]
    assert metadata["kernelspec"]["name"] == "python3"
    assert metadata["language_info"] == {"name": "python"}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_ends_with_exercises_whose_solutions_are_folded_away(name):
    texts = ["".join(cell["source"]) for cell in cells(name, "markdown")]
    exercises = [text for text in texts if text.startswith("**Exercise")]
    assert len(exercises) >= 3
    whole = "".join(texts)
    assert 0 < whole.index("## Exercises") < whole.index(exercises[0])
    for text in exercises:
        before, _, solution = text.partition("<details>\n<summary>Solution</summary>\n")
        assert "```" not in before
        assert re.search(r"```python\n.+?```\n\n```text\n.+?```.*</details>$", solution, re.DOTALL), text


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_links_lead_somewhere(name):
    for cell in cells(name, "markdown"):
        for link in re.findall(r"\]\((?!https://)([^)\s#]+)", "".join(cell["source"])):
            assert (FOLDER / link).exists(), link
