"""The core is small: how many of our functions a call runs, and how much an import loads."""

import os
import sys

import numpy as np
import pytest

import mha
from mha.core import dispatch

FOLDERS = tuple(os.path.realpath(folder) + os.sep for folder in (os.path.dirname(mha.__file__), dispatch.FOLDER))


def functions_of(call):
    """The names of our own functions that a call runs, once all has been decided that is decided once."""
    for _ in range(3):
        call()
    names = []

    def listen(frame, event, _):
        if event == "call" and os.path.realpath(frame.f_code.co_filename).startswith(FOLDERS):
            names.append(frame.f_code.co_name)

    sys.setprofile(listen)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


@pytest.mark.backends("torch")
@pytest.mark.parametrize(("own", "most"), [(True, 40), (False, 130)], ids=["own-tensors", "arrays-of-numpy"])
def test_a_call_runs_few_functions(own, most):
    attention = mha.MultiHeadAttention(66, 3, seed=1, backend="torch")
    X, lengths = np.random.default_rng(7).normal(size=(2, 5, 66)).astype("float32"), np.array([3, 5])
    if own:
        X, lengths = mha.tensor(X, backend="torch"), mha.tensor(lengths, backend="torch")
    names = functions_of(lambda: attention(X, X, X, lengths))
    assert len(names) <= most, names
    assert names.count("check") == 1


LOADED = """
import importlib, sys
before = set(sys.modules)
importlib.import_module(sys.argv[1])
own = [module for name, module in sys.modules.items() if name.partition(".")[0] == "mha"]
print(len(own), sum(len(open(module.__file__, encoding="utf-8").readlines()) for module in own), "numpy" in sys.modules)
"""


@pytest.mark.parametrize(
    ("module", "modules", "lines", "numpy"),
    [("mha", 8, 700, False), ("mha.layer", 35, 4500, True), ("mha.parity.rule.rules", 15, 1800, True)],
)
def test_an_import_loads_little(module, modules, lines, numpy, python):
    loaded = python(LOADED, module).split()
    assert (int(loaded[0]) <= modules, int(loaded[1]) <= lines, loaded[2]) == (True, True, str(numpy)), loaded
