"""A backend is a folder: a copy of NumPy's under another name works, and the rest works without one.

What is outside of the folder: its name in `BackendName`, an adapter for the tests, and a file for each further use.
"""

import os
import re
import shutil
import subprocess
import sys

import pages
import pytest

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
LONG = pytest.mark.long("numpy")


def copied(folder):
    """A copy of the checkout in a folder."""
    shutil.copytree(pages.ROOT, folder / "mha", symlinks=True, ignore=LEFT_OUT)
    return folder / "mha"


def changed(path, pattern, replacement):
    """Change what a pattern finds in a file, which it must."""
    text, count = re.subn(pattern, replacement, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert count, f"{path.name} has no {pattern}"
    path.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """A copy of the checkout with a copy of NumPy's folder, which says that it has no arrays of its own."""
    tree = copied(tmp_path_factory.mktemp("twin"))
    shutil.copytree(tree / "backends" / "numpy", tree / "backends" / "twin")
    for file in (tree / "mha").rglob("frameworks/**/numpy.py"):
        shutil.copy(file, file.with_name("twin.py"))
        if "mha.backends.numpy" in file.read_text(encoding="utf-8"):
            changed(file.with_name("twin.py"), r"mha\.backends\.numpy", "mha.backends.twin")
    changed(tree / "backends" / "twin" / "facts.py", "^(ALIASES|ARRAYS) = .*\n", "")
    changed(tree / "backends" / "twin" / "facts.py", "^TITLE = .*", 'TITLE = "Twin"')
    changed(
        tree / "mha" / "core" / "options" / "names.py",
        r"^BackendName = Literal\[(.*)\]",
        r'BackendName = Literal[\1, "twin"]',
    )
    shutil.copy(tree / "tests" / "adapters" / "numpy.py", tree / "tests" / "adapters" / "twin.py")
    return tree


@pytest.fixture(scope="module", params=["mxnet", *(pytest.param(name, marks=LONG) for name in ("tensorflow", "jax"))])
def without(request, tmp_path_factory):
    """A copy of the checkout without the folder of one framework."""
    tree = copied(tmp_path_factory.mktemp("without"))
    shutil.rmtree(tree / "backends" / request.param)
    return tree


def run(tree, *command):
    """Run a module in a copy of the checkout, which must end well, and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "MHA_BACKEND": ""}
    done = subprocess.run([sys.executable, "-m", *command], cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def passes(tree, backend, *tests):
    """Run tests of a copy of the checkout with one backend; none may fail."""
    options = ("-q", "-x", "-p", "no:cacheprovider", "--ignore", "tests/house/test_folders.py", "--backends", backend)
    assert " passed" in run(tree, "pytest", *options, *(f"tests/{name}" for name in tests))


COMMANDS = ("demo --backend {}", "explain --backend {}", "parity --backends {}", "page --backends {} -o page.html")


@pytest.mark.parametrize("command", [*COMMANDS[:3], pytest.param(COMMANDS[3], marks=LONG)])
def test_a_new_folder_serves_every_command(twin, command):
    assert "twin" in run(twin, "mha", *command.format("twin").split()) or "page" in command


def test_a_new_folder_is_known_and_takes_the_arrays_of_numpy(twin):
    said = (
        "import mha; attention = mha.MultiHeadAttention(6, 2, backend='twin'); X = mha.ones((1, 3, 6), backend='twin');"
        "print(*mha.backends(), attention.layer.__module__, type(attention(X, X, X)).__module__)"
    )
    (twin / "said.py").write_text(said, encoding="utf-8")
    assert run(twin, "said").split()[-3:] == ["twin", "mha.backends.twin.engine.layer", "numpy"]


def test_the_suite_passes_on_a_new_folder(twin):
    passes(twin, "twin", "layer/test_layer.py", "layer/test_arrays.py")
    passes(twin, "numpy", "house/test_names.py")


@LONG
def test_the_whole_suite_passes_on_a_new_folder(twin):
    passes(twin, "twin", "")
    passes(twin, "numpy", "house/test_names.py", "learn/test_page.py")


@pytest.mark.parametrize("command", [COMMANDS[1], pytest.param(COMMANDS[3], marks=LONG)])
def test_commands_do_without_a_folder(without, command):
    assert run(without, "mha", *command.format("numpy").split())


@LONG
def test_the_suite_passes_without_a_folder(without):
    passes(without, "numpy", "house/test_names.py", "house/test_parallel.py", "layer/test_arrays.py")
