"""Plant deliberate bugs and see the tests fail: `python tests/plant_bugs.py --backends torch,jax`.

Each bug of `bugs.py` is planted in a copy of the checkout, where its tests run; a bug that no test notices is an error.
So is a pattern that is not found, lest the lists go stale: all are looked for first, with `--check` no more than that.
"""

import ast
import concurrent.futures
import dataclasses
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import bugs
import pytest
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from mha import dispatch

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
# Of a backend's folder: a bug in these is none of what it computes.
ELSEWHERE = ("book.py", "native.py", "bench.py", "facts.py")


@dataclasses.dataclass(frozen=True)
class Bug:
    """One bug of one backend, or of mha itself, which NumPy's tests are to notice then.

    of: the backend, or the group of mha's bugs; files: those to search, from the root of the checkout.
    """

    of: str
    name: str
    backend: str
    files: tuple[str, ...]
    replacements: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]

    def planted(self, root: Path) -> dict[str, str]:
        """The source of each file in a checkout that the bug changes, with the bug in it."""
        sources = {name: (root / name).read_text(encoding="utf-8") for name in self.files}
        changed = {}
        for pattern, replacement in self.replacements:
            found = {name: source for name, source in sources.items() if re.search(pattern, source)}
            if not found:
                raise LookupError(f"the bug {self.name!r} finds no {pattern!r} in {' or '.join(self.files)}")
            changed |= {name: re.sub(pattern, replacement, source) for name, source in found.items()}
            sources |= changed
        return changed


def bugs_of(backend: str) -> list[Bug]:
    """The bugs of a backend; some are of other backends alone."""
    folder = ROOT / "backends" / backend
    files = [f"backends/{backend}/{path.name}" for path in sorted(folder.glob("*.py")) if path.name not in ELSEWHERE]
    found = []
    for group, tests in bugs.BACKEND_GROUPS:
        for name, replacements in group.items():
            own = replacements.get(backend, []) if isinstance(replacements, dict) else replacements
            written = tuple((pattern, _written(replacement, backend)) for pattern, replacement in own)
            if written:
                found.append(Bug(backend, name, backend, (*files, "mha/blocks.py"), written, tuple(tests)))
    return found


def package_bugs() -> list[Bug]:
    """The bugs of mha itself, and those of what a backend knows of its framework's own layers."""
    return [
        Bug(group, name, _noticed_by(module), (f"mha/{module}.py",), ((pattern, replacement),), tuple(tests))
        for group, (listed, tests) in bugs.PACKAGE_GROUPS.items()
        for name, (module, pattern, replacement) in listed.items()
    ]


def _noticed_by(module: str) -> str:
    """The backend whose tests must notice a bug in a module of mha."""
    return module.split("/")[1] if re.search("/native$|/parallel/", module) else "numpy"


def _written(replacement: str, backend: str) -> str:
    """A replacement with its words in capitals written the backend's way."""
    for general, own in bugs.WAYS.items():
        replacement = replacement.replace(general, own[backend])
    return replacement


class FirstFailure:
    """A pytest plugin that remembers the first test that failed."""

    def __init__(self) -> None:
        self.name: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.name is None:
            self.name = report.nodeid.rpartition("/")[2]


def try_bug(bug: Bug, copy: Path) -> str | None:
    """Plant a bug in the copy of the checkout and run its tests; the first that fails, or None if none does.

    Of one process, which tries many bugs and imports its framework but once: what is ours is imported anew.
    """
    changed = bug.planted(copy)
    before = {name: (copy / name).read_text(encoding="utf-8") for name in changed}
    ours = [name for name, module in sys.modules.items() if name.partition(".")[0] == "mha" or _is_in(copy, module)]
    for name in ours:
        del sys.modules[name]
    if str(copy) not in sys.path:
        sys.path.insert(0, str(copy))
    os.environ["PYTHONPATH"] = str(copy)
    os.chdir(copy)
    failure = FirstFailure()
    options = ["-x", "-p", "no:cacheprovider", "-p", "no:terminal", "--long", "--backends", bug.backend]
    try:
        for name, source in changed.items():
            (copy / name).write_text(source, encoding="utf-8")
        code = pytest.main([*options, *(f"tests/{name}" for name in bug.tests)], [failure])
    finally:
        for name, source in before.items():
            (copy / name).write_text(source, encoding="utf-8")
    if code != (pytest.ExitCode.TESTS_FAILED if failure.name else pytest.ExitCode.OK):
        raise RuntimeError(f"pytest ended with {code!r} for the bug {bug.name!r} of {bug.of}")
    return failure.name


def _is_in(folder: Path, module: object) -> bool:
    return str(getattr(module, "__file__", None)).startswith(f"{folder}{os.sep}")


def show(title: str, columns: list[str], caught: dict[Bug, str | None]) -> None:
    """A table of bugs by what they are of, with the first test that notices each."""
    if not (names := dict.fromkeys(bug.name for bug in caught if bug.of in columns)):
        return
    tests = {(bug.name, bug.of): escape(test) if test else "[bold red]UNNOTICED" for bug, test in caught.items()}
    table = Table("bug", *columns, title=title)
    for name in names:
        table.add_row(name, *(tests.get((name, of), "-") for of in columns))
    Console(width=None if sys.stdout.isatty() else 60 + 90 * len(columns)).print(table)


def main(
    names: Annotated[
        str, typer.Option("--backends", help="The backends to plant bugs in, joined by commas.")
    ] = ",".join(dispatch.FRAMEWORKS),
    only: Annotated[str, typer.Option(help="Only bugs whose names match this regular expression.")] = "",
    check: Annotated[bool, typer.Option("--check", help="Only look whether each bug can be planted.")] = False,
) -> None:
    """Plant every bug in every backend, and those of mha itself; exit code 1 if one goes unnoticed."""
    chosen = names.split(",")
    planned = [*(bug for name in chosen for bug in bugs_of(name)), *package_bugs()]
    for bug in planned:  # each can be, and is Python: that is seen now, not in a minute
        for name, source in bug.planted(ROOT).items():
            ast.parse(source, f"{name}, {bug.name}")
    print(f"each of {len(planned)} bugs can be planted")
    planned = [bug for bug in planned if re.search(only, bug.name)]
    if check:
        return

    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # what is changed within a second would be taken for unchanged
    spawn = multiprocessing.get_context("spawn")
    lanes = {bug: bug.of if bug.of in chosen else "mha" for bug in planned}
    with tempfile.TemporaryDirectory() as folder:
        copies = {lane: Path(folder).resolve() / lane for lane in lanes.values()}
        for copy in copies.values():
            shutil.copytree(ROOT, copy, symlinks=True, ignore=LEFT_OUT)
        pools = {lane: concurrent.futures.ProcessPoolExecutor(1, spawn) for lane in copies}
        jobs = {pools[lane].submit(try_bug, bug, copies[lane]): bug for bug, lane in lanes.items()}
        done = concurrent.futures.as_completed(jobs)
        found = {jobs[job]: job.result() for job in track(done, "Planting", len(jobs), console=Console(stderr=True))}
        for pool in pools.values():
            pool.shutdown()

    caught = {bug: found[bug] for bug in planned}
    show("The first test that notices each bug", chosen, caught)
    for group in bugs.PACKAGE_GROUPS:
        show("The first test that notices each bug", [group], caught)
    unnoticed = [bug for bug, test in caught.items() if test is None]
    print(f"{len(caught) - len(unnoticed)} of {len(caught)} planted bugs noticed")
    raise typer.Exit(1 if unnoticed else 0)


if __name__ == "__main__":
    typer.run(main)
