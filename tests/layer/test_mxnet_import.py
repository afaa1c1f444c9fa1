"""MXNet on a NumPy that has outgrown it: nobody else's NumPy changes, and results are those of an untouched MXNet."""

import json
import os
from pathlib import Path

import pytest
import safetensors

import mha
from mha import parity

# 1. Nobody else's NumPy changes

UNCHANGED = """
import builtins, sys, warnings
import numpy, numpy.linalg, numpy.random
import mha, mha.backends.numpy

def snapshot():
    modules = {name: dict(vars(sys.modules[name])) for name in ("numpy", "numpy.linalg", "numpy.random", "builtins")}
    # Packages that MXNet imports bring filters for their own warnings.
    theirs = ("urllib3", "requests", "pkg_resources")
    filters = [one for one in warnings.filters if one[2].__module__.partition(".")[0] not in theirs]
    return modules, list(sys.meta_path), list(sys.path_hooks), filters, numpy.geterr()

modules, finders, *others = snapshot()
import mha.backends.mxnet
attention = mha.MultiHeadAttention(6, 2, backend="mxnet")
X = numpy.ones((1, 3, 6), "float32")
attention(X, X, X), attention.gradients(X, X, X)
modules_after, finders_after, *others_after = snapshot()
assert others_after == others, (others_after, others)
# An old setuptools, which MXNet imports, adds finders for its own parts.
assert [finder for finder in finders_after if finder in finders] == finders
# Ours came with mha, once, and finds MXNet alone.
ours = [finder for finder in finders_after if type(finder).__module__ == "mha.core.import_mxnet"]
assert len(ours) == 1
assert ours[0].find_spec("numpy", None) is None
for module, names in modules.items():
    after = modules_after[module]
    assert all(after[name] is value for name, value in names.items()), module
    # Whoever imports numpy.ma makes it an attribute of numpy; nothing else has come.
    for name in after.keys() - names.keys():
        assert after[name] is sys.modules[f"{module}.{name}"], name
assert builtins.__import__ is modules["builtins"]["__import__"]
assert sys.modules["numpy"] is numpy
assert hasattr(numpy, "PZERO") == ("PZERO" in modules["numpy"])
"""


@pytest.mark.backends("mxnet")
def test_mxnet_leaves_numpy_and_imports_as_they_were(python):
    python(UNCHANGED)


# A package of the same name stands in for MXNet below, so that these run everywhere.

FAKE = {
    "mxnet/__init__.py": """
import sys
import bystander
import numpy as seen
import numpy.linalg
from numpy import float32
from mxnet import inner
if seen is not sys.modules["numpy"]:
    from numpy import NINF, PZERO, alltrue
    gone = seen.msort, seen.rate
""",
    "mxnet/inner.py": """
import numpy
from numpy.linalg import norm
seen = numpy
def later():
    import numpy
    import latecomer
    return numpy
""",
    "bystander.py": "import numpy as seen\n",
    "latecomer.py": "import numpy as seen\n",
    "mxnet_like/__init__.py": "import numpy as seen\nfrom mxnet_like import inner\n",  # begins as MXNet's name does
    "mxnet_like/inner.py": "import numpy as seen\n",
    "mxnetlike.py": "import numpy as seen\n",
    "other/mxnet.py": "import numpy as seen\n",
}

