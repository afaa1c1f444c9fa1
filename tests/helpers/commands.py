"""Run the commands of `mha`, as the tests of the command line do, also on narrow terminals, which break no word."""

import os
import re
import shutil
import subprocess
import sysconfig

from rich.progress import Progress
from typer.testing import CliRunner

import mha
from mha import cli
from mha.cli import terminal


def run(*arguments, **options):
    """A command in this process: its exit code and what it printed; terminal_width: of its help."""
    return CliRunner().invoke(cli.app, arguments, **options)


def refused(words, *arguments):
    """Assert that a command is refused with exit code 2: it prints nothing but one line on stderr, with these words."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), arguments
    assert result.stderr.startswith("mha: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def narrow(monkeypatch, width):
    """Let commands in this process print as on a terminal of this width; progress bars are left out."""
    looks = {"width": width, "force_terminal": True, "color_system": None}
    looks |= dict.fromkeys(("markup", "highlight", "emoji"), False)
    monkeypatch.setattr(terminal, "console", lambda stderr=False: terminal.Terminal(stderr=stderr, **looks))
    monkeypatch.setattr(terminal, "progress", lambda: Progress(disable=True))


def run_installed(*arguments, **environment):
    """The installed command in a process of its own, its output in pipes."""
    command = shutil.which("mha", path=sysconfig.get_path("scripts"))
    # What would make a program write colours into a pipe, by the tester's own wish.
    unwanted = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "CLICOLOR_FORCE", "MHA_BACKEND", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return subprocess.run([command, *arguments], capture_output=True, env=kept | environment, timeout=300, check=False)


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
