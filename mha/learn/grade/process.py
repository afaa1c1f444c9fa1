"""Run the process of a submission: start, ask and time it, and end it with all that it started."""

import contextlib
import dataclasses
import json
import os
import select
import signal
import site
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from mha.core import import_mxnet
from mha.learn.grade.levels import NAMES

MEMORY, FILE_SIZE, OUTPUT = 4 * 2**30, 64 * 2**20, 64 * 2**10  # bytes
FULL = "it took more memory than 4 GB"
START = 180.0  # seconds for the framework alone
CHILD = Path(__file__).parent / "child"
MXNET = Path(import_mxnet.__file__)
Named = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Answer:
    """A submission's answer to a case.

    arrays, facts: its results; failure: why there are none, "missing", "wrong", "raised", "memory", "slow" or "left",
    else ""; text: the failure in words.
    """

    arrays: Named = dataclasses.field(default_factory=dict)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    failure: str = ""
    text: str = ""


class EndedError(Exception):
    """A process ended, or was ended, before it answered; failure, text: as of an `Answer`."""

    def __init__(self, failure: str, text: str) -> None:
        super().__init__(text)
        self.failure, self.text = failure, text


class Child:
    """A process of a submission; defined: the names that it has; problem: the error of its first failing statement."""

    def __init__(self, path: Path, folder: Path, frameworks: list[str], allow: bool, limit: float) -> None:
        self.folder, self.limit, self.number = folder, limit, 0
        asked, self.asking = os.pipe()
        self.answers, answers = os.pipe()
        given = {
            "path": str(path), "folder": str(folder), "frameworks": frameworks, "allow": allow, "names": NAMES,
            "memory": MEMORY, "file_size": FILE_SIZE, "seconds": int(START + 20 * limit), "mxnet": str(MXNET),
            "asked": asked, "answers": answers,
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(CHILD / "__main__.py"), json.dumps(given)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder,
            env=environment(folder), pass_fds=(asked, answers), start_new_session=True,
        )  # fmt: skip
        os.close(asked)
        os.close(answers)
        self.kept, self.unread = bytearray(), b""
        self.keeper = threading.Thread(target=self.keep, daemon=True)
        self.keeper.start()
        try:
            self.line(START)  # the framework is there
            loaded = self.line(limit)
        except EndedError:
            self.end()
            raise
        self.problem, self.defined = str(loaded["loaded"]), list(loaded["defined"])

    def keep(self) -> None:
        """Keep the beginning of the process's output, and read on, so that it need not wait."""
        assert self.process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while piece := os.read(self.process.stdout.fileno(), 2**16):
                self.kept += piece[: max(0, OUTPUT - len(self.kept))]

    @property
    def output(self) -> str:
        """The beginning of the process's output."""
        return bytes(self.kept).decode(errors="replace")

    def line(self, seconds: float) -> dict[str, Any]:
        """Wait for the next line of the process; raises EndedError if there is none."""
        end = time.monotonic() + seconds
        while b"\n" not in self.unread:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.answers], [], [], left)[0]:
                raise EndedError("slow", f"it took more than {self.limit:g} seconds")
            piece = os.read(self.answers, 2**16)
            if not piece:
                raise EndedError(*self.why())
            self.unread += piece
        text, _, self.unread = self.unread.partition(b"\n")
        try:
            return dict(json.loads(text))
        except ValueError:
            raise EndedError("left", "it wrote into the grader's pipe") from None

    def why(self) -> tuple[str, str]:
        """Say why the process has ended by itself."""
        try:
            status = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "left", "it closed the grader's pipe"
        if status >= 0:
            return "left", f"it left the process, with exit code {status}"
        if -status in (signal.SIGXCPU, signal.SIGKILL):
            return "slow", "it used too much processor time"
        if "alloc" in self.output[-2000:]:
            return "memory", FULL
        return "left", f"its process was ended by signal {-status} ({signal.Signals(-status).name})"

    def ask(self, task: str, inputs: Named, options: dict[str, Any], failed: list[str], like: dict[str, Any]) -> Answer:
        """Let the submission run one case; raises EndedError if the process ends."""
        self.number += 1
        given, results = (self.folder / f"{name}-{self.number}.npz" for name in ("inputs", "results"))
        np.savez(given, **inputs)  # type: ignore[arg-type]
        request = {
            "kind": task, "inputs": str(given), "results": str(results), "options": options, "failed": failed,
            "like": like, "number": self.number,
        }  # fmt: skip
        try:
            os.write(self.asking, f"{json.dumps(request)}\n".encode())
            answer, end = self.line(self.limit), time.monotonic() + self.limit
            while answer.get("number") != self.number:  # the submission itself has written into the pipe
                answer = self.line(end - time.monotonic())
        except BrokenPipeError:
            raise EndedError(*self.why()) from None
        if "failure" in answer:
            memory = answer["failure"] == "memory" or "allocate memory" in answer["text"] or "OOM" in answer["text"]
            return Answer(
                failure="memory" if memory else answer["failure"], text=answer["text"] or (FULL if memory else "")
            )
        try:
            with np.load(results, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (OSError, ValueError) as error:
            return Answer(failure="raised", text=f"its results cannot be read: {error}")
        finally:
            for path in (given, results):
                path.unlink(missing_ok=True)
        return Answer(arrays, answer["facts"])

    def end(self) -> None:
        """End the process, and all that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.keeper.join(1)  # unless a process that left the group holds the pipe
        assert self.process.stdout is not None
        self.process.stdout.close()
        for pipe in (self.asking, self.answers):
            with contextlib.suppress(OSError):
                os.close(pipe)


def environment(folder: Path) -> dict[str, str]:
    """The environment variables of a submission: of ours, only the paths of programs and libraries."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG", "PYTHONHOME") if name in os.environ}
    ours = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(folder))
    ours |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"), "1")
    return kept | ours | {
        "PYTHONUSERBASE": site.getuserbase(), "PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "Agg",
        "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0",
    }  # fmt: skip
