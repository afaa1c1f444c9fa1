"""`mha grade --hand-out`: a skeleton that the grader calls, and visible tests that a right submission passes."""

import ast
import shutil
import subprocess
import sys

import pytest
from commands import run

from mha.core import dispatch
from mha.learn.grade import hand_out
from mha.learn.grade.grade import Grader
from mha.learn.grade.levels import LEVELS, parse_levels

from .graded.mistaken import RIGHT
from .graded.running import failed

LONG = pytest.mark.long(*dispatch.FRAMEWORKS)


# A style that follows the skeleton, and the levels that it has.
SOLVED = {
    "numpy": ("numpy_layer", "1-6"), "torch": ("torch_layer", "1-6"), "jax": ("jax_layer", "1-6"),
    "tensorflow": ("tensorflow_einsum", "1,3-6"), "mlx": ("mlx_layer", "1-5"),
}  # fmt: skip


def visible(folder):
    """Run the visible tests in a process without mha, and return what pytest says last, and its exit code."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:mha", "-p", "no:cacheprovider", "--rootdir", "."]
    done = subprocess.run([*command, "test_attention.py"], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout.strip().splitlines()[-1]


@pytest.mark.long("tensorflow")
@pytest.mark.parametrize("levels", ["1-9", pytest.param("1-6", marks=LONG), pytest.param("3,5", marks=LONG)])
def test_the_skeleton_is_what_the_grader_calls(tmp_path, backend, levels):
    hand_out.write(tmp_path, backend, parse_levels(levels))
    result = Grader(parse_levels(levels), backend=backend, limit=120).grade(tmp_path / "attention.py")
    assert failed(result) == {level.number: "missing" for level in parse_levels(levels)}
    assert {one.differs for one in result.levels if one.level.number != 7} == {"it raises NotImplementedError"}
    assert result.framework == backend


@pytest.mark.backends(*SOLVED)
@pytest.mark.long("torch", "tensorflow", "jax")
def test_right_submissions_pass_the_visible_tests(tmp_path, backend):
    style, levels = SOLVED[backend]
    hand_out.write(tmp_path, backend, parse_levels(levels))
    assert visible(tmp_path)[1].startswith(f"{len(parse_levels(levels))} failed")
    shutil.copy(RIGHT / f"{style}.py", tmp_path / "attention.py")
    assert visible(tmp_path)[0] == 0


@pytest.mark.parametrize(("level", "old", "new"), [
    (2, " / np.sqrt(queries.shape[-1])", ""),
    (5, "/ np.sqrt(q.shape[-1])\n        Q", "/ np.sqrt(queries.shape[-1])\n        Q"),
])  # fmt: skip
def test_the_visible_tests_find_mistakes(tmp_path, level, old, new):
    hand_out.write(tmp_path, "numpy", parse_levels(str(level)))
    text = (RIGHT / "numpy_layer.py").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "attention.py").write_text(text.replace(old, new), encoding="utf-8")
    assert visible(tmp_path)[1].startswith("1 failed")


CALL = ["queries", "keys", "values", "valid_lens"]


@pytest.mark.parametrize(("levels", "init", "call"), [
    ("4-5", [], CALL),
    ("4-6", [], [*CALL, "mask", "causal"]),
    ("5,8", ["num_key_value_heads", "rotary"], CALL),
    ("5,9", [], [*CALL, "cache"]),
])  # fmt: skip
@pytest.mark.parametrize("name", ["numpy", "torch", "tensorflow", "mxnet", "mlx"])
def test_the_layer_has_the_arguments_of_its_levels(name, levels, init, call):
    made = ast.parse(hand_out.texts(name, parse_levels(levels))["attention.py"])
    layer = next(one for one in made.body if getattr(one, "name", "") == "MultiHeadAttention")
    methods = {
        one.name: [given.arg for given in one.args.args][1:] for one in layer.body if isinstance(one, ast.FunctionDef)
    }
    known = {"torch": "forward", "tensorflow": "call", "mxnet": "forward"}
    assert methods == {
        "__init__": ["num_hiddens", "num_heads", "dropout", "bias", *init], known.get(name, "__call__"): call,
    }  # fmt: skip


@pytest.mark.parametrize("name", dispatch.FRAMEWORKS)
def test_docstrings_are_those_of_the_lesson(name):
    made = ast.parse(hand_out.texts(name, LEVELS)["attention.py"])
    chapters = [(dispatch.FOLDER / name / f"{path}.py").read_text(encoding="utf-8") for path in ("hiding", "heads")]
    defined = [one for text in chapters for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)]
    lesson = {one.name: one for one in defined}
    functions = [one for one in made.body if isinstance(one, ast.FunctionDef)]
    assert [one.name for one in functions] == ["masked_softmax", "transpose_qkv", "transpose_output"]
    for one in functions:
        assert ast.get_docstring(one) == ast.get_docstring(lesson[one.name])
        assert ast.unparse(one.args) == ast.unparse(lesson[one.name].args)


def test_the_command_writes_a_folder_once(tmp_path):
    folder = tmp_path / "assignment"
    done = run("grade", "--hand-out", "torch", "--levels", "1-6", "-o", str(folder))
    assert done.exit_code == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "attention.py", "test_attention.py"]
    assert "pip install numpy torch pytest" in (folder / "README.md").read_text(encoding="utf-8")
    again = run("grade", "--hand-out", "torch", "-o", str(folder))
    assert again.exit_code == 2
    assert "is there already" in again.stderr


@pytest.mark.parametrize(("arguments", "words"), [
    (["--hand-out", "torch"], "needs a folder"),
    (["student.py", "--hand-out", "torch", "-o", "x"], "grades nothing"),
    (["--hand-out", "nothing", "-o", "x"], "--hand-out"),
    ([], "PATH is missing"),
])  # fmt: skip
def test_wrong_commands(arguments, words):
    done = run("grade", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
