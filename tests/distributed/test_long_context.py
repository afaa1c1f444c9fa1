"""The example of a long sequence: too large for one device, and trained on four, by PyTorch and by JAX."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "long_context.py")
FOUR = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")


@pytest.mark.backends("torch")
@pytest.mark.parametrize(("before", "words"), [((), ["take more than 112 MiB"]), (FOUR, 4 * ["limit 112"])])
def test_torch(before, words):
    run(*before, EXAMPLE, "torch", fails=not before, words=words)


@pytest.mark.backends("jax")
@pytest.mark.parametrize(("after", "words"), [((), ["limit 112; take more"]), (("--devices", "4"), ["limit 112"])])
def test_jax(after, words):
    run(EXAMPLE, "jax", *after, fails=not after, words=words)


def run(*arguments, fails, words):
    """The example ends well or not, and says these words, so many times."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    said = result.stdout + result.stderr
    assert (result.returncode != 0) == fails, said
    assert said.count(words[0]) == len(words), said
