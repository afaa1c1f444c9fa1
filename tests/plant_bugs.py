"""Plant deliberate bugs and see the tests fail: `python tests/plant_bugs.py --backends torch,jax`.

A bug is a function that takes the place of a right one (`bugs_by_seam.py`), or a pattern of text with its replacement
(the other `bugs_of_*.py`). Each is planted in a copy of the checkout, where its tests run; a bug that no
test notices is an error. So is one that finds no place: all are looked for first, with `--check` no more than that.
"""

import ast
import concurrent.futures
import dataclasses
import importlib
import importlib.util
import multiprocessing
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import bugs_by_seam
import bugs_of_audits
import bugs_of_backends
import bugs_of_book
import bugs_of_devices
import bugs_of_grading
import bugs_of_mha
import bugs_of_models
import bugs_of_options
import bugs_of_parity
import bugs_of_records
import bugs_of_reports
import bugs_of_showing
import bugs_of_taps
import bugs_of_writing
import pytest
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table
from trials import ROOT, copied, tried

from mha import dispatch

SHARED = ("mha/call", "mha/engine")  # by all engines
OF_MHA = (
    bugs_of_mha.GROUPS
    | bugs_of_audits.GROUPS
    | bugs_of_book.GROUPS
    | bugs_of_grading.GROUPS
    | bugs_of_models.GROUPS
    | bugs_of_parity.GROUPS
    | bugs_of_records.GROUPS
    | bugs_of_reports.GROUPS
    | bugs_of_devices.GROUPS
    | bugs_of_showing.GROUPS
    | bugs_of_taps.GROUPS
    | bugs_of_writing.GROUPS
)


@dataclasses.dataclass(frozen=True)
class Bug:
    """One bug of one backend, or of mha itself.

    of: the backend, or the group of mha's bugs; rooms: the folders and files to search, from the root of the checkout,
    of "mha" the top alone; replacements: patterns and what takes their places; seam: the function to replace or "".
    """

    of: str
    name: str
    rooms: tuple[str, ...]
    replacements: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]
    seam: str = ""

    def planted(self, root: Path) -> dict[str, str]:
        """The source of each file in a checkout that the bug changes, with the bug in it."""
        paths = [path for room in self.rooms for path in files(root / room, nested=room != "mha")]
        sources = {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in paths}
        if self.seam:
            self._found(rf"\bdef {self.seam.rpartition('.')[2]}\(", sources)
            name = f"backends/{self.of}/__init__.py"
            line = f"\nimport bugs_by_seam\n\nbugs_by_seam.plant({self.of!r}, {self.name!r})\n"
            return {name: sources[name] + line}
        changed = {}
        for pattern, replacement in self.replacements:
            for name in self._found(pattern, sources):
                changed[name] = sources[name] = re.sub(pattern, replacement, sources[name])
        return changed

    def backend(self, changed: Iterable[str]) -> str:
        """The backend whose tests must notice the bug, by the files that it changes."""
        found = [name.split("/")[1] for name in changed if name.startswith("backends/")]
        found += ["torch"] * (self.of in (*bugs_of_audits.TORCH, *bugs_of_book.TORCH, *bugs_of_records.TORCH)) + [
            "mlx"
        ] * (self.of in bugs_of_taps.MLX)
        return (
            self.of if self.of in dispatch.FRAMEWORKS else [*found, bugs_of_writing.BACKENDS.get(self.of, "numpy")][0]
        )

    def _found(self, pattern: str, sources: dict[str, str]) -> list[str]:
        found = [name for name, source in sources.items() if re.search(pattern, source)]
        if not found:
            raise LookupError(f"the bug {self.name!r} finds no {pattern!r} in {' or '.join(self.rooms)}")
        return found


def files(folder: Path, nested: bool) -> list[Path]:
    """The sources in a folder, and in those in it; a file is its own."""
    if folder.is_file():
        return [folder]
    return sorted(path for path in folder.glob("**/*" if nested else "*") if path.suffix in (".py", ".js"))


