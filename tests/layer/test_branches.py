"""Each side of each branch in the engines is taken by a test that checks numbers, in two of them while it is traced."""

import subprocess
import sys
from pathlib import Path

import pytest

from mha.core import dispatch


@pytest.mark.long(*dispatch.FRAMEWORKS)  # it runs hundreds of tests once more
def test_each_side_is_taken(backend):
    command = [sys.executable, str(Path(__file__).parents[1] / "branches.py"), backend]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
