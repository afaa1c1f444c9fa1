"""Imports: when, in which order, and the errors for a framework that is missing, broken or unknown."""

import graphlib
import os
import shutil
import tomllib
from typing import get_args

import adapters
import pages
import pytest
from mha.names import BackendName

import mha
from mha.core import dispatch

from . import imported

# Backends of a framework that may be missing.
OTHERS = {name: known for name, known in dispatch.FRAMEWORKS.items() if known.needs != ("numpy",)}
FRAMEWORKS = sorted({module for known in dispatch.FRAMEWORKS.values() for module in known.needs} - {"numpy"})


# 1. What is imported


# Where the others are installed, or none of them could be imported.
@pytest.mark.all_backends
def test_mha_alone_imports_no_framework(python):
    loaded = python(
        "import sys, mha; mha.backends(); mha.MultiHeadAttention(6, 2)\n"
        "print(*{name.partition('.')[0] for name in sys.modules})",
        MHA_BACKEND="",
    ).split()
    assert "mha" in loaded
    assert not set(loaded) & set(FRAMEWORKS)


ONE_BACKEND = """
import importlib, sys, tempfile
import numpy as np
import mha
from mha.core import dispatch

def loaded():
    return {name.partition(".")[0] for name in sys.modules}

backend, *frameworks = sys.argv[1:]
# What a framework itself imports is its own affair.
for name in dispatch.FRAMEWORKS[backend].needs:
    importlib.import_module(name)
before = loaded()
attention = mha.MultiHeadAttention(6, 2, backend=backend)
X = np.ones((1, 3, 6), "float32")
attention(X, X, X, [2]), attention.gradients(X, X, X), attention.trace(X, X, X)
mha.to_numpy(mha.masked_softmax(mha.ones((1, 2, 3), backend=backend)))
with tempfile.TemporaryDirectory() as folder:
    attention.save(folder + "/layer.safetensors")
    mha.load(folder + "/layer.safetensors")
own = set(dispatch.FRAMEWORKS[backend].needs)
print(*sorted((loaded() - before) & set(frameworks) - own))
"""


@pytest.mark.all_backends
def test_a_backend_imports_no_other_framework(backend, python):
    assert python(ONE_BACKEND, backend, *FRAMEWORKS, MHA_BACKEND="").split() == []


IN_ORDER = """
import sys
import numpy as np
import mha
from mha import parity

random = np.random.default_rng(20170612)
queries, keys = random.normal(size=(2, 3, 6)), random.normal(size=(2, 5, 6))
reference = mha.MultiHeadAttention(6, 2, bias=True, dtype="float64", backend="numpy")
arguments = (queries, keys, keys, [4, 0])
expected = {"output": reference(*arguments)} | reference.gradients(*arguments)
layers = {backend: reference.to(backend) for backend in sys.argv[1:]}
for backend, attention in layers.items():
    results = {"output": attention(*arguments)} | attention.gradients(*arguments)
    for name, result in results.items():
        gradient, scale = name != "output", parity.gradient_scale(name, expected)
        limit = parity.bound("float64", expected[name], expected[name], gradient=gradient, scale=scale)
        if parity.error(result, expected[name]) > limit:
            print(backend, name)
"""


# Three of these load no library of their own that another one may load first.
@pytest.mark.long("numpy", "torch", "jax", "mlx")
@pytest.mark.all_backends
def test_backends_work_in_one_process_in_any_order(backend, python):
    names = list(dispatch.FRAMEWORKS)
    first = names.index(backend)
    order = names[first:] + names[:first]
    assert python(IN_ORDER, *order) == ""


@pytest.mark.parametrize("link", [None, "../backends"], ids=["without-a-link", "with-a-file-for-it"])
def test_the_backends_are_found_beside_the_package(python, tmp_path, link):
    for folder in ("mha", "backends"):
        shutil.copytree(
            pages.ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("backends", "__pycache__")
        )
    if link:
        (tmp_path / "mha" / "backends").write_text(link)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import mha; print(mha.__file__, *mha.backends(), mha.ones(2))"
    assert python(code, str(tmp_path), MHA_BACKEND="").split("\n")[0] == (
        f"{tmp_path / 'mha' / '__init__.py'} {' '.join(dispatch.FRAMEWORKS)} [1. 1.]"
    )


