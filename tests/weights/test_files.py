"""Files of weights: exact round trips, saves that are whole or not there, and paths that are no files."""

import io
import os
import re

import ml_dtypes
import numpy as np
import pytest
from calls import make, same_bits

import mha
from mha.core import dispatch
from mha.weights import files

# Round trips


def test_save_and_load_are_exact(backend, tmp_path):
    for dtype in dispatch.load(backend).DTYPES:
        attention = make(backend, dtype=dtype, bias=True, pooling="additive", seed=7, dropout=0.125)
        attention.save(tmp_path / "layer.safetensors")
        loaded = mha.load(tmp_path / "layer.safetensors", backend=backend)
        assert loaded.config == attention.config
        assert loaded.backend == backend
        assert same_bits(loaded.weights, attention.weights)
        assert mha.load(str(tmp_path / "layer.safetensors"), backend="numpy").backend == "numpy"
    assert [path.name for path in tmp_path.iterdir()] == ["layer.safetensors"]


def test_the_same_layer_gives_the_same_bytes(backend, tmp_path):
    attention = make(backend, seed=7, qk_norm="rms")
    cache, written = attention.cache(2, 3), {"layer": set(), "cache": set()}
    for _ in range(8):
        attention.save(tmp_path / "layer")
        cache.save(tmp_path / "cache")
        for name, found in written.items():
            found.add((tmp_path / name).read_bytes())
    assert [len(found) for found in written.values()] == [1, 1]


def other_byte_order(X):
    """The same numbers in the machine's other byte order; NumPy's bfloat16 has the one order alone."""
    return X if X.dtype.name == "bfloat16" else X.astype(X.dtype.newbyteorder())


# The same numbers as they may lie in memory.
WAYS = {
    "transposed": lambda X: np.ascontiguousarray(X.T).T,
    "every other": lambda X: np.repeat(X, 2, axis=0)[::2],
    "negative strides": lambda X: np.ascontiguousarray(X[::-1])[::-1],
    "other byte order": other_byte_order,
    "other byte order, transposed": lambda X: np.ascontiguousarray(other_byte_order(X).T).T,
    "read-only": lambda X: np.frombuffer(X.tobytes(), X.dtype).reshape(X.shape),
}


def draw_special(attention, rng):
    """Weights for a layer, with each kind of number that is finite."""
    drawn = {}
    for name, array in attention.weights.items():
        info = ml_dtypes.finfo(array.dtype) if array.dtype.name == "bfloat16" else np.finfo(array.dtype)
        drawn[name] = rng.normal(size=array.shape).astype(array.dtype)
        special = [-0.0, 0.0, info.max, info.min, info.tiny, -info.tiny, info.smallest_subnormal, 3 * info.tiny / 4]
        drawn[name].flat[: len(special)] = special[: drawn[name].size]
    return drawn


@pytest.mark.parametrize("way", WAYS)
def test_weights_come_back_bit_for_bit(backend, rng, tmp_path, way):
    for dtype in dispatch.load(backend).DTYPES:
        attention = make(backend, dtype=dtype, bias=True, pooling="additive")
        expected = draw_special(attention, rng)
        attention.weights = {name: WAYS[way](array) for name, array in expected.items()}
        attention.save(tmp_path / "layer.safetensors")
        for reader in (backend, "numpy"):
            assert same_bits(mha.load(tmp_path / "layer.safetensors", reader).weights, expected), dtype


# Saving


@pytest.mark.parametrize("number", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_not_saved(backend, tmp_path, number):
    path = tmp_path / "layer.safetensors"
    make(backend, seed=1).save(path)
    before = path.read_bytes()
    for dtype in dispatch.load(backend).DTYPES:
        attention = make(backend, dtype=dtype)
        wrong = attention.weights
        wrong["W_k.kernel"][5, 7] = number
        attention.weights = wrong
        with pytest.raises(ValueError, match=r"^W_k\.kernel holds NaN or infinity"):
            attention.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch, step, error):
    path = tmp_path / "layer.safetensors"
    make("numpy", seed=1).save(path)
    before = path.read_bytes()

    def fail(*_):
        raise error

    class HalfWritten(io.FileIO):
        def write(self, data):
            super().write(data[: len(data) // 2])
            raise error

    if step == "write":
        monkeypatch.setattr(files, "open", HalfWritten, raising=False)
    else:
        monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error), match=re.escape(str(error)) or None):
        make("numpy", seed=2).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_saved_file_is_readable_by_others_and_stays_behind_its_link(tmp_path):
    (tmp_path / "link").symlink_to("layer.safetensors")
    make("numpy").save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    plain = tmp_path / "plain"
    plain.touch()
    assert (tmp_path / "layer.safetensors").stat().st_mode == plain.stat().st_mode


def test_a_file_may_have_the_longest_name(tmp_path):
    attention, path = make("numpy"), tmp_path / ("x" * 255)
    attention.save(path)
    assert same_bits(mha.load(path, "numpy").weights, attention.weights)