STAND_IN = """
import sys
import numpy
import mha
from mha.core.import_mxnet import enable, is_needed
needed = is_needed()
meta_path = list(sys.meta_path)
import mxnet
import bystander, mxnet_like, mxnetlike, other.mxnet
for one in (bystander, mxnet_like, mxnet_like.inner, mxnetlike, other.mxnet):
    assert one.seen is numpy, one
    assert type(one.__loader__).__module__ != "mha.core.import_mxnet", one
assert sys.modules["numpy"] is numpy and sys.meta_path == meta_path
assert (mxnet.seen is not numpy) == (mxnet.inner.seen is not numpy) == needed
assert mxnet.float32 is numpy.float32 and mxnet.inner.norm is numpy.linalg.norm
assert mxnet.seen.linalg is numpy.linalg
# What MXNet imports after its own import is answered alike, and what that imports is not.
assert (mxnet.inner.later() is not numpy) == needed
assert sys.modules["latecomer"].seen is numpy
enable()
assert sys.meta_path == meta_path
if not hasattr(numpy, "PZERO"):
    assert needed and mxnet.PZERO == 0 and mxnet.NINF == -numpy.inf
    assert mxnet.alltrue is numpy.all
    for function in mxnet.gone:
        try:
            function(1)
        except NotImplementedError as error:
            assert numpy.__version__ in str(error)
        else:
            raise AssertionError(function)
    try:
        mxnet.seen.no_such_name
    except AttributeError:
        pass
    else:
        raise AssertionError("no_such_name")
"""


def fake(tmp_path, files):
    """The PYTHONPATH that finds these files first."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])


def test_only_mxnet_sees_the_stand_in(tmp_path, python):
    python(STAND_IN, PYTHONPATH=fake(tmp_path, FAKE))


BROKEN = """
import sys, warnings
import numpy  # which adds filters of its own
import mha
before = list(sys.meta_path), list(warnings.filters)
try:
    import mxnet
except ImportError as error:
    assert str(error) == "libmxnet.so"
else:
    raise AssertionError
assert (sys.meta_path, warnings.filters) == before
"""


def test_a_broken_mxnet_raises_its_own_error_and_leaves_nothing_behind(tmp_path, python):
    python(BROKEN, PYTHONPATH=fake(tmp_path, {"mxnet/__init__.py": "raise ImportError('libmxnet.so')\n"}))


# 2. The results are those of MXNet 1.9.1 on NumPy 1.23.5, written there by make_vectors.py.

VECTORS = Path(__file__).parent / "mxnet.safetensors"
CASES = ["dot-float64", "dot-float32", "additive-float64", "additive-float32"]


def read(case):
    """Options of the layer, what hides keys, and arrays by their part: input, layer, result, gradient."""
    parts = {"input": {}, "layer": {}, "result": {}, "gradient": {}}
    with safetensors.safe_open(VECTORS, framework="numpy") as file:
        cases = json.loads(file.metadata()["cases"])
        assert sorted(cases) == sorted(CASES)
        assert (file.metadata()["numpy"], file.metadata()["mxnet"]) == ("1.23.5", "1.9.1")
        for full in file.keys():  # noqa: SIM118  (it is no dict)
            of_case, part, name = full.split("/")
            if of_case == case:
                parts[part][name] = file.get_tensor(full)
    return *cases[case], parts


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_an_untouched_mxnet(backend, case):
    options, hiding, parts = read(case)
    inputs, cotangent = [parts["input"][name] for name in ("queries", "keys", "values")], parts["input"]["cotangent"]

    def compute(on, dtype):
        attention = mha.MultiHeadAttention(6, 2, backend=on, **{**options, "dtype": dtype})
        attention.weights = {name: X.astype(dtype) for name, X in parts["layer"].items()}
        arguments = [X.astype(dtype) for X in inputs]
        output, weights = attention(*arguments, **hiding, return_weights=True)
        gradients = attention.gradients(*arguments, **hiding, cotangent=cotangent.astype(dtype))
        return {"result": {"output": output, "weights": weights}, "gradient": gradients}

    dtype = options["dtype"]
    results, bases, oracles = compute(backend, dtype), compute("numpy", dtype), compute("numpy", "float64")
    for part in ("result", "gradient"):
        assert parts[part].keys() == results[part].keys()
        for name, vector in parts[part].items():
            oracle, scale = oracles[part][name], parity.gradient_scale(name, parts[part])
            limit = parity.bound(dtype, oracle, bases[part][name], gradient=part == "gradient", scale=scale)
            assert parity.error(vector, oracle) <= limit, name
            assert parity.error(results[part][name], vector) <= limit, name
