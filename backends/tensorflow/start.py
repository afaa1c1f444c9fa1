"""TensorFlow's import, without what it writes about its start to stderr; TF_CPP_MIN_LOG_LEVEL=0 shows all of it.

Some lines come before TensorFlow reads that variable, past Python's `sys.stderr`, and no option leaves them out. So
what goes to stderr during the import passes `grep`. That is another process: what TensorFlow says on a processor that
it cannot run on, where it ends ours, arrives too.
"""

import contextlib
import importlib
import os
import subprocess
import sys

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
LINES = ("oneDNN custom operations are on", "before absl::InitializeLog() is called are written to STDERR")
LEAVE_OUT = ["grep", "-a", "-v", "-F", "--line-buffered", *(f"--regexp={line}" for line in LINES)]


@contextlib.contextmanager
def quiet():
    """Leave lines about TensorFlow's start out of what is written to stderr inside; the rest is seen as it comes."""
    try:
        stderr = os.dup(2)
    except OSError:  # there is none
        yield
        return
    try:
        # Of a group of its own, it outlives an interrupt, and so passes on what is said of that.
        passing = subprocess.Popen(LEAVE_OUT, stdin=subprocess.PIPE, stdout=stderr, process_group=0)
        os.dup2(passing.stdin.fileno(), 2)
    except OSError:  # no `grep`: then those lines are seen
        passing = None
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        if passing:
            passing.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # another thread's process still writes to it
                passing.wait(timeout=1)


if "tensorflow" not in sys.modules:
    os.environ.setdefault(LEVEL, "2")  # errors are seen
    with contextlib.nullcontext() if os.environ[LEVEL] == "0" else quiet():
        importlib.import_module("tensorflow")
