"""Measure layers that are split over several devices of this machine; nothing here imports a framework."""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from mha.bench.cases import Shape
from mha.core import dispatch
from mha.core.options.names import BackendName
from mha.parity.cases.run.groups import DEVICES, LOOPBACK, RANKS
from mha.parity.cases.run.processes import why_it_ended

BACKENDS = dispatch.backends_with("bench/frameworks/ranks/*.py")
SHAPES = ("XL-all", "C")  # where nobody names others
LIMIT = 600.0  # seconds that one rank waits for another
WORKER = "mha.bench.ranks"


@dataclasses.dataclass
class SplitMeasurement:
    """The measurements of one way to split a layer; None = not measured, or there is no such number.

    Attributes:
        milliseconds: the median time of a call.
        rounds: the number of samples.
        processor: the processor's time of all ranks together, divided by that of the unsplit layer.
        busiest: the processor's time of the busiest rank divided by the mean, where ranks are processes.
        mebibytes: the largest peak memory of a rank, without inputs, weights and their gradients.
        share: the same divided by that of the unsplit layer.
        problem: why it was not measured.
    """

    backend: BackendName
    kind: str
    shape: str
    way: str
    milliseconds: float | None = None
    rounds: int | None = None
    processor: float | None = None
    busiest: float | None = None
    mebibytes: float | None = None
    share: float | None = None
    problem: str | None = None


@dataclasses.dataclass
class SplitReport:
    """All measurements over a number of devices, and a line for each that failed."""

    devices: int
    rows: list[SplitMeasurement] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)

    def add(
        self, backend: BackendName, kind: str, shape: Shape, seconds: float, memory: bool,
        progress: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Measure all ways to split a layer of one shape, and add their rows.

        memory: True = its memory, too; progress: a function that is called with a text for each part of the work.
        """
        place = ", ".join((backend, kind, shape.name))
        arguments = {"kind": kind, "shape": shape.name, "seconds": seconds, "memory": memory}
        result = work(backend, self.devices, arguments, lambda now: progress(f"{place}: {now}"))
        if "error" in result:
            self.failed.append(f"{place}: {result['error']}")
            return
        for name, found in result["ways"].items():
            if found.pop("failed", False):
                self.failed.append(f"{place}, {name}: {found['problem']}")
            self.rows.append(SplitMeasurement(backend, kind, shape.name, name, **found))


def work(backend: BackendName, devices: int, arguments: dict[str, Any], progress: Callable[[str], None]) -> dict:
    """Run all ranks; return the result of the first rank, or {"error": ...} of the rank that first ended without one.

    arguments: those of `ranks.measure` that are the same for all ranks.
    """
    count = devices if RANKS[backend] else 1
    # All frameworks use the processor alone, since only its memory can be measured.
    environment = os.environ | LOOPBACK | {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    if RANKS[backend]:
        environment["OMP_NUM_THREADS"] = "1"
    if DEVICES[backend]:
        variable, option = DEVICES[backend]
        environment[variable] = f"{environment.get(variable, '')} {option}{devices}".strip()
    results: list[tuple[int, dict]] = []  # by rank, in the order in which they ended
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(count) as pool:
        running: list[subprocess.Popen] = []
        try:
            for rank in range(count):
                ranks = {"rank": rank, "count": devices, "meet": os.path.join(folder, "meet"), "limit": LIMIT}
                given = json.dumps(arguments | {"backend": backend, "ranks": ranks})
                with open(_stderr_path(folder, rank), "w", encoding="utf-8") as said, _without_interrupts():
                    process = subprocess.Popen(
                        [sys.executable, "-m", WORKER, given], stdout=subprocess.PIPE, stderr=said,
                        stdin=subprocess.DEVNULL, encoding="utf-8", start_new_session=True, env=environment,
                    )  # fmt: skip
                    running.append(process)
            waiting = {pool.submit(_listen, rank, folder, process, progress) for rank, process in enumerate(running)}
            while waiting and not any("error" in result for _, result in results):
                ended, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
                results += [one.result() for one in ended]
        finally:  # also after Ctrl-C
            for process in running:
                _end(process)
    for rank, result in results:
        if "error" in result:
            return {"error": f"rank {rank}: {result['error']}" if RANKS[backend] else result["error"]}
    return dict(results)[0]


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Let an interrupt wait, so that no process is started that nobody ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stderr_path(folder: str, rank: int) -> str:
    """The path of the file that takes a rank's stderr."""
    return os.path.join(folder, f"said by {rank}")


def _listen(
    rank: int, folder: str, process: subprocess.Popen, progress: Callable[[str], None]
) -> tuple[int, dict[str, Any]]:
    """Return the rank with the result that its process prints last, or with the error if it ends without a result.

    The progress that the first rank prints is passed on.
    """
    result = None
    with process:
        for line in process.stdout or ():
            report = json.loads(line)
            if "now" not in report:
                result = report
            elif rank == 0:
                progress(report["now"])
    if result is None:
        with open(_stderr_path(folder, rank), encoding="utf-8", errors="replace") as file:
            result = {"error": why_it_ended(process.returncode, file.read())}
    return rank, result


def _end(process: subprocess.Popen) -> None:
    """End a process that still runs, and all that it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
