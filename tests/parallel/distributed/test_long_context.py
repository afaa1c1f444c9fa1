"""The example of a long sequence: too large for one device, and trained on four, by PyTorch and by JAX."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "long_context.py")
FOUR = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")


SAVED = r"1/4 of the rows on each of 4: (\d+) MiB instead of (\d+) for .* took \d+\.\d times its processor time in all"


@pytest.mark.backends("torch")
def test_torch():
    assert "8,192 rows take more than 112 MiB" in run(EXAMPLE, "torch", fails=True)
    said = run(*FOUR, EXAMPLE, "torch", fails=False)
    assert said.count("limit 112") == 4, said
    saves(said)


@pytest.mark.backends("jax")
def test_jax():
    assert "limit 112; take more devices" in run(EXAMPLE, "jax", fails=True)
    said = run(EXAMPLE, "jax", "--devices", "4", fails=False)
    assert said.count("limit 112") == 1, said
    saves(said)


@pytest.mark.backends("jax")
def test_how():
    assert "2,048 rows on a device take" in run(EXAMPLE, "jax", "--devices", "4", "--how", "gather", fails=True)


def saves(said):
    """What it says in the end: a device takes less than the limit, and the whole layer more."""
    (found,) = re.findall(SAVED, said)
    takes, whole = map(int, found)
    assert takes <= 112 < whole, said


def run(*arguments, fails):
    """What the example says, which ends well or not."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=400)
    said = result.stdout + result.stderr
    assert (result.returncode != 0) == fails, said
    return said
