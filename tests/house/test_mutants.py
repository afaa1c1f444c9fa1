"""The tool that draws mutants: what it changes, which tests it runs, and what it says of those that none notices."""

import ast
import shutil
import subprocess
import sys

import mutants
import mutants_alike
import mutations
import pytest

from . import imported

SMALL = '''
"""At 1 < 2 and not 3: no code."""

import numpy as np
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    two = 2


@functools.lru_cache(maxsize=3)
def clamp(number: Literal[1, 2], most: "int | None" = None, *, least: int = 0) -> Literal[3, 4]:
    """Return 5 + 6."""
    if most:
        number = min(number, most)
    if number < least or not number:
        raise ValueError(f"é{number + 1:{least}} is {'-' * 3}")
    return np.clip(number, least, most, out=number)
'''


def changes(source):
    """What the mutants of a source change, by its lines."""
    return [(mutant.line, mutant.before, mutant.after) for mutant in mutations.mutants("mha/x.py", source)]


def test_mutants_change_code_and_no_texts_annotations_or_decorators():
    assert changes(SMALL) == [
        (12, "0", "1"),
        (14, "most", "not most"),
        (15, "min(number, most)", "max(number, most)"),
        (16, "number < least or not number", "number < least and (not number)"),
        (16, "number < least or not number", "not number"),
        (16, "number < least or not number", "number < least"),
        (16, "number < least", "number <= least"),
        (16, "not number", "number"),
        (17, """raise ValueError(f"é{number + 1:{least}} is {'-' * 3}")""", "pass"),
        (17, "number + 1", "number - 1"),
        (17, "1", "2"),
        (17, "1", "0"),
        (17, "3", "4"),
        (17, "3", "2"),
        (18, "return np.clip(number, least, most, out=number)", "return None"),
        (18, "np.clip(number, least, most, out=number)", "np.clip(number, least, most)"),
        (18, "np.clip(number, least, most, out=number)", "np.clip(least, number, most, out=number)"),
    ]


@pytest.mark.parametrize("source", [
    "x = [y for y in z if y]", "x = a if b else c", "x[0] = -y", "x += 1.5", "x.append(0.0)", "x = True", "del x",
    "x = {y: 1 for y in z if y if w}", "for x in y:\n    continue", "x = y if a is b in c else 2 ** 3 // 4",
    "x = any(y == 1 for y in z)", "x = y[1:] @ z", "if x:\n    y = 'é' + z\nelif w():\n    y = z.min()",
    "x = open(y, encoding='é')", "def x(y=lambda z: z * 2):\n    return", "x = f'{y:>{z - 1}}' f'{w!r}'",
    "x = zip(encoding, strict=True)",
])  # fmt: skip
def test_each_mutant_is_one_change_that_python_reads(source):
    tree = ast.dump(ast.parse(source))
    planted = [ast.dump(ast.parse(mutant.planted(source))) for mutant in mutations.mutants("mha/x.py", source)]
    assert tree not in planted
    assert len({*planted}) == len(planted)
    assert bool(planted) is ("encoding" not in source)


def test_mutants_that_change_nothing_exist_and_are_not_drawn():
    for file, listed in mutants_alike.ALIKE.items():
        source = (mutants.ROOT / file).read_text(encoding="utf-8")
        assert {*listed} <= {mutant.name for mutant in mutations.mutants(file, source)}
        assert not {*listed} & {mutant.name for mutant in mutants.drawn([file], 10**6, 0)}


def test_a_draw_is_the_same_each_time_and_another_with_another_seed():
    files = mutants.chosen(["mha/core/tables.py", "mha/learn/heads"], "")
    heads = [f"mha/learn/heads/{name}.py" for name in ("__init__", "importance", "pruning")]
    assert files == ["mha/core/tables.py", *heads]
    first, again, other = (mutants.drawn(files, 20, seed) for seed in (0, 0, 1))
    assert first == again
    assert len({*first}) == 20
    assert len({*first} & {*other}) < 10
    assert mutants.drawn(files, 10, 0) == first[:10]


def test_imports_are_followed_within_packages_and_functions(tmp_path):
    for name, source in {
        "mha/__init__.py": "from mha import one",
        "mha/one.py": "def f():\n    import mha.two",
        "mha/two.py": "if TYPE_CHECKING:\n    from mha import three",
        "mha/three.py": "",
        "backends/x/__init__.py": "from . import near\nfrom .near import g",
        "backends/x/near.py": "from mha.one import f\nimport numpy",
        "tests/test_all.py": "import mha\nmha.three.f()",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    named = imported.sources(tmp_path)
    graph = imported.modules(named)
    assert graph == {
        "mha": {"mha.one"},
        "mha.one": {"mha.two"},
        "mha.two": {"mha.three"},
        "mha.three": set(),
        "mha.backends.x": {"mha.backends.x.near"},
        "mha.backends.x.near": {"mha.one"},
        "test_all": {"mha", "mha.three"},
    }


@pytest.fixture
def checkout(tmp_path):
    """A checkout of one module and its tests, with the tool; and the function that runs it."""
    files = {
        "mha/__init__.py": "",
        "mha/small.py": "def double(x):\n    return x * 2\n\n\ndef half(x):\n    return x / 2\n",
        "backends/numpy/near.py": "NEAR = 1\n",
        "tests/conftest.py": "def pytest_addoption(parser):\n    parser.addoption('--backends')\n",
        "tests/test_small.py": "from mha import small\n\n\ndef test_double():\n    assert small.double(0) == 0\n",
        "tests/programs/mutants_alike.py": 'ALIKE = {"mha/small.py": {"double: 2 -> 1": "no one doubles more than 0"}}',
        "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = 'tests/programs'",
    }
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    for name in ("mutants", "mutations", "trials"):
        shutil.copy(mutants.ROOT / "tests" / "programs" / f"{name}.py", tmp_path / "tests" / "programs")

    def run(*options):
        command = [sys.executable, "tests/programs/mutants.py", "mha/small.py", "--backends", "numpy", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    return run, tmp_path


@pytest.mark.long("numpy")
def test_what_no_test_reaches_or_notices_is_shown_and_the_latter_is_an_error(checkout):
    run, folder = checkout
    result = run()
    assert (result.returncode, result.stdout.splitlines()[-1]) == (1, "1 of 3 mutants noticed; 0 may go unnoticed")
    assert [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line] == [
        ["mha", "3", "2", "4"],  # of `half`, 4 are not tried
        ["mha", "small.py:2", "x * 2", "x / 2"],
        ["mha", "small.py:2", "2", "3"],
    ]
    assert [line.split()[-1] for line in result.stdout.splitlines() if "small.py " in line] == ["6"]  # the line
    test = "from mha import small\n\n\ndef test():\n    assert small.double(4) == "
    (folder / "tests/test_small.py").write_text(f"{test}8\n")
    result = run()
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "3 of 3 mutants noticed; 0 may go unnoticed")
    (folder / "tests/test_small.py").write_text(f"{test}9\n")
    result = run()
    assert result.returncode == 2
    assert "without a mutant, the tests fail, with numpy" in result.stderr
    result = run("--tests", "no such")
    assert "--tests is 'no such', which no file of tests matches" in result.stderr