# A program of its own, which kills processes that it forks.
KILLING = """
import itertools, os, signal, sys
import mha
from mha.weights import files

path = os.path.join(sys.argv[1], "layer.safetensors")
layers = {"old": mha.MultiHeadAttention(66, 2, backend="numpy"), "new": mha.MultiHeadAttention(254, 2, backend="numpy")}

def content(layer):
    return layer.config, {name: array.tobytes() for name, array in layer.weights.items()}

def held():
    "Which layer the file holds, if it holds one."
    loaded = content(mha.load(path, "numpy"))
    return next((name for name, layer in layers.items() if content(layer) == loaded), None)

def fork(work):
    "Run something in a process of its own; returns the signal that ended it."
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def save_until(line):
    "Save, and be killed before so many lines of `files.write` have run."
    def trace(frame, event, _):
        if frame.f_code is not files.write.__code__:
            return None
        seen.append(frame.f_lineno)
        if len(seen) > line:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    seen = []
    sys.settrace(trace)
    layers["new"].save(path)

for line in itertools.count():
    layers["old"].save(path)
    ended = fork(lambda: save_until(line))
    print(ended, held())
    if ended == 0:
        break
"""


def test_a_save_killed_before_any_line_leaves_the_old_or_the_new(tmp_path, python):
    *kills, end = python(KILLING, str(tmp_path)).splitlines()
    assert end == "0 new"
    before = kills.count("9 old")
    assert kills == ["9 old"] * before + ["9 new"] * (len(kills) - before)
    assert before > 3


# Paths that are no files


def test_an_absent_file_is_pythons_own_error(tmp_path):
    for path in (tmp_path / "absent.safetensors", tmp_path / "absent" / "layer.safetensors"):
        with pytest.raises(FileNotFoundError, match=re.escape(str(path))) as raised:
            mha.load(path)
        assert not isinstance(raised.value, ValueError)
    with pytest.raises(FileNotFoundError):
        make("numpy").save(tmp_path / "absent" / "layer.safetensors")


@pytest.mark.parametrize("path", [3, None, b"layer.safetensors", [], True], ids=repr)
def test_what_is_no_path_is_refused(path):
    for call in (mha.load, make("numpy").save):
        with pytest.raises(TypeError, match=re.escape(f"path is {path!r} ({type(path).__name__}), expected a str or")):
            call(path)


NOT_REGULAR = """
import os, signal, socket, stat, sys
import mha

signal.alarm(20)  # what waits for a FIFO's writer, or reads a device, never ends
os.chdir(sys.argv[1])
attention = mha.MultiHeadAttention(6, 2, backend="numpy")
os.mkdir("folder")
os.mkfifo("fifo")
os.symlink("loop", "loop")
os.symlink("fifo", "link")
socket.socket(socket.AF_UNIX).bind("socket")
open("file", "w").close()
paths = ["folder", ".", "", "fifo", "link", "loop", "socket", "file/layer", "x" * 256, "null\\0"]
for path in [*paths, "/dev/zero", "/dev/null", "/"]:
    for call in (mha.load, attention.save):
        try:
            call(path)
        except ValueError as error:
            print(type(error).__name__, isinstance(error, OSError), error)
print(sorted(os.listdir()), stat.S_ISCHR(os.stat("/dev/null").st_mode))
"""


def test_what_is_no_regular_file_is_neither_read_nor_replaced(tmp_path, python):
    *errors, left = python(NOT_REGULAR, str(tmp_path)).splitlines()
    regular, cannot = "expected a regular file", "cannot be looked up, expected the path of a regular file:"
    with pytest.raises(ValueError, match="null") as raised:
        os.stat("null\0")
    null = raised.value  # each Python says it in another way
    reasons = {
        "folder": f"is a directory, {regular}", ".": f"is a directory, {regular}", "": f"is a directory, {regular}",
        "fifo": f"is a FIFO, {regular}", "link": f"is a FIFO, {regular}",
        "loop": f"{cannot} Too many levels of symbolic links", "socket": f"is a socket, {regular}",
        "file/layer": f"{cannot} Not a directory", "x" * 256: f"{cannot} File name too long",
        "null\0": f"{cannot} {null}",
        "/dev/zero": f"is a device, {regular}", "/dev/null": f"is a device, {regular}",
        "/": f"is a directory, {regular}",
    }  # fmt: skip
    assert len(errors) == 2 * len(reasons)
    for path, by_load, by_save in zip(reasons, errors[::2], errors[1::2], strict=True):
        assert by_save == f"FileError True {path or '.'} {reasons[path]}"
        if path in ("folder", ".", "/"):  # whose weights are looked for
            assert by_load.startswith(
                f"FileError True {path} is a directory without weights, expected model.safetensors"
            )
        else:
            assert by_load == by_save
    assert left == "['fifo', 'file', 'folder', 'link', 'loop', 'socket'] True"


NO_PERMISSION = """
import os, sys, tempfile
import mha

with tempfile.TemporaryDirectory() as folder:
    os.chmod(folder, 0o755)
    os.chdir(folder)
    mha.MultiHeadAttention(6, 2, backend="numpy").save("layer")
    mha.load("layer", "numpy")
    os.mkdir("closed")
    for path in ("layer", "closed"):
        os.chmod(path, 0)
    if os.geteuid() == 0:  # whom no file is closed to
        os.seteuid(65534)
    for path in ("layer", "closed/layer"):
        try:
            mha.load(path, "numpy")
        except ValueError as error:
            print(type(error).__name__, isinstance(error, OSError), error)
    if os.getuid() == 0:
        os.seteuid(0)
"""


def test_a_file_without_permission_is_refused(python):
    assert python(NO_PERMISSION).splitlines() == [
        "FileError True layer cannot be opened, expected a file that may be read: Permission denied",
        "FileError True closed/layer cannot be looked up, expected the path of a regular file: Permission denied",
    ]
