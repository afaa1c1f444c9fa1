"""The command line as a whole: help, version, and what is wrong with a command in one line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run, run_installed

import mha
from mha import dispatch
from mha.cli.options import in_options


def test_without_a_command_the_help_is_shown():
    result = run()
    assert result.exit_code == 0
    assert result.stdout == run("--help").stdout
    commands = ("demo", "explain", "backends", "parity", "bench", "weights", "convert", "compare", "case")
    assert all(named in result.stdout for named in (*commands, "MHA_BACKEND", "Exit code"))


COMMANDS = ["demo", "explain", "backends", "parity", "weights show", "convert", "compare", "case write", "case check"]


@pytest.mark.parametrize("command", COMMANDS)
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
    name = arguments[1] if len(arguments) > 1 else "MHA_BACKEND"
    assert result.stderr == f"mha: {name} is 'cupy', expected one of numpy, torch, tensorflow, jax, mxnet\n"


@pytest.mark.parametrize("arguments", [["demo"], ["backends"], ["parity"], ["bench", "--backends", "numpy"]])
def test_a_mode_that_is_neither_on_nor_off_is_one_line(monkeypatch, arguments):
    monkeypatch.setenv("MHA_READABLE", "on")
    monkeypatch.setenv("MHA_BACKEND", "numpy")
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "mha: MHA_READABLE is 'on', expected one of 0, 1\n"


OPTIONS = {"scheme": "--from", "prefix": "--prefix", "num_heads": "--num-heads"}


@pytest.mark.parametrize(
    ("given", "text", "told"),
    [
        ({"scheme": "brt"}, "scheme is 'brt', expected one of auto", "--from is 'brt', expected one of auto"),
        ({"num_heads": 4}, "expected a multiple of num_heads = 4", "expected a multiple of --num-heads = 4"),
        ({}, "num_heads is None; pass num_heads=...", "--num-heads is not given; pass --num-heads ..."),
        ({}, "choose scheme='bert', prefix='a.0.'; or", "choose --from bert --prefix a.0.; or"),
        ({}, 'pass scheme="mha" and num_heads=3; else', "pass --from mha and --num-heads 3; else"),
        ({}, "choose scheme='d2l', prefix=''", "choose --from d2l --prefix ''"),
        ({}, "choose prefix='a b'", "choose --prefix 'a b'"),
        ({}, "none with scheme='auto', prefix=None; choose", "none with --from auto, no --prefix; choose"),
        ({"prefix": "\\1"}, r"prefix is '\\1'", r"--prefix is '\\1'"),
    ],
)  # fmt: skip
def test_errors_name_options_as_they_are_typed(given, text, told):
    given = dict.fromkeys(OPTIONS) | given
    assert in_options(text, OPTIONS, given) == told
    assert in_options(text, {}, given) == text


@pytest.mark.parametrize(
    "text",
    ["its configuration is wrong: num_heads is 40", "own_num_heads=3", "--prefix is 'a'", "no known scheme is there"],
)
def test_what_is_no_word_about_an_option_stays(text):
    assert in_options(text, OPTIONS, {"scheme": "bert", "prefix": "a", "num_heads": 4}) == text


@pytest.mark.parametrize("command", ["demo --backend", "parity --backends"])
def test_a_missing_framework_is_one_line_that_says_what_to_install(absent, command):
    result = run(*command.split(), absent)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert 'pip install "no-such-framework>=3"' in result.stderr


def test_nothing_that_is_installed_names_a_file_that_is_not():
    """What is said, in errors, help and docstrings, can be found by who has the package alone."""
    for path in (*Path(mha.__file__).parent.rglob("*.py"), *dispatch.FOLDER.rglob("*.py")):
        assert not re.search(r"\b(docs|examples|tests)/|\bREADME\b|\w\.md\b", path.read_text(encoding="utf-8")), path


def test_python_m_mha_is_the_command():
    ran = subprocess.run([sys.executable, "-m", "mha", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == run("--version").stdout


def test_the_shell_can_complete():
    asked = {"_MHA_COMPLETE": "complete_bash", "COMP_WORDS": "mha d", "COMP_CWORD": "1"}
    assert run_installed(**asked).stdout.split() == [b"demo"]
    assert all(option in run("--help").stdout for option in ("--install-completion", "--show-completion"))
