"""`mha grade` of one submission in NumPy: what is right, what differs and why, and what goes wrong in other ways."""

import os

import numpy as np
import pytest
from commands import run

from mha.learn.grade.cases import cases

from .graded.hostile import IN_A_LEVEL, WHILE_LOADED
from .graded.mistaken import RIGHT
from .graded.of_numpy import IN_NUMPY
from .graded.running import failed, graded, lacking, right

LONG = pytest.mark.long("numpy")  # of many of one kind, all but a few

LAYER = right("numpy_layer")
WRONG = LAYER.replace("< lens[..., None], X, -1e6", "<= lens[..., None], X, -1e6")


# 1. What is right, and what differs


@pytest.mark.parametrize("style", ["numpy_layer", "numpy_functions"])
def test_right_submissions_pass(tmp_path, style):
    result = graded(tmp_path, right(style))
    assert failed(result) == lacking(style)
    assert result.points == 90 - 10 * len(lacking(style))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=LONG)])
def test_right_submissions_pass_with_any_seed(tmp_path, seed):
    assert graded(tmp_path, LAYER, seed=seed)


@pytest.mark.parametrize(
    "mistaken", [pytest.param(one, marks=LONG if at % 4 else (), id=one.name) for at, one in enumerate(IN_NUMPY)]
)
def test_the_level_and_the_reason(tmp_path, mistaken):
    found = failed(graded(tmp_path, mistaken.text()), mistaken.failed)
    assert found == lacking(mistaken.style) | mistaken.failed


def test_a_mistake_counts_once_in_copies_too(tmp_path):
    wrong = LAYER.replace(" / np.sqrt(queries.shape[-1])", "").replace("1) / np.sqrt(q.shape[-1])", "1)")
    assert wrong.count("np.sqrt") == LAYER.count("np.sqrt") - 2
    result = graded(tmp_path, wrong, "1-6")
    assert failed(result) == {2: "no scale"}
    assert "which counts once" in result.levels[3].note


def test_empty_rows_count_if_asked_for(tmp_path):
    reason = "rows without keys are uniform"
    assert failed(graded(tmp_path, LAYER, "1-2", empty_rows=True), {1: reason}) == {1: reason}


@pytest.mark.parametrize("level", range(1, 10))
def test_another_seed_draws_other_inputs(level):
    first, again, other = (cases(level, seed)[0].inputs for seed in (1, 1, 2))
    assert all(np.array_equal(X, again[name]) for name, X in first.items())
    assert not any(np.array_equal(X, other[name]) for name, X in first.items() if X.dtype == np.float32)


def test_lengths_of_queries_are_of_queries():
    each = [case for level in (1, 2, 6) for case in cases(level, 0) if "(B, Q)" in case.words]
    assert [case.call["valid_lens"].ndim for case in each] == [2, 2, 2]


def test_names_may_be_others(tmp_path):
    text = LAYER.replace("self.W_q", "self.query").replace('getattr(self, f"W_{letter}")', "self.kernel(letter)")
    text += """
    def kernel(self, letter):
        return self.query if letter == "q" else self.others["o"] if letter == "o" else getattr(self, f"W_{letter}")


NAMES = {"W_q": "query", "W_o": "others.o"}
"""
    text = text.replace("self.W_o = ", "self.others = {}\n        self.others['o'] = ").replace(
        "self.W_o.T", "self.others['o'].T"
    )
    assert graded(tmp_path, text)
    assert (
        "has no W_q: call it so, or say NAMES"
        in graded(tmp_path, text.replace("NAMES", "OTHERS"), "4").levels[0].differs
    )


# 2. What a student reads


@pytest.mark.parametrize(("hints", "said", "unsaid"), [
    (0, "level 1, masked softmax: differs", "hint:"),
    (1, "hint: the attention weights (B*H, Q, K); look at the axis of keys", "why:"),
    (2, "why: lengths are one too long: key j = length is seen fix: hide keys j >= length", "none of the known"),
])  # fmt: skip
def test_hints(tmp_path, hints, said, unsaid):
    text = " ".join(str(graded(tmp_path, WRONG, "1-2", hints=hints)).split())
    assert said in text
    assert unsaid not in text


def test_an_error_is_shown_with_its_line(tmp_path):
    result = graded(tmp_path, "def masked_softmax(X, valid_lens):\n    return X / nothing\n", "1")
    assert "NameError: name 'nothing' is not defined (line 2, in masked_softmax)" in str(result)


def test_what_fails_while_it_is_loaded_hides_nothing_else(tmp_path):
    text = "import no_such_module\nassert 1 == 2\n" + right("numpy_functions")
    result = graded(tmp_path, text, "1-6")
    assert result
    assert "while it was loaded: ModuleNotFoundError: No module named 'no_such_module' (line 1" in str(result)


# 3. What goes wrong in other ways


@pytest.fixture
def typed():
    """Lines that wait in the standard input, as those of somebody who types ahead in a terminal."""
    (read, write), before = os.pipe(), os.dup(0)
    os.write(write, b"a line\n" * 9)
    os.dup2(read, 0)
    yield
    os.dup2(before, 0)
    for one in (read, write, before):
        os.close(one)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=LONG if at % 3 else ()) for at, name in enumerate(IN_A_LEVEL)]
)
@pytest.mark.usefixtures("typed")
def test_contained(tmp_path, name):
    text, status, words = IN_A_LEVEL[name]
    root = str(RIGHT.parents[2])
    result = graded(tmp_path, f"ROOT = {root!r}\n{text}", "1-3", limit=2)
    assert [one.status for one in result.levels] == [status, "passed", "passed"]
    assert words in result.levels[0].differs


@pytest.mark.parametrize("name", WHILE_LOADED)
def test_contained_while_it_is_loaded(tmp_path, name):
    text, status, words = WHILE_LOADED[name]
    result = graded(tmp_path, text, "1-3", limit=2)
    assert {one.status for one in result.levels} <= {status, "left"}
    assert words in result.levels[0].differs


# 4. The command


def test_the_command(tmp_path):
    path = tmp_path / "student.py"
    path.write_text(WRONG, encoding="utf-8")
    done = run("grade", str(path), "--levels", "1-3", "--gradescope", str(tmp_path / "results.json"))
    assert done.exit_code == 1
    assert "student.py, numpy: 20 of 30 points" in done.stdout
    assert run("grade", str(path), "--levels", "3").exit_code == 0


def test_what_is_flagged_is_no_plain_pass(tmp_path):
    path = tmp_path / "student.py"
    path.write_text(f"{right('numpy_layer')}\nimport mha\n", encoding="utf-8")
    done = run("grade", str(path), "--levels", "3")
    assert done.exit_code == 3
    assert "10 of 10 points" in done.stdout
    assert "mha cannot be imported here" in done.stdout
    path.write_text(f"{WRONG}\nimport mha\n", encoding="utf-8")
    assert run("grade", str(path), "--levels", "1-3").exit_code == 1


@pytest.mark.parametrize(("arguments", "words"), [
    (["nowhere.py"], "there is no file or folder nowhere.py"),
    (["{}", "--levels", "0-3"], "expected numbers from 1 to 9"),
    (["{}", "--levels", "x"], "expected numbers as 1-6 or 1,2,5"),
    (["{}", "-o", "grades.csv"], "--output is for a class"),
    (["{}", "--backend", "nothing"], "--backend"),
])  # fmt: skip
def test_wrong_commands(tmp_path, arguments, words):
    path = tmp_path / "student.py"
    path.write_text("", encoding="utf-8")
    done = run("grade", *(one.format(path) for one in arguments))
    assert done.exit_code == 2
    assert words in done.stderr
