"""One suite, any backends: `pytest --backends torch,jax`; without the option, all of them.

A backend that is asked for and cannot be loaded is an error, never a skip.
"""

import importlib
import os
import resource
import subprocess
import sys
import warnings
from importlib import metadata
from pathlib import Path

import adapters
import hypothesis
import numpy as np
import pytest
from bounds import scale_bounds

from mha.core import dispatch

# The same few examples in every run: those of JAX take a compilation each. `--hypothesis-profile=long` tries many, at
# random, and prints what repeats a failure. No deadline, since a first call imports and compiles; no database, since a
# failure worth keeping is worth a test.
COMMON = {"deadline": None, "database": None, "print_blob": True}
hypothesis.settings.register_profile("short", derandomize=True, max_examples=15, **COMMON)
hypothesis.settings.register_profile("long", max_examples=500, **COMMON)
hypothesis.settings.load_profile("short")


def pytest_addoption(parser):
    parser.addoption(
        "--backends",
        help="the backends to test, joined by commas; default: all, of tests/gpu alone those that are installed there",
    )
    parser.addoption(
        "--quick-xla",
        action="store_true",
        help="XLA leaves out most optimisations: JAX compiles in a third of the time",
    )
    parser.addoption("--long", action="store_true", help="also tests that are marked as long with a backend")
    parser.addoption("--bounds", type=float, default=1.0, help="take each bound and tolerance so many times")


MARKERS = (
    "backends(*names): a test of these backends alone; with others it is not collected",
    "needs(*names): a test of backends that lack none of these, as the facts of their folders say",
    "long(*names): with these backends it takes seconds where a quicker one says nearly the same; --long has it too",
    "all_backends: a test of all of them together; without one of them it is not collected",
    "margin(least, most): with --bounds outside these it is not collected; (1, 1): a test of bounds as written numbers",
)


# Files of tests that take longest with some backend. They are handed out first: a worker that gets one of them last
# keeps the other waiting.
FIRST = {
    "split", "written_compiled", "compiled", "write", "bench_devices", "blocks", "tensorflow_calls", "diagnose",
    "parity",
}  # fmt: skip

# Tests of one framework, which import it; without it they are not collected.
OF_ONE = {
    "torch": (
        "flexible",
        "kernels_of_torch",
        "torch_on_gpu",
        "audit",
        "audit_packed",
        "audit_taught",
        "cli_records",
        "plot_ratios",
        "records",
        "records_cuts",
        "records_files",
    ),
    "jax": ("kernels_of_jax", "jax_on_gpu"),
    "mlx": ("audit_mlx",),
}


def pytest_ignore_collect(collection_path, config):
    name = collection_path.stem.removeprefix("test_")
    needed = {backend for backend, names in OF_ONE.items() if name in names}
    return True if needed.difference(config.backends) else None


def pytest_configure(config):
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.backends = (config.getoption("--backends") or ",".join(by_default(config.args))).split(",")
    if config.getoption("--quick-xla"):
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # which JAX reads when it is imported
        # A program in parts is compiled by several threads, and emitters of fused loops take half of what is left.
        flags = [os.environ.get("XLA_FLAGS", ""), "--xla_cpu_parallel_codegen_split_count=1"]
        if tuple(map(int, metadata.version("jaxlib").split(".")[:3])) < (0, 11, 1):  # later ones refuse it
            flags.append("--xla_cpu_use_fusion_emitters=false")
        os.environ["XLA_FLAGS"] = " ".join(flags)
    if config.getoption("--bounds") != 1:
        scale_bounds(config.getoption("--bounds"))
    hands_out = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")  # -n 2: runs none itself
    for backend in config.backends:
        try:
            name = dispatch.backend_name(backend)
            with warnings.catch_warnings():
                # What a framework deprecates in its own import, such as MXNet's use of an old NumPy, is not ours.
                warnings.simplefilter("ignore", DeprecationWarning)
                if not hands_out:
                    dispatch.load(name)
        except Exception as error:
            raise pytest.UsageError(f"--backends asks for {backend!r}, which does not load: {error}") from error


