"""What TensorFlow writes about its own start stays out of stderr, and nothing else does."""

import os
import subprocess
import sys

import pytest

CALLS = """
import mha
from mha.cli import app

attention, X = mha.MultiHeadAttention(6, 2, dropout=0.5), mha.ones((1, 3, 6))
attention(X, X, X, [2], training=True), attention.gradients(X, X, X), attention.trace(X, X, X)
mha.to_numpy(X), attention.to("numpy")
app(["demo"], standalone_mode=False)
"""
# A framework that writes what TensorFlow does, past `sys.stderr` as that does, and then something of its own.
FAKE = r"""
import contextlib, os

def say(text):
    with contextlib.suppress(OSError):
        os.write(2, text.encode("latin-1"))

say("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n")
say("I0000 00:00:1795370668.618671    8041 port.cc:153] oneDNN custom operations are on. You may see\n")
say("F0000 this processor lacks \xff\n")
say(f"level {os.environ.get('TF_CPP_MIN_LOG_LEVEL')}\n")
if "ABORTS" in os.environ:
    os.abort()
raise ImportError("lib42.so: cannot open shared object file")
"""
FAILS = "import os, mha; os.write(2, b'before\\n'); mha.ones((2, 3), backend='tensorflow')"


def stderr(code, ends=0, **environment):
    """The lines that a new process writes to stderr; the tester's own TF_CPP_MIN_LOG_LEVEL is not passed on."""
    kept = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=kept | environment, capture_output=True, timeout=300, check=False)
    lines = result.stderr.decode("latin-1").splitlines()
    assert result.returncode == ends, lines
    return lines


@pytest.fixture
def fake(tmp_path):
    """A path on which the above is TensorFlow."""
    (tmp_path / "tensorflow.py").write_text(FAKE, encoding="utf-8")
    (tmp_path / "keras.py").write_text("", encoding="utf-8")
    return os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])


@pytest.mark.backends("tensorflow")
def test_stderr_stays_empty():
    assert stderr(CALLS, MHA_BACKEND="tensorflow") == []


def test_errors_are_seen(fake):
    lines = stderr(FAILS, 1, PYTHONPATH=fake)
    assert lines[:3] == ["before", "F0000 this processor lacks \xff", "level 2"]
    assert lines[3].startswith("Traceback")
    assert lines[-1] == "ImportError: lib42.so: cannot open shared object file"


def test_what_is_said_before_a_crash_is_seen(fake):
    lines = stderr(FAILS, -6, PYTHONPATH=fake, ABORTS="1")
    assert lines[:3] == ["before", "F0000 this processor lacks \xff", "level 2"]


@pytest.mark.parametrize("environment", [{"TF_CPP_MIN_LOG_LEVEL": "0"}, {"PATH": ""}], ids=["asked for", "no grep"])
def test_all_lines_are_seen(fake, environment):
    lines = stderr(FAILS, 1, PYTHONPATH=fake, **environment)
    assert [line.split()[0] for line in lines[:5]] == ["before", "WARNING:", "I0000", "F0000", "level"]
    assert lines[4] == f"level {environment.get('TF_CPP_MIN_LOG_LEVEL', '2')}"


@pytest.mark.backends("tensorflow")
def test_a_framework_that_is_imported_already_is_left_alone():
    code = "import os, keras; before = dict(os.environ); import mha; mha.ones(2); assert dict(os.environ) == before"
    stderr(code, MHA_BACKEND="tensorflow")


def test_there_may_be_no_stderr(fake, tmp_path):
    code = (
        "import os, mha; os.close(2)\ntry: mha.ones(2, backend='tensorflow')\n"
        "except ImportError as error: os._exit(str(error).startswith('lib42') and 42)"
    )
    assert stderr(code, 42, PYTHONPATH=fake) == []
