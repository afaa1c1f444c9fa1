"""The tools that plant bugs and draw mutants: each bug has tests, and what no test notices is an error."""

import re
import shutil
import subprocess
import sys

import mutants
import mutants_alike
import mutations
import pages
import plant_bugs
import pytest
from trials import Trial


def test_every_bug_has_its_function_and_files_of_tests_and_the_page_counts_them(backend):
    said = re.search(r"puts more than (\d+) mistakes into each backend", pages.text("docs/testing.md"))
    assert int(said[1]) < len(plant_bugs.bugs_of(backend)) < int(said[1]) + 20


def test_mutants_that_change_nothing_exist_and_are_not_drawn():
    for file, listed in mutants_alike.ALIKE.items():
        source = (mutants.ROOT / file).read_text(encoding="utf-8")
        assert {*listed} <= {mutant.name for mutant in mutations.mutants(file, source)}
        assert not {*listed} & {mutant.name for mutant in mutants.drawn([file], 10**6, 0)}


OK, FAILED, DIED, USAGE = (pytest.ExitCode[name] for name in ("OK", "TESTS_FAILED", "INTERNAL_ERROR", "USAGE_ERROR"))


@pytest.mark.parametrize(
    ("code", "without", "noticed"),
    [(OK, None, False), (FAILED, None, True), (DIED, OK, True), (USAGE, OK, True), (USAGE, USAGE, None)],
    ids=["none fails", "one fails", "the process ends", "an import fails", "none runs without a mutant"],
)
def test_a_mutant_is_noticed_by_tests_that_go_well_without_it(monkeypatch, tmp_path, code, without, noticed):
    monkeypatch.setattr(mutants, "trial_of", lambda changed, *given: Trial(code if changed else without))
    given = {"mha/small.py": ""}, tmp_path, "numpy", ["tests/test_small.py::test"]
    if noticed is None:
        with pytest.raises(RuntimeError, match=r"without a mutant, pytest ended with .*test_small.py::test.* numpy"):
            mutants.notices(*given)
    else:
        assert mutants.notices(*given) is noticed


FILES = {
    "mha/__init__.py": "",
    "mha/small.py": "def double(x):\n    return x + x\n\n\ndef half(x):\n    return x / 2\n",
    "backends/numpy/near.py": "NEAR = 1\n",
    "tests/conftest.py": "def pytest_addoption(parser):\n    parser.addoption('--backends')\n",
    "tests/test_small.py": "from mha import small\n\n\ndef test_double():\n    assert small.double(0) == 0\n",
    "tests/further/conftest.py": "",  # which is for these tests alone
    "tests/further/test_further.py": "from mha import small\n\n\ndef test_zero():\n    assert not small.double(0)\n",
    "tests/programs/mutants_alike.py": "ALIKE = {}",
    "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = 'tests/programs'",
}


@pytest.mark.long("numpy")
def test_what_no_test_notices_is_shown_and_an_error(tmp_path):
    for name, source in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    for name in ("mutants", "mutations", "trials"):
        shutil.copy(mutants.ROOT / "tests" / "programs" / f"{name}.py", tmp_path / "tests" / "programs")
    command = [sys.executable, "tests/programs/mutants.py", "mha/small.py", "--backends", "numpy"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 1, result.stderr
    assert result.stdout.endswith("\n1 of 2 mutants noticed; 0 may go unnoticed\n")
    rows = [re.sub(r"[│\s]+", " ", line).strip() for line in result.stdout.splitlines() if "│" in line]
    assert rows == ["mha 2 1 4", "mha small.py:2 x + x x - x"]  # of `half`, 4 are not tried