def by_default(paths):
    """The backends to test with these paths: all, or those of tests on a GPU that a machine with one has."""
    rooms = [Path(path.partition("::")[0]).resolve() for path in paths]
    if not all(room.is_relative_to(Path(__file__).parent / "gpu") for room in rooms):
        return [*dispatch.FRAMEWORKS]
    return [name for name in ("torch", "jax") if dispatch.backends()[name].installed]


def pytest_generate_tests(metafunc):
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", metafunc.config.backends, scope="session")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook, too
def pytest_collection_modifyitems(config, items):
    kept, left_out = [], []
    for item in items:
        (kept if belongs(item) else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = sorted(kept, key=lambda item: item.path.stem.removeprefix("test_") not in FIRST)
    if config.pluginmanager.hasplugin("xdist"):  # -n 2: what shares compiled functions goes to one worker
        for item in items:
            names = backend_of(item) or " ".join(name for one in item.iter_markers("backends") for name in one.args)
            item.add_marker(pytest.mark.xdist_group(f"{item.path.name} {names}"))


def belongs(item):
    """Whether a test belongs to a run with the backends that are asked for: each test runs once, where it says most."""
    backend, asked = backend_of(item), set(item.config.backends)
    needed = {name for marker in item.iter_markers("needs") for name in marker.args}
    if "d2l" in item.fixturenames:
        needed.add("a section of the book")
    if backend and any(adapters.lacks(backend, name) for name in needed):
        return False
    markers = list(item.iter_markers("backends"))
    meant = ({backend} if backend else asked).intersection(*(marker.args for marker in markers))
    if not meant:
        return False
    times = item.config.getoption("--bounds")
    if not all(least <= times <= most for least, most in (one.args for one in item.iter_markers("margin"))):
        return False
    if not item.config.getoption("--long") and any(meant <= {*marker.args} for marker in item.iter_markers("long")):
        return False
    if item.get_closest_marker("all_backends"):
        return asked == set(dispatch.FRAMEWORKS)
    return backend is not None or bool(markers) or "numpy" in asked  # what needs no framework runs with NumPy


def backend_of(item):
    """The backend that a test is given; None if it is given none."""
    return item.callspec.params.get("backend") if hasattr(item, "callspec") else None


@pytest.fixture
def bounded():
    """Half a gigabyte more than there is now: what takes it ends in a MemoryError, and the machine is not filled."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**29, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture
def rng():
    """Random numbers, the same in every run."""
    return np.random.default_rng(20170612)


@pytest.fixture
def d2l(backend):
    """The module of the book's names for a backend; a test that asks for it needs a section of the book."""
    with dispatch.load(backend).context("float32"):
        yield importlib.import_module(f"mha.d2l.{backend}")


@pytest.fixture(scope="session")
def python():
    """A function that runs code in a new Python process, which must end well, and returns what it prints."""

    def run(code, *arguments, **environment):
        command = [sys.executable, "-c", code, *arguments]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


@pytest.fixture
def absent(monkeypatch):
    """A backend whose framework is not installed."""
    monkeypatch.setitem(
        dispatch.FRAMEWORKS, "jax", dispatch.Framework(("no_such_framework",), packages=("no-such-framework>=3",))
    )
    monkeypatch.delitem(sys.modules, "mha.backends.jax", raising=False)
    return "jax"


@pytest.fixture
def broken(monkeypatch):
    """A backend whose framework is there and raises an error of two lines when it is loaded."""
    load = dispatch.load

    def load_unless_broken(name):
        if name == "jax":
            raise OSError("libbroken.so:\n  undefined symbol")
        return load(name)

    monkeypatch.setitem(dispatch.FRAMEWORKS, "jax", dispatch.Framework(("numpy",)))
    monkeypatch.setattr(dispatch, "load", load_unless_broken)
    return "jax"