def modules():
    """The modules of `mha` by name, without the backends, each with those that it imports."""
    named = {name: path for name, path in imported.sources().items() if path.is_relative_to(pages.ROOT / "mha")}
    return imported.modules(named)


EDGES = {
    "relative": ("mha/three/__init__.py", "from .near import f", "mha.three.near"),
    "relative, of the room above": ("mha/three/__init__.py", "from .. import two", "mha.two"),
    "within a function": ("mha/one.py", "def f():\n    import mha.two", "mha.two"),
    "for type checkers alone": ("backends/x.py", "if TYPE_CHECKING:\n    from mha.two import f", "mha.two"),
    "by its name in mha": ("tests/house/test_x.py", "import mha\nmha.two.f()", "mha.two"),
}


@pytest.mark.parametrize("name", EDGES)
def test_an_import_is_found_wherever_it_is(tmp_path, name):
    file, source, expected = EDGES[name]
    for path, text in {"mha/two.py": "", "mha/three/near.py": "", file: source}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (found,) = filter(None, imported.modules(imported.sources(tmp_path)).values())
    assert found == {expected}


def test_no_module_imports_itself_by_way_of_others():
    """An import within a function, or for type checkers alone, would only hide the circle."""
    graph = {name: names - {name} for name, names in modules().items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names them


def test_the_rooms_of_parity_lie_one_above_the_other():
    rooms = {}
    for name, names in modules().items():
        room, *inside = name.removeprefix("mha.parity.").split(".")
        if name.startswith("mha.parity.") and inside:
            others = {one.split(".")[2] for one in names if one.startswith("mha.parity.")}
            rooms.setdefault(room, set()).update(others - {room})
    assert len(rooms) > 3
    graphlib.TopologicalSorter(rooms).prepare()


# 2. Which backend


def test_the_environment_variable_is_read_when_needed(backend, monkeypatch):
    monkeypatch.setenv("MHA_BACKEND", backend)
    assert mha.MultiHeadAttention(6, 2).backend == backend
    assert dispatch.backend_of(mha.ones((2, 3))) == adapters.of_arrays(backend)
    assert mha.MultiHeadAttention(6, 2, backend="numpy").backend == "numpy"
    monkeypatch.setenv("MHA_BACKEND", "")
    assert mha.MultiHeadAttention(6, 2).backend == "numpy"
    monkeypatch.delenv("MHA_BACKEND")
    assert mha.MultiHeadAttention(6, 2).backend == "numpy"
    assert mha.MultiHeadAttention(6, 2, backend=backend).backend == backend


KNOWN = adapters.NAMES


def test_an_unknown_name_lists_the_known_ones(monkeypatch):
    with pytest.raises(ValueError, match=f"backend is 'pytorch', expected one of {KNOWN}"):
        mha.MultiHeadAttention(6, 2, backend="pytorch")
    with pytest.raises(TypeError, match=rf"backend is 3 \(int\), expected one of {KNOWN}"):
        mha.ones((2, 3), backend=3)
    monkeypatch.setenv("MHA_BACKEND", "pytorch")
    with pytest.raises(ValueError, match=f"MHA_BACKEND is 'pytorch', expected one of {KNOWN}"):
        mha.MultiHeadAttention(6, 2)


MEANT = {
    "pytorch": "torch", "Torch": "torch", "tf": "tensorflow", "Keras": "tensorflow", "jaxx": "jax", "flax": "jax",
    "gluon": "mxnet", "NumPy": "numpy", "mxnt": "mxnet",
}  # fmt: skip


@pytest.mark.parametrize(("written", "meant"), [pair for pair in MEANT.items() if pair[1] in dispatch.FRAMEWORKS])
def test_an_unknown_name_says_the_nearest_one(written, meant):
    with pytest.raises(ValueError, match=f"expected one of {KNOWN}; did you mean '{meant}'?$".replace("?", r"\?")):
        dispatch.backend_name(written)


@pytest.mark.parametrize("written", ["cupy", "theano", "", " "])
def test_a_name_that_is_near_to_none_says_no_other(written):
    with pytest.raises(ValueError, match=f"expected one of {KNOWN}$"):
        dispatch.backend_name(written)


def test_parity_weights_testing_heads_and_plot_need_no_import_of_their_own(python):
    code = (
        "import sys, mha\n"
        "print('mha.parity' in sys.modules, mha.parity.UNIT['float32'], 'bert' in mha.weights.SCHEMES)\n"
        "print(callable(mha.testing.assert_parity), 'pytest' in sys.modules, 'mha.heads' in sys.modules)\n"
        "print(callable(mha.heads.prune), callable(mha.plot.heatmaps), 'matplotlib' in sys.modules)"
    )
    assert python(code).split() == ["False", str(2**-24), "True", "True", "False", "False", "True", "True", "False"]
    with pytest.raises(AttributeError, match="module 'mha' has no attribute 'party'"):
        mha.party  # noqa: B018


# 3. A framework that is not there, and one that is broken: both made here, so that these run everywhere.

MISSING = """
import sys
import mha
from mha.core import dispatch

class Without:
    "All finders of modules, blind to some names."
    finders = list(sys.meta_path)

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in sys.argv[1:]:
            return next(filter(None, (finder.find_spec(name, path, target) for finder in cls.finders)), None)

sys.meta_path[:] = [Without]
for backend in dispatch.FRAMEWORKS:
    try:
        attention = mha.MultiHeadAttention(6, 2, backend=backend)
    except ModuleNotFoundError as error:
        print(error.name, "-", error, "-", mha.backends()[backend].problem)
        assert not mha.backends()[backend].installed and mha.backends()[backend].version is None
    else:
        assert mha.backends()[backend].installed and mha.backends()[backend].problem is None
        print(attention.backend)
"""


def test_a_missing_framework_says_what_to_install(python):
    lines = dict(zip(dispatch.FRAMEWORKS, python(MISSING, *FRAMEWORKS).splitlines(), strict=True))
    for backend in dispatch.FRAMEWORKS.keys() - OTHERS:
        assert lines.pop(backend) == backend
    for backend, line in lines.items():
        modules = OTHERS[backend].needs
        name, error, problem = line.split(" - ")
        assert name == modules[0]
        assert error == f"backend {backend!r} needs {' and '.join(modules)}: {dispatch.install(backend)}"
        assert problem == f"{' and '.join(modules)} not installed: {dispatch.install(backend)}"


def test_what_is_to_be_installed_is_what_the_package_asks_for():
    """The hint names the frameworks' own packages: `mha` need not be on PyPI, nor be ours there."""
    project = tomllib.loads(pages.text("pyproject.toml"))["project"]
    extras = {
        extra: tuple(package.partition(";")[0] for package in packages)
        for extra, packages in project["optional-dependencies"].items()
    }
    known = {name: framework.packages for name, framework in OTHERS.items()}
    gone = {*get_args(BackendName)} - dispatch.FRAMEWORKS.keys()
    known |= {"plots": dispatch.PLOTS, "hdf5": dispatch.HDF5, "notebooks": dispatch.NOTEBOOKS, "write": dispatch.WRITE}
    assert known == {extra: extras[extra] for extra in extras.keys() - gone}
    assert dispatch.install("torch") == 'pip install "torch>=2.12"'
    for name, framework in OTHERS.items():
        assert dispatch.install(name).endswith(f" && {framework.last}" if framework.last else '"')


BROKEN = """
import sys
import mha

for backend in sys.argv[1:]:
    try:
        mha.MultiHeadAttention(6, 2, backend=backend)
    except ImportError as error:
        print(backend, "-", error)
"""


def test_a_broken_framework_raises_its_own_error(tmp_path, python):
    for framework in FRAMEWORKS:
        (tmp_path / f"{framework}.py").write_text("raise ImportError('lib42.so: cannot open shared object file')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    lines = python(BROKEN, *OTHERS, PYTHONPATH=path).splitlines()
    assert lines == [f"{backend} - lib42.so: cannot open shared object file" for backend in OTHERS]


KERAS_ELSEWHERE = """
import keras
keras.backend.backend = lambda: "jax"  # as if KERAS_BACKEND said so, without needing JAX here
import mha
try:
    mha.MultiHeadAttention(6, 2, backend="tensorflow")
except ImportError as error:
    print(error)
"""


@pytest.mark.backends("tensorflow")
def test_keras_on_another_framework_is_refused(python):
    refused = "Keras runs on jax, expected tensorflow: set KERAS_BACKEND=tensorflow before its import\n"
    assert python(KERAS_ELSEWHERE) == refused
