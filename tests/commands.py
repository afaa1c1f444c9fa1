"""Run the commands of `mha`, as the tests of the command line do."""

import os
import shutil
import subprocess
import sysconfig

from typer.testing import CliRunner

from mha import cli


def run(*arguments):
    """A command in this process: its exit code and what it printed."""
    return CliRunner().invoke(cli.app, arguments)


def run_installed(*arguments, **environment):
    """The installed command in a process of its own, its output in pipes."""
    command = shutil.which("mha", path=sysconfig.get_path("scripts"))
    # What would make a program write colours into a pipe, by the tester's own wish.
    unwanted = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "CLICOLOR_FORCE", "MHA_BACKEND", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return subprocess.run([command, *arguments], capture_output=True, env=kept | environment, timeout=300, check=False)