def bugs_of(backend: str) -> list[Bug]:
    """The bugs of a backend; some are of other backends alone."""
    rooms, found = (f"backends/{backend}", *SHARED), []
    elsewhere = bugs_by_seam.ELSEWHERE.get(backend, ())
    for mistakes, tests in bugs_by_seam.GROUPS:
        seams = [(name, seam) for name, (seam, _) in mistakes.items() if name not in elsewhere]
        found += [Bug(backend, name, rooms, (), paths(tests), seam) for name, seam in seams]
    for tests, group in (bugs_of_backends.GROUPS | bugs_of_options.GROUPS | alone(backend)).values():
        for name, by_backend in group.items():
            own = [flat for names, flat in by_backend.items() if names == "all" or backend in names.split()]
            found += [Bug(backend, name, rooms, pairs(flat), paths(tests)) for flat in own]
    return found


def alone(backend: str) -> dict:
    """The groups of a file of bugs that a backend has alone, if there is one, as those of all backends are."""
    if not importlib.util.find_spec(f"bugs_of_{backend}"):
        return {}
    groups = importlib.import_module(f"bugs_of_{backend}").GROUPS.items()
    return {key: (tests, {name: {backend: flat} for name, flat in bugs.items()}) for key, (tests, bugs) in groups}


def package_bugs() -> list[Bug]:
    """The bugs of mha itself, and those of what a backend knows of its framework's own layers and several devices."""
    found = []
    for group, (rooms, tests, listed) in OF_MHA.items():
        searched = tuple(room for one in rooms.split() for room in (one, *SHARED * (one == "mha")))
        found += [Bug(group, name, searched, pairs(flat), paths(tests)) for name, flat in listed.items()]
    return found


def pairs(flat: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Patterns and replacements, one after the other, in pairs."""
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def paths(names: str) -> tuple[str, ...]:
    """The files of tests of these names."""
    return tuple(re.sub(r"(\w+)$", r"test_\1.py", f"tests/{name}") for name in names.split())


def try_bug(bug: Bug, copy: Path) -> str | None:
    """Plant a bug in the copy of the checkout and run its tests; the first that fails, or None if none does."""
    changed = bug.planted(copy)
    trial = tried(changed, copy, bug.backend(changed), ["--long", *bug.tests])
    if trial.code != (pytest.ExitCode.TESTS_FAILED if trial.failure else pytest.ExitCode.OK):
        raise RuntimeError(f"pytest ended with {trial.code!r} for the bug {bug.name!r} of {bug.of}")
    return trial.failure


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

    spawn = multiprocessing.get_context("spawn")
    lanes = {bug: bug.of if bug.of in chosen else "mha" for bug in planned}
    with tempfile.TemporaryDirectory() as folder:
        copies = {lane: copied(Path(folder) / lane) for lane in dict.fromkeys(lanes.values())}
        pools = {lane: concurrent.futures.ProcessPoolExecutor(1, spawn) for lane in copies}
        jobs = {pools[lane].submit(try_bug, bug, copies[lane]): bug for bug, lane in lanes.items()}
        done = concurrent.futures.as_completed(jobs)
        found = {jobs[job]: job.result() for job in track(done, "Planting", len(jobs), console=Console(stderr=True))}
        for pool in pools.values():
            pool.shutdown()

    caught = {bug: found[bug] for bug in planned}
    show("The first test that notices each bug", chosen, caught)
    for group in OF_MHA:
        show("The first test that notices each bug", [group], caught)
    unnoticed = [bug for bug, test in caught.items() if test is None]
    print(f"{len(caught) - len(unnoticed)} of {len(caught)} planted bugs noticed")
    raise typer.Exit(1 if unnoticed else 0)


if __name__ == "__main__":
    typer.run(main)
