"""The command line as a whole: help, version, and what is wrong with a command in one line."""

import re
import subprocess
import sys

import pytest
from commands import run, run_installed

import mha


def test_without_a_command_the_help_is_shown():
    result = run()
    assert result.exit_code == 0
    assert result.stdout == run("--help").stdout
    assert all(
        command in result.stdout
        for command in ("demo", "backends", "parity", "bench", "weights", "convert", "MHA_BACKEND", "Exit codes")
    )


@pytest.mark.parametrize("command", ["demo", "backends", "parity", "weights show", "convert"])
def test_help_has_an_example(command):
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples?:\n.*mha {command}", result.stdout)


def test_version():
    assert run("--version").stdout == f"mha {mha.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["demo"], ["demo", "--backend", "cupy"], ["backends"], ["parity", "--backends", "cupy"]]
)
def test_an_unknown_backend_is_one_line_that_lists_the_known(monkeypatch, arguments):
    monkeypatch.setenv("MHA_BACKEND", "cupy")
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert re.fullmatch(r"mha: \w+ is 'cupy', expected one of numpy, torch, tensorflow, jax, mxnet\n", result.stderr)


@pytest.mark.parametrize("command", ["demo --backend", "parity --backends"])
def test_a_missing_framework_is_one_line_that_says_what_to_install(absent, command):
    result = run(*command.split(), absent)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert 'pip install "no-such-framework>=3"' in result.stderr


def test_python_m_mha_is_the_command():
    ran = subprocess.run([sys.executable, "-m", "mha", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == run("--version").stdout


def test_the_shell_can_complete():
    asked = {"_MHA_COMPLETE": "complete_bash", "COMP_WORDS": "mha d", "COMP_CWORD": "1"}
    assert run_installed(**asked).stdout.split() == [b"demo"]
