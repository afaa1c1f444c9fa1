"""The command line as a whole: help, version, and what is wrong with a command in one line."""

import re
from pathlib import Path

import adapters
import pytest
from commands import refused, run, run_installed

import mha
from mha.core import dispatch
from mha.weights import argument_names


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
    name = arguments[1] if len(arguments) > 1 else "MHA_BACKEND"
    refused(f"mha: {name} is 'cupy', expected one of {adapters.NAMES}\n", *arguments)


@pytest.mark.parametrize("arguments", [["demo"], ["backends"], ["parity"], ["bench", "--backends", "numpy"]])
def test_a_mode_that_is_neither_on_nor_off_is_one_line(monkeypatch, arguments):
    monkeypatch.setenv("MHA_READABLE", "on")
    monkeypatch.setenv("MHA_BACKEND", "numpy")
    refused("mha: MHA_READABLE is 'on', expected one of 0, 1\n", *arguments)


OPTIONS = {"scheme": "--from", "prefix": "--prefix", "num_heads": "--num-heads", "rotary": "--rotary"}


@pytest.mark.parametrize(
    ("values", "code", "typed"),
    [
        ({"scheme": "bert", "prefix": "a.0."}, "scheme='bert', prefix='a.0.'", "--from bert --prefix a.0."),
        ({"scheme": "d2l", "prefix": ""}, "scheme='d2l', prefix=''", "--from d2l --prefix ''"),
        ({"prefix": "a b"}, "prefix='a b'", "--prefix 'a b'"),
        ({"scheme": "auto", "prefix": None}, "scheme='auto', prefix=None", "--from auto, no --prefix"),
        ({"num_heads": 3}, "num_heads=3", "--num-heads 3"),
        ({"num_heads": argument_names.Code("...")}, "num_heads=...", "--num-heads ..."),
        ({"rotary": None}, "rotary=None", "--rotary none"),
        ({"rotary": argument_names.Code("mha.Rotary(base=...)")}, "rotary=mha.Rotary(base=...)", "--rotary BASE"),
    ],
)
def test_errors_name_options_as_they_are_typed(values, code, typed):
    assert argument_names.setting(**values) == code
    with argument_names.use_names(OPTIONS):
        assert argument_names.setting(**values) == typed
    assert argument_names.setting(**values) == code


def test_names_inside_others_are_those_of_the_outermost():
    with (
        argument_names.use_names({"scheme_a": "--from-a"}),
        argument_names.use_names({"scheme": "scheme_a", "prefix": "prefix_a"}),
    ):
        assert (argument_names.name("scheme"), argument_names.name("prefix"), argument_names.name("num_heads")) == (
            "--from-a",
            "prefix_a",
            "num_heads",
        )


@pytest.mark.parametrize("command", ["demo --backend", "parity --backends", "bench --backends"])
def test_a_missing_framework_is_one_line_that_says_what_to_install(absent, command):
    refused('pip install "no-such-framework>=3"', *command.split(), absent)


def test_nothing_that_is_installed_names_a_file_that_is_not():
    """Names in errors, help and docstrings can be found by who has the package alone."""
    ours = {Path(mha.__file__).parent / "learn/grade/hand_out.py"}  # whose README is a file that it makes
    for path in {*Path(mha.__file__).parent.rglob("*.py"), *dispatch.FOLDER.rglob("*.py")} - ours:
        assert not re.search(r"\b(docs|examples|tests)/|\bREADME\b|\w\.md\b", path.read_text(encoding="utf-8")), path


def test_the_shell_can_complete():
    asked = {"_MHA_COMPLETE": "complete_bash", "COMP_WORDS": "mha d", "COMP_CWORD": "1"}
    assert run_installed(**asked).stdout.split() == [b"demo"]
    assert all(option in run("--help").stdout for option in ("--install-completion", "--show-completion"))
