"""Plant deliberate bugs and see the tests fail: `python tests/programs/plant_bugs.py --backends torch,jax`.

A bug is a function that takes the place of a right one (`bugs_by_seam.py`). Each is planted in a copy of the checkout,
where its tests run; a bug that no test notices is an error, and so is one whose function a backend does not have.
"""

import concurrent.futures
import multiprocessing
import re
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import pytest
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table
from trials import PATHS, ROOT, copied, tried

from mha.core import dispatch

sys.path.extend([str(ROOT / path) for path in PATHS])
import bugs_by_seam
import seams


def path_of(test: str) -> str:
    """The path of a file of tests, which is in one of the rooms."""
    (path,) = (ROOT / "tests").glob(f"*/test_{test}.py")
    return str(path.relative_to(ROOT))


def bugs_of(backend: str) -> dict[str, list[str]]:
    """The names of the bugs of a backend, each with the files of tests that must notice it."""
    dispatch.load(dispatch.backend_name(backend))
    found, elsewhere = {}, bugs_by_seam.ELSEWHERE.get(backend, ())
    for mistakes, tests in bugs_by_seam.GROUPS:
        for name, (seam, _) in mistakes.items():
            if name not in elsewhere:
                if not seams.places(backend, seam)[0]:
                    raise LookupError(f"the bug {name!r} takes the place of {seam!r}, which {backend} does not have")
                found[name] = [path_of(test) for test in tests.split()]
    return found


def try_bug(backend: str, name: str, tests: list[str], copy: Path) -> str | None:
    """Plant a bug in the copy of the checkout and run its tests; the first that fails, or None if none does."""
    file = f"backends/{backend}/__init__.py"
    line = f"\nimport bugs_by_seam\n\nbugs_by_seam.plant({backend!r}, {name!r})\n"
    trial = tried({file: (copy / file).read_text(encoding="utf-8") + line}, copy, backend, ["--long", *tests])
    if trial.code != (pytest.ExitCode.TESTS_FAILED if trial.failure else pytest.ExitCode.OK):
        raise RuntimeError(f"pytest ended with {trial.code!r} for the bug {name!r} of {backend}")
    return trial.failure


def main(
    names: Annotated[
        str, typer.Option("--backends", help="The backends to plant bugs in, joined by commas.")
    ] = ",".join(dispatch.FRAMEWORKS),
    only: Annotated[str, typer.Option(help="Only bugs whose names match this regular expression.")] = "",
) -> None:
    """Plant every bug in every backend; exit code 1 if one goes unnoticed."""
    chosen = names.split(",")
    planned = [
        (backend, name, tests)
        for backend in chosen
        for name, tests in bugs_of(backend).items()
        if re.search(only, name)
    ]
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        copies = {backend: copied(Path(folder) / backend) for backend in chosen}
        pools = {backend: concurrent.futures.ProcessPoolExecutor(1, spawn) for backend in chosen}
        jobs = {pools[of].submit(try_bug, of, name, tests, copies[of]): (name, of) for of, name, tests in planned}
        done = concurrent.futures.as_completed(jobs)
        caught = {jobs[job]: job.result() for job in track(done, "Planting", len(jobs), console=Console(stderr=True))}
        for pool in pools.values():
            pool.shutdown()

    table = Table("bug", *chosen, title="The first test that notices each bug")
    shown = {bug: escape(test) if test else "[bold red]UNNOTICED" for bug, test in caught.items()}
    for name in dict.fromkeys(name for _, name, _ in planned):
        table.add_row(name, *(shown.get((name, backend), "-") for backend in chosen))
    Console(width=None if sys.stdout.isatty() else 60 + 90 * len(chosen)).print(table)
    noticed = sum(test is not None for test in caught.values())
    print(f"{noticed} of {len(caught)} planted bugs noticed")
    raise typer.Exit(0 if noticed == len(caught) else 1)


if __name__ == "__main__":
    typer.run(main)
