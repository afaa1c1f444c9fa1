"""`mha grade` of a class: files, notebooks and folders; its tables, and a run that goes on where it stopped."""

import csv
import json
import warnings

import pytest
from commands import run

from mha.learn.grade import classes, files
from mha.learn.grade.grade import Grader
from mha.learn.grade.levels import parse_levels

from .graded.running import failed, graded, right

LAYER = right("numpy_layer")
LONG = LAYER.replace("< lens[..., None], X, -1e6", "<= lens[..., None], X, -1e6")


@pytest.fixture
def folder(tmp_path):
    """A class of four: a file, one with a mistake, a notebook with the same, and a folder of two files."""
    import nbformat

    made = tmp_path / "class"
    (made / "dora" / "more").mkdir(parents=True)
    (made / "anna.py").write_text(LAYER, encoding="utf-8")
    (made / "bert.py").write_text(LONG, encoding="utf-8")
    cells = [
        "%matplotlib inline\nimport numpy as np",
        "!pip install numpy",
        "print(",
        LONG.replace("import numpy as np\n", ""),
        "%%time\n1 / 0",
        "1 / 0",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Me")])
    book.cells += [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(book, made / "carl.ipynb")
    first, name, rest = LAYER.partition("class MultiHeadAttention")
    (made / "dora" / "parts.py").write_text(first, encoding="utf-8")
    (made / "dora" / "attention.py").write_text(
        f"from parts import *\nimport numpy as np\n{name}{rest}", encoding="utf-8"
    )
    (made / "dora" / "more" / "notes.txt").write_text("notes", encoding="utf-8")
    (made / "readme.txt").write_text("for all", encoding="utf-8")
    return made


def rows(file):
    """The rows of a file of grades."""
    with file.open(encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def test_a_class(tmp_path, folder):
    output = tmp_path / "grades.csv"
    done = run("grade", str(folder), "-o", str(output), "--levels", "1-5", "--json", str(tmp_path / "all.json"))
    assert done.exit_code == 3, done.stderr
    assert "1 flagged, whose code somebody should read: carl.ipynb" in done.stdout
    found = rows(output)
    assert [row["name"] for row in found] == ["anna.py", "bert.py", "carl.ipynb", "dora"]
    assert [row["points"] for row in found] == ["50", "40", "40", "50"]
    assert [row["level 1 reason"] for row in found] == ["", *["lengths are one too long"] * 2, ""]
    assert "ZeroDivisionError" in found[2]["problem"]
    assert "lengths are one too long  2" in done.stdout
    assert "4 submissions, 45.0 of 50 points on average" in done.stdout
    assert json.loads((tmp_path / "all.json").read_text())["mistakes"] == [
        {"level": 1, "mistake": "lengths are one too long", "students": 2}
    ]


def test_a_run_goes_on_where_it_stopped(tmp_path, folder):
    output, grader = tmp_path / "grades.csv", Grader(parse_levels("1-2"))
    classes.grade_all(grader, folder, output, 1, lambda done, total: None)
    record = output.with_suffix(".jsonl")
    lines = record.read_text(encoding="utf-8").splitlines()
    record.write_text("\n".join([*lines[:3], lines[3][:50]]), encoding="utf-8")  # stopped while the last was written
    (folder / "bert.py").write_text(LAYER, encoding="utf-8")  # and handed in again
    counts = []
    again = classes.grade_all(grader, folder, output, 1, lambda done, total: counts.append((done, total)))
    kept = sum(json.loads(line)["name"] != "bert.py" for line in lines[:3])
    assert counts == [(count, 4) for count in range(kept, 5)]
    assert [row["points"] for row in again] == [20, 20, 10, 20]
    assert classes.grade_all(grader, folder, output, 1, lambda done, total: counts.append((done, total))) == again
    assert counts[-1] == (4, 4)


def test_another_way_to_grade_begins_anew(tmp_path, folder):
    output, counts = tmp_path / "grades.csv", []
    for seed in (1, 2):
        classes.grade_all(Grader(parse_levels("1"), seed), folder, output, 2, lambda done, total: counts.append(done))
    assert counts == [*range(5)] * 2


def test_gradescope(tmp_path):
    path = tmp_path / "student.py"
    path.write_text(LONG, encoding="utf-8")
    run("grade", str(path), "--levels", "1-2", "--gradescope", str(tmp_path / "results.json"))
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["score"] == 10
    assert [(one["number"], one["score"], one["max_score"], one["status"]) for one in found["tests"]] == [
        ("1", 0, 10, "failed"), ("2", 10, 10, "passed"),
    ]  # fmt: skip
    assert "lengths are one too long" in found["tests"][0]["output"]


def test_a_folder_without_submissions(tmp_path):
    done = run("grade", str(tmp_path))
    assert done.exit_code == 2
    assert "holds no submission" in done.stderr


def test_a_notebook_that_cannot_be_read(tmp_path):
    path = tmp_path / "student.ipynb"
    path.write_text("{}", encoding="utf-8")
    result = Grader(parse_levels("1")).grade(path)
    assert "is no notebook that can be read" in result.problem
    assert [one.status for one in result.levels] == ["raised"]


def test_a_notebook_whose_cells_have_no_names_is_read_in_silence(tmp_path):
    path = tmp_path / "student.ipynb"
    cell = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    book = {"cells": [cell | {"source": "%matplotlib\nx = 1"}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(book), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert files.cells(path) == "x = 1\n"


@pytest.mark.parametrize(("text", "found"), [
    ("import numpy as np", []),
    ("import torch.nn as nn", ["torch"]),
    ("from d2l import torch as d2l", ["torch"]),
    ("import numpy\nfrom flax import nnx", ["jax"]),
    ("import keras\nimport torch", ["tensorflow", "torch"]),
    ("def f():\n    import mlx.core as mx", ["mlx"]),
    ("from . import torch", []),
    ("import (", []),
])  # fmt: skip
def test_the_framework_is_that_of_the_imports(tmp_path, text, found):
    path = tmp_path / "student.py"
    path.write_text(text, encoding="utf-8")
    assert files.frameworks(path) == found


def test_a_framework_that_is_not_installed(tmp_path, absent):
    result = graded(tmp_path, "import jax", "1")
    assert failed(result) == {1: "raised"}
    assert "no_such_framework" in result.levels[0].differs
