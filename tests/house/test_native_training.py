"""`examples/native_training/`: a loop of each framework's own, with the losses of `examples/train.py`."""

import re
import runpy

import adapters
import numpy as np
import pages
import pytest

from mha.core import dispatch

EXAMPLES = pages.ROOT / "examples"
SCRIPTS = sorted((EXAMPLES / "native_training").glob("with_*.py"))
NAMES = [script.stem for script in SCRIPTS]


def numbers(printed, name):
    """The number that a script printed under this name."""
    return [float(number) for number in re.findall(rf"^{name}: (\S+)$", printed, re.MULTILINE)]


@pytest.fixture(scope="module")
def expected():
    """The mean losses of every 20 steps of the loop in NumPy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MHA_BACKEND", "numpy")
        train = runpy.run_path(str(EXAMPLES / "train.py"))["train"]
        return np.reshape([loss for loss, _ in train(200)], (-1, 20)).mean(1)  # (10,)


def test_there_is_one_for_each_framework():
    shown = {re.search(r'backend="(\w+)"', script.read_text(encoding="utf-8"))[1] for script in SCRIPTS}
    able = {name for name in dispatch.FRAMEWORKS if not adapters.lacks(name, "automatic differentiation")}
    assert shown & dispatch.FRAMEWORKS.keys() == able


@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_each_can_be_read_beside_the_others(script):
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.all_backends  # the one environment that has all frameworks
@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_each_trains_as_the_loop_in_numpy_does(script, expected, monkeypatch, capsys):
    monkeypatch.syspath_prepend(script.parent)  # as Python does for a script
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    # Keras and MXNet add Adam's epsilon before they correct its moments, the others after: 2e-4 of a loss. Four digits
    # are printed.
    np.testing.assert_allclose(numbers(printed, "loss"), expected, rtol=0, atol=5e-4)
    assert numbers(printed, "accuracy")[0] >= 0.99
