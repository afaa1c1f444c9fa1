"""Check that lines of a narrow terminal break no word."""

import re

from commands import narrow, run

import mha


def shown(monkeypatch, width, *arguments):
    """Run a command at this width: its exit code, its words without the lines of frames, its lines."""
    narrow(monkeypatch, width)
    mha.manual_seed(0)  # for the layer of the demo
    result = run(*arguments, terminal_width=width - 2)  # as help is set
    lines = (result.stdout + result.stderr).splitlines()
    return result.exit_code, set(re.findall(r"[^\s─━│╭╮╰╯;]+", "\n".join(lines))), lines


def keeps_words(monkeypatch, *arguments, code=0):
    """Run a command at 60 columns, whose words must be those of a wide terminal; its lines."""
    wide_code, wide, _ = shown(monkeypatch, 250, *arguments)
    narrow_code, found, lines = shown(monkeypatch, 60, *arguments)
    assert (narrow_code, wide_code) == (code, code)
    assert found == wide
    assert [line for line in lines if len(line) > 60 and len(line.split()) > 1] == []
    return lines
