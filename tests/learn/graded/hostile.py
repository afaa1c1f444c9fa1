"""Submissions that go wrong in other ways than by numbers, and what grading must say; each is right otherwise."""

from .mistaken import RIGHT

BASE = (RIGHT / "numpy_layer.py").read_text(encoding="utf-8")
HEAD = "def masked_softmax(X, valid_lens=None):\n"


def at_first(code):
    """The right submission in NumPy, whose masked_softmax begins with this code."""
    assert HEAD in BASE
    return BASE.replace(HEAD, f"{HEAD}    {code}\n")


# By name: the text, the status of level 1, words of what differs; with all other levels right.
IN_A_LEVEL = {
    "loops": (at_first("while True: pass"), "slow", "more than 2 seconds"),
    "sleeps": (at_first("import time; time.sleep(600)"), "slow", "more than 2 seconds"),
    "leaves as if all were well": (at_first("import sys; sys.exit(0)"), "left", "exit code 0"),
    "leaves at once": (at_first("import os; os._exit(0)"), "left", "exit code 0"),
    "ends itself": (at_first("import os, signal; os.kill(os.getpid(), signal.SIGTERM)"), "left", "SIGTERM"),
    "prints without end": (at_first("while True: print('x' * 1000)"), "slow", "more than 2 seconds"),
    "takes 50 GB": (at_first("np.ones(50 * 2**27)"), "memory", "4 GB"),
    "takes 6 GB and does not use it": (at_first("np.empty(6 * 2**27)"), "memory", "4 GB"),
    "writes elsewhere": (at_first("open('/tmp/../etc/grades', 'w')"), "raised", "may not be changed"),
    "writes 100 MB": (at_first("open('big', 'wb').write(bytes(100 * 2**20))"), "raised", "OSError"),
    "forks": (at_first("import os\n    while True: os.fork()"), "raised", "no other process"),
    "starts a program": (at_first("import subprocess; subprocess.run(['true'])"), "raised", "no other process"),
    "waits for input": (at_first("input()"), "raised", "EOFError"),
    "imports the answer": (at_first("import mha"), "raised", "mha cannot be imported"),
    "imports a file of the answer": (
        at_first("import sys; sys.path.insert(0, ROOT); from mha.backends.numpy import hiding"),
        "raised",
        "mha cannot be imported",
    ),
    "recurses": (at_first("return masked_softmax(X, valid_lens)"), "raised", "calls itself"),
    "returns nothing": (at_first("return None"), "raised", "TypeError"),
    "returns text": (at_first("return np.array(['passed'])"), "raised", "TypeError"),
    "returns objects": (at_first("return np.array([print], dtype=object)"), "raised", "TypeError"),
    "patches NumPy": (at_first("np.savez = np.load = None"), "passed", ""),
    "says that it has passed": (
        at_first("import os\n    for fd in range(3, 256):\n        try: os.write(fd, b'{\"facts\": {}}\\n')\n        except OSError: pass"),
        "passed",
        "",
    ),
}  # fmt: skip

WHILE_LOADED = {
    "leaves while it is loaded": ("import sys\nsys.exit(0)\n", "left", "while it was loaded"),
    "loops while it is loaded": ("while True: pass\n", "slow", "while it was loaded"),
    "cannot be parsed": ("def masked_softmax(X:\n", "missing", "SyntaxError"),
    "is empty": ("", "missing", "masked_softmax is missing"),
}
