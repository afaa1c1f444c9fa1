"""Play other machines: tests that judge by bounds, with half and with twice of each, as libraries compute elsewhere.

    python tests/programs/machines.py [--only AVX2] [--backends torch,jax]

Each library is told which instructions it may take, and how many threads; a processor can play those with fewer than it
has. What passes with half of a bound and with twice of it has a margin of 2 on both sides. Exit code 0 if all pass.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, NamedTuple
from xml.etree import ElementTree

import typer
from rich.console import Console
from rich.table import Table

from mha.core import dispatch

TESTS = Path(__file__).parents[1]
ROOMS = "parity", "testing", "models", "layer", "cache", "weights"  # where numbers are compared
FACTORS = 0.5, 2.0
TOGETHER = "all"  # tests of all backends in one process
CALLS = 3  # of each right port

# Prints the largest ratio of right ports in half precision; one that is not right in float32 is an error. Without those
# of Keras, which sum in float16: docs/testing.md has them among "Right code that is refused".
LARGEST = """
import sys, right_ports
names = [name for name in right_ports.ports() if sys.argv[1] in name.split("_")[0].split(".") and "keras" not in name]
found = [ratio for name in names for _, ratio in right_ports.ratios(name, int(sys.argv[2]), 0)]
print(f"{max(found):.2f}" if found else "-")
"""


class Machine(NamedTuple):
    """A machine by what it lacks: the flag of a processor that can play it, threads, and what each library is told."""

    flag: str
    threads: int
    pytorch: str
    onednn: str
    mkl: str
    openblas: str
    xla: str
    not_numpy: str

    def variables(self) -> dict[str, str]:
        """Return the variables of the environment that say so; threads that wait leave the processor to others.

        TensorFlow asks the processor whether oneDNN multiplies in bfloat16, whatever oneDNN is told, and aborts.
        """
        return {
            "OMP_NUM_THREADS": str(self.threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "TF_ENABLE_ONEDNN_OPTS": "0",
            "ATEN_CPU_CAPABILITY": self.pytorch,
            "ONEDNN_MAX_CPU_ISA": self.onednn,
            "MKL_CBWR": self.mkl,
            "OPENBLAS_CORETYPE": self.openblas,
            "XLA_FLAGS": f"--xla_cpu_max_isa={self.xla}",
            "NPY_DISABLE_CPU_FEATURES": self.not_numpy,
        }


NEW = "AVX512_ICL AVX512_SPR"
MACHINES = {
    "SSE": Machine("sse4_2", 1, "default", "SSE41", "COMPATIBLE", "Nehalem", "AVX", f"X86_V3 X86_V4 {NEW}"),
    "AVX2": Machine("avx2", 2, "avx2", "AVX2", "AVX2", "Haswell", "AVX2", f"X86_V4 {NEW}"),
    "AVX2 of AMD": Machine("avx2", 4, "avx2", "AVX2", "AUTO", "Zen", "AVX2", f"X86_V4 {NEW}"),
    "AVX-512": Machine("avx512vl", 4, "avx512", "AVX512_CORE", "AVX512", "SkylakeX", "AVX512", NEW),
}
AS_IT_IS = "as it is"


def run_on(name: str, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python in a folder as on this machine."""
    environment = os.environ | (MACHINES[name].variables() if name in MACHINES else {})
    command = sys.executable, *command
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def tested(name: str, backend: str, factor: float) -> tuple[int, list[str]]:
    """Run the tests of a backend with all bounds times a factor; return their number, and the names of those that fail.

    Raises:
        RuntimeError: they could not be run.
    """
    rooms = [str(TESTS / room) for room in ROOMS]
    chosen = ["-m", "all_backends"] if backend == TOGETHER else ["--backends", backend, *rooms]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.xml"
        options = ["-q", "-n", "2", "--dist", "loadgroup", "--junitxml", str(path), "--bounds", str(factor)]
        options += ["--quick-xla"] * (backend == "jax")
        run = run_on(name, TESTS.parent, "-m", "pytest", *options, *chosen)
        if run.returncode not in (0, 1):
            raise RuntimeError(f"{name}, {backend}: {(run.stdout + run.stderr)[-2000:]}")
        cases = list(ElementTree.parse(path).iter("testcase"))
    wrong = [case for case in cases if any(one.tag in ("failure", "error") for one in case)]
    return len(cases), [f"{case.get('classname')}::{case.get('name', '').partition('@')[0]}" for case in wrong]


def largest(name: str, backend: str) -> str:
    """Return the largest ratio of right ports of a backend, and of `mha` on it, in half precision."""
    run = run_on(name, TESTS / "programs", "-c", LARGEST, backend, str(CALLS))
    return run.stdout.strip() if run.returncode == 0 else "not right: " + run.stderr.strip().splitlines()[-1]


def main(
    only: Annotated[list[str] | None, typer.Option(help="The name of a machine; repeatable.")] = None,
    backends: Annotated[str, typer.Option(help="Joined by commas.")] = ",".join((*dispatch.FRAMEWORKS, TOGETHER)),
) -> None:
    """Play machines, and print a table of what passes with other bounds."""
    if unknown := set(only or ()) - {AS_IT_IS, *MACHINES}:
        raise typer.BadParameter(f"--only is {', '.join(unknown)}, expected {', '.join((AS_IT_IS, *MACHINES))}")
    flags = Path("/proc/cpuinfo").read_text().split()
    console, good = Console(width=120), True
    table = Table("machine", "backend", "tests", *(f"fail at {factor:g} bounds" for factor in FACTORS), "right ports")
    for name in only or (AS_IT_IS, *MACHINES):
        if name in MACHINES and MACHINES[name].flag not in flags:
            console.print(f"{name}: not played, as this processor has no {MACHINES[name].flag}")
            continue
        for backend in backends.split(","):
            found = {factor: tested(name, backend, factor) for factor in FACTORS}
            ratio = "-" if backend == TOGETHER else largest(name, backend)
            count = max(count for count, _ in found.values())
            row = name, backend, str(count), *(str(len(wrong)) for _, wrong in found.values()), ratio
            table.add_row(*row)
            lines = [f"{one} fails at {factor:g} bounds" for factor, (_, wrong) in found.items() for one in wrong]
            console.print(" | ".join(row), *lines, sep="\n")
            good = good and not lines and (ratio == "-" or (ratio[0].isdigit() and float(ratio) <= 1))
    console.print(table)
    raise typer.Exit(not good)


if __name__ == "__main__":
    typer.run(main)
