"""Each side of each branch in the engines that run operation by operation is taken by a test that checks numbers."""

import subprocess
import sys
from pathlib import Path

import adapters
import pytest


@pytest.mark.backends(*adapters.EAGER)
@pytest.mark.long(*adapters.EAGER)  # it runs hundreds of tests once more
def test_each_side_is_taken(backend):
    command = [sys.executable, str(Path(__file__).with_name("branches.py")), backend]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
