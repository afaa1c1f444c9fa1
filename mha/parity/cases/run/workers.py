"""Run a suite, each backend in its own process: one that crashes, hangs or needs too much memory ends alone.

Nothing here imports a framework. Each process may have its own Python: some frameworks cannot be installed together.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection
from typing import IO, Any

import mha
from mha.core import dispatch
from mha.core.devices import DeviceError
from mha.core.options.names import BackendName, FloatName, SuiteName
from mha.parity.cases.run.processes import available, why_it_ended
from mha.parity.cases.suite import Result

SECONDS = dispatch.facts("SECONDS", 0)  # roughly how long each backend takes
NEEDED = 2048.0  # MiB that one process may take


@dataclasses.dataclass
class RunOutcome:
    """The outcome of one backend: the versions of what ran, empty if it did not load, and the results.

    backend: its name, or that of a group of devices, as torch:2.
    """

    backend: str
    about: dict[str, str] = dataclasses.field(default_factory=dict)
    results: list[Result] = dataclasses.field(default_factory=list)

    def fail(self, check: str, why: str) -> None:
        """Add a failed result for an error."""
        self.results.append(Result(self.backend, check, "", "", why, math.inf, 0.0))


@dataclasses.dataclass(frozen=True)
class SuiteRunner:
    """A suite to run in processes."""

    # As for `plan`, or for `cases.devices`.
    suite: SuiteName = "quick"
    cases: Collection[str] | None = None
    dtypes: Collection[FloatName] | None = None
    device: str | None = None  # where to compute, by the framework's name for it; None = as the framework does
    limit: float = 120.0  # seconds after which a process that reports nothing is ended
    # Called as progress(name of a backend or a group, done, total) after each check.
    progress: Callable[[str, int, int], None] = lambda name, done, total: None

    def run_worker(
        self, outcome: RunOutcome, python: str, running: list[subprocess.Popen], environment: dict[str, str],
        progress: Callable[[int, int], None], backend: BackendName, **more: Any,
    ) -> RunOutcome:  # fmt: skip
        """Run one process of the worker, with these arguments besides its own; while it runs, it is in the list.

        Raises DeviceError if the device is not there.
        """
        own = {name: getattr(self, name) for name in ("suite", "cases", "dtypes", "device")}
        arguments = {"backend": backend} | own | more
        # A file for stderr: a pipe that nobody reads would stop the process.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            try:
                process = subprocess.Popen(
                    [python, "-m", "mha.parity.cases.run.worker", json.dumps(arguments)],
                    stdout=subprocess.PIPE, stderr=said, stdin=subprocess.DEVNULL, encoding="utf-8",
                    start_new_session=True, env=environment,
                )  # fmt: skip
            except OSError as error:
                outcome.fail("starts", f"{error.strerror}: {python}")
                return outcome
            running.append(process)
            try:
                _listen(process, python, outcome, said, self.limit, progress)
            finally:
                end(process, running)
        return outcome


@dataclasses.dataclass(frozen=True)
class Runner(SuiteRunner):
    """A suite to run on backends."""

    pythons: dict[BackendName, str] = dataclasses.field(default_factory=dict)  # other interpreters, by backend

    def run(self, backends: Collection[BackendName]) -> list[RunOutcome]:
        """Run the suite on backends, as many at a time as processors and memory allow; return the outcomes in order.

        Raises DeviceError, and ends all, if one of them does not have the device.
        """
        at_once = max(1, min(len(backends), os.cpu_count() or 1, int(available() // NEEDED)))
        # Otherwise each process would have a thread for every processor, and all would wait for one another.
        threads = {"OMP_NUM_THREADS": str((os.cpu_count() or 1) // at_once)}
        running: list[subprocess.Popen] = []
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            # The slowest first, so that none is left to run alone in the end.
            ordered = sorted(backends, key=lambda name: -SECONDS[name])
            waiting = {name: pool.submit(self._run_one, name, running, threads | os.environ) for name in ordered}
            try:
                for future in concurrent.futures.as_completed(waiting.values()):
                    future.result()  # or its error
            finally:  # also after Ctrl-C
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(running):
                    end(process, running)
        return [waiting[name].result() for name in backends]

    def _run_one(
        self, backend: BackendName, running: list[subprocess.Popen], environment: dict[str, str]
    ) -> RunOutcome:
        python, progress = self.pythons.get(backend, sys.executable), functools.partial(self.progress, backend)
        return self.run_worker(RunOutcome(backend), python, running, environment, progress, backend)


def _listen(
    process: subprocess.Popen,
    python: str,
    outcome: RunOutcome,
    said: IO[str],
    limit: float,
    progress: Callable[[int, int], None],
) -> None:
    """Note what a process reports, until it ends or reports nothing for too long."""
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_forward, args=(process.stdout, lines), daemon=True).start()
    doing, done, total = "", 0, -1
    while True:
        try:
            line = lines.get(timeout=limit)
        except queue.Empty:
            outcome.fail("runs", f"gave nothing for {limit:g} seconds, {_describe_place(doing, done, total)}")
            return
        if line is None:
            break
        try:
            report = dict(json.loads(line))
        except (ValueError, TypeError):
            outcome.fail("starts", f"{python} is no Python with mha: it printed {line.strip()!r}")
            return
        if "absent" in report:
            raise DeviceError(report["absent"])
        if "broken" in report:
            outcome.fail("loads", report["broken"])
            return
        if "total" in report:
            total, outcome.about = report["total"], report["about"]
            if outcome.about["mha"] != mha.__version__:
                theirs = f"mha {outcome.about['mha']} of {python}"
                outcome.fail("loads", f"{theirs} is not this version, {mha.__version__}; install this one there")
                return
        doing = report.get("begins", doing)
        if report.get("kernels"):
            outcome.about["kernels"] = ", ".join(report["kernels"])
        if "results" in report:
            outcome.results += [Result(**one) for one in report["results"]]
            done += 1
        progress(done, total)
    if done != total:  # -1 = not known yet
        status = process.wait()
        said.seek(0)
        why = why_it_ended(status, said.read())
        place = _describe_place(doing, done, total)
        outcome.fail(*("starts", why) if total < 0 else ("runs", f"{why}, {place}"))


def _describe_place(doing: str, done: int, total: int) -> str:
    """Describe where a process was when it failed."""
    return f"in check {done + 1} of {total} ({doing})" if doing else "before its first check"


def _forward(stream: Any, lines: "queue.Queue[str | None]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def end(process: subprocess.Popen, running: list[subprocess.Popen]) -> None:
    """End a process and all that it has started, if it is still among those running."""
    if process not in running:
        return
    running.remove(process)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout:
        process.stdout.close()
