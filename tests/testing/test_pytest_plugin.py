"""The fixture `mha_backend` in somebody else's tests, in a folder and a process of their own."""

import os
import subprocess
import sys

import pages
import pytest

ALONE = """
import sys


def test_no_start_imports_mha():
    assert "mha" not in sys.modules
"""
TESTS = """
import pytest


def test_each(mha_backend):
    import mha
    assert mha.backends()[mha_backend].installed
    port = lambda q, k, v, attention, **call: attention(q, k, v, **call)
    mha.testing.assert_parity(port, mha_backend, cases="causal")


@pytest.mark.parametrize("mha_backend", ["numpy"], indirect=True)
@pytest.mark.parametrize("other", [1])
def test_the_one_that_is_told(mha_backend, other):
    assert mha_backend == "numpy"


class TestMethods:
    @pytest.mark.parametrize(("other", "mha_backend"), [(1, "numpy")], indirect=["mha_backend"])
    def test_told_with_another(self, mha_backend, other):
        assert mha_backend == "numpy"
"""


@pytest.fixture
def elsewhere(tmp_path):
    """A function that runs pytest on these tests alone, with the plugin; frameworks in `broken` raise as they load."""

    def run(*arguments, tests=TESTS, broken=()):
        (tmp_path / "test_elsewhere.py").write_text(tests)
        (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
        for name in broken:
            (tmp_path / f"{name}.py").write_text("raise OSError('libbroken.so: undefined symbol')\n")
        paths = [*([str(tmp_path)] if broken else []), str(pages.ROOT)]
        environment = {"PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "MHA_BACKEND": ""}
        command = [sys.executable, "-m", "pytest", "-p", "_mha_pytest_plugin", "-p", "no:cacheprovider", *arguments]
        result = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )
        return result.stdout + result.stderr

    return run


def test_a_test_runs_on_each_backend_that_is_asked_for(elsewhere):
    found = elsewhere("-v", "-k", "numpy")
    assert "test_each[numpy] PASSED" in found
    assert "test_the_one_that_is_told[1-numpy] PASSED" in found
    assert "test_told_with_another[1-numpy] PASSED" in found
    assert "3 passed" in found


def test_mha_is_not_imported_without_need(elsewhere):
    assert "1 passed" in elsewhere(tests=ALONE)
    assert "mha_backend [session scope]" in elsewhere("--fixtures", tests=ALONE)


def test_a_broken_framework_is_an_error_of_its_own_tests_alone(elsewhere):
    found = elsewhere("-k", "test_each and (numpy or torch)", broken=["torch"])
    assert "1 passed" in found
    assert "1 error" in found
    assert "OSError: libbroken.so: undefined symbol" in found
