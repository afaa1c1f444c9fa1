"""Measure each number in its own process; nothing here imports a framework."""

import dataclasses
import itertools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import mha
from mha.bench import cases
from mha.bench.cases import Shape
from mha.core import dispatch
from mha.core.options.names import BackendName
from mha.parity.cases.run.processes import available, why_it_ended


@dataclasses.dataclass
class Measurement:
    """The measurements of one implementation; None = not measured.

    Attributes:
        role: the implementation's role for its backend.
        milliseconds: the median time of a call.
        rounds: the number of samples.
        ratios: lower quartile, median and upper quartile of its time divided by that of `attention.layer` in the same
            round.
        overhead: the median of the difference of these two times, in microseconds.
        mebibytes: the peak memory of one call, without inputs and weights.
        floor: the milliseconds of the matrix products alone at `rate`; in decoding, of reading their numbers.
        rate: of the framework's own matrix product, in GFLOP/s.
    """

    backend: BackendName
    kind: str
    shape: str
    implementation: str
    role: str
    milliseconds: float | None = None
    rounds: int | None = None
    ratios: list[float] | None = None
    overhead: float | None = None
    mebibytes: float | None = None
    floor: float | None = None
    rate: float | None = None


@dataclasses.dataclass
class Report:
    """All measurements, for the tables and for the sweep over T; and a line for each that failed or was left out."""

    rows: list[Measurement] = dataclasses.field(default_factory=list)
    sweep: list[Measurement] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)
    left_out: list[str] = dataclasses.field(default_factory=list)


class Runner:
    """Runs the measurements of shapes and of the sweep; calls `progress` with a text for each."""

    def __init__(self, seconds: float, progress: Callable[[str], None]) -> None:
        self.report = Report()
        self.seconds = seconds
        self.progress = progress
        self._known: dict[tuple[str, str], dict[str, dict[str, str]]] = {}

    def roles(self, backend: BackendName, kind: str, shape: Shape) -> dict[str, str]:
        """The role of each implementation, by name, from a worker that runs once; {} if it failed."""
        if (backend, kind) not in self._known:
            result = self._run("implementations", f"{backend}, {kind}", "implementations", backend=backend, kind=kind)
            self._known[backend, kind] = result.get("roles", {})
        return self._known[backend, kind].get(shape.name, {})

    def steps(
        self, backends: list[BackendName], kinds: list[str], shapes: list[Shape], memory: bool, sweep: bool
    ) -> int:
        """The largest possible number of measurements, for a progress bar."""
        known = [(shape, memory) for shape in shapes] + [(shape, True) for shape in cases.SWEEP.values() if sweep]
        return sum(
            1 + both * len(self.roles(backend, kind, shape))
            for backend, kind, (shape, both) in itertools.product(backends, kinds, known)
            if cases.of_kind(kind, [shape])
        )

    def table(self, backend: BackendName, kind: str, shape: Shape, memory: bool) -> None:
        """Measure one shape; memory: True = its memory, too."""
        rows = [
            Measurement(backend, kind, shape.name, name, role)
            for name, role in self.roles(backend, kind, shape).items()
        ]
        self.report.rows += rows
        if memory:
            # An implementation that fails here would stop the others when they are timed together.
            rows = [row for row in rows if self._memory(row)]
        self._times(rows, shape)

    def sweep(self, backend: BackendName, kind: str) -> None:
        """Measure each T of the sweep; an implementation stops before it could need half of the free memory."""
        free, (first, *_, last) = available(), cases.SWEEP.values()
        roles = self.roles(backend, kind, first)
        for shape in cases.SWEEP.values():
            rows = [Measurement(backend, kind, shape.name, name, role) for name, role in roles.items()]
            self.report.sweep += rows
            rows = [row for row in rows if self._memory(row)]
            self._times(rows, shape)
            # Twice the T takes at most four times the memory.
            large = [row for row in rows if 4 * (row.mebibytes or 0) > free / 2]
            roles = {row.implementation: row.role for row in rows if row not in large}
            if shape != last:
                self.report.left_out += [
                    f"{backend}, {kind}: {row.implementation} beyond T = {shape.T}, where it took {row.mebibytes:,.0f} "
                    f"of {free:,.0f} MiB that were free"
                    for row in large
                ]

    def _memory(self, row: Measurement) -> bool:
        """Measure the memory of an implementation; returns False if that failed."""
        result = self._measure("memory", row, row.implementation, name=row.implementation)
        row.mebibytes = result.get("mebibytes")
        return row.mebibytes is not None

    def _times(self, rows: list[Measurement], shape: Shape) -> None:
        if not rows:
            return
        names = [row.implementation for row in rows]
        result = self._measure("times", rows[0], "times", names=names, seconds=self.seconds)
        if not result:
            return
        floor = None if shape.decodes else shape.floor(rows[0].kind, result["rate"])
        for row in rows:
            row.milliseconds = result["milliseconds"][row.implementation]
            row.ratios = result["ratios"].get(row.implementation)
            row.overhead = result["overheads"].get(row.implementation)
            row.rounds, row.rate, row.floor = result["rounds"], result["rate"], floor

    def _measure(self, what: str, row: Measurement, shown: str, **arguments: Any) -> dict[str, Any]:
        place = {"backend": row.backend, "kind": row.kind, "shape": row.shape}
        return self._run(what, ", ".join(place.values()), shown, **place, **arguments)

    def _run(self, what: str, place: str, shown: str, **arguments: Any) -> dict[str, Any]:
        """The result that a worker printed; {} if it failed, and then the report has a line about it."""
        self.progress(f"{place}: {shown}")
        result = work(what, **arguments)
        if "error" in result:
            self.report.failed.append(f"{place}, {shown}: {result['error']}")
            return {}
        return result


def work(what: str, **arguments: Any) -> dict[str, Any]:
    """The result that a worker prints for one measurement, or {"error": ...} if it printed none."""
    command = [sys.executable, "-m", "mha.bench.worker", what, json.dumps(arguments)]
    # All frameworks use the processor alone, since only its memory can be measured.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", errors="replace")
    try:
        return json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": why_it_ended(ended.returncode, ended.stderr)}


def machine(backends: list[BackendName]) -> dict[str, Any]:
    """The machine that was measured: processor, cores, system, and versions of Python and the frameworks."""
    return {
        "device": "cpu",  # of every worker
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "mha": mha.__version__,
        "frameworks": {module: version for name in backends for module, version in _versions(name).items()},
    }


def _versions(backend: BackendName) -> dict[str, str]:
    """The versions of the packages that a backend needs."""
    first, *others = dispatch.FRAMEWORKS[backend].needs
    return {first: dispatch.backends()[backend].version or ""} | {name: metadata.version(name) for name in others}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
