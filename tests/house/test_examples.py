"""`examples/train.py` and `generate.py`: scripts that train, and write, the same on every backend."""

import importlib.util
import subprocess
import sys

import numpy as np
import pages
import pytest

from mha import parity
from mha.core import dispatch

FOLDER = pages.ROOT / "examples"
SCRIPT = FOLDER / "train.py"


@pytest.fixture
def example(backend, monkeypatch):
    """The script as a module, on this backend."""
    monkeypatch.setenv("MHA_BACKEND", backend)
    return imported("train")


def imported(name):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def trained():
    """The script that generates, and the weights of its decoder that NumPy has trained."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        patch.setenv("MHA_BACKEND", "numpy")
        script = imported("generate")
        patch.setattr(script, "T", 27)  # shorter texts teach it as much
        decoder = script.Decoder()
        losses = list(decoder.train(250))
    assert losses[-1] < 0.05 < 2 < losses[0]
    return script, decoder.own, decoder.attention.weights


def test_the_decoder_writes_the_same_with_a_cache_and_without(backend, monkeypatch, trained):
    monkeypatch.setenv("MHA_BACKEND", backend)
    script, own, weights = trained
    decoder = script.Decoder()
    assert decoder.attention.backend == backend
    decoder.own, decoder.attention.weights = own, weights
    text = script.texts(np.random.default_rng(5), 7 + 3)
    for way in (decoder.with_cache, decoder.without_cache):
        np.testing.assert_array_equal(np.concatenate(list(way(text[:, :7], 3)), 1), text[:, 7:])


@pytest.mark.backends("numpy")
def test_the_script_says_how_fast_it_writes(example):
    command = [sys.executable, FOLDER / "generate.py", "--steps", "2", "--tokens", "5"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.partition(":")[0] for line in ran.stdout.splitlines()[-3:-1]] == ["with a cache", "without"]
    assert ran.stdout.count("tokens a second") == 2


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
