"""`examples/train.py`: one script that trains on every backend, with the same losses."""

import importlib.util
import subprocess
import sys

import numpy as np
import pages
import pytest

from mha import dispatch, parity

SCRIPT = pages.ROOT / "examples" / "train.py"


@pytest.fixture
def example(backend, monkeypatch):
    """The script as a module, on this backend."""
    monkeypatch.setenv("MHA_BACKEND", backend)
    spec = importlib.util.spec_from_file_location("train", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.backends("numpy")
def test_the_model_learns_to_reverse(example):
    losses, shares = zip(*example.train(300), strict=True)
    assert losses[0] > 2  # as much as log(10) for a guess
    assert shares[-1] > 0.99


def test_the_losses_are_those_of_numpy(example, monkeypatch):
    losses = np.array([loss for loss, _ in example.train(20, dtype="float64")])
    monkeypatch.setenv("MHA_BACKEND", "numpy")
    expected = np.array([loss for loss, _ in example.train(20, dtype="float64")])
    assert (np.diff(expected) < 0).sum() > 12
    assert parity.error(losses, expected) <= parity.bound("float64", expected, expected, gradient=True)


@pytest.mark.backends("numpy")
def test_the_script_prints_the_loss(example):
    ran = subprocess.run(
        [sys.executable, SCRIPT, "--steps", "3", "--losses"], capture_output=True, text=True, check=True
    )
    assert [float(line) for line in ran.stdout.split()] == [loss for loss, _ in example.train(3)]


@pytest.mark.long
@pytest.mark.all_backends  # the one environment that has matplotlib
@pytest.mark.long(*dispatch.FRAMEWORKS)
def test_a_picture_of_the_losses_on_every_backend(tmp_path):
    picture = tmp_path / "training.png"
    subprocess.run([sys.executable, SCRIPT, "--steps", "2", "--picture", picture], check=True)
    assert picture.read_bytes().startswith(b"\x89PNG")
