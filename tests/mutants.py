"""Draw mutants of `mha` and see the tests fail: `python tests/mutants.py mha/tables.py`, or `--since main`.

A mutant is one small change of the code (`mutations.py`). Each is made in a copy of the checkout, where the tests that
import the changed module run, the nearest first, up to the first that fails: with one backend, then with the next. What
no test notices is shown; if that is more than one of twenty, it is an error. Mutants that change nothing a user can see
are listed in `mutants_alike.py`.
"""

import ast
import collections
import hashlib
import multiprocessing
import queue
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import imported
import pytest
import typer
from mutants_alike import ALIKE
from mutations import Mutant, mutants
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table
from trials import ROOT, Trial, copied, tried

SHARE = 1 / 20  # of the mutants that may go unnoticed
WORKERS = 2  # each with a copy of the checkout
HANGS = 60  # seconds in which a single test has to end
# Which modules import others by names that are put together.
BY_NAME = {"mha.dispatch": "mha.backends.", "mha.weights.native": "mha.d2l."}
OTHERS = ("numpy", "pytest", "safetensors", "rich", "typer")  # imported once, not by every trial


def chosen(paths: Sequence[str], since: str) -> list[str]:
    """The files of mha to change: those named, and those in the folders named; with a commit, what changed since."""
    found = {str(path.relative_to(ROOT)) for path in imported.sources().values()}
    if since:
        command = ["git", "diff", "--name-only", since]
        found &= {*subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()}
    return sorted(file for file in found if file.startswith("mha/") and any(map(Path(file).is_relative_to, paths)))


def drawn(files: Sequence[str], number: int, seed: int) -> list[Mutant]:
    """Draw mutants of these files: by their names, so that most stay the same when other code changes."""
    found = {}
    for file in files:
        source = (ROOT / file).read_text(encoding="utf-8")
        for mutant in mutants(file, source):
            if mutant.name not in ALIKE.get(file, {}):
                found[hashlib.sha256(f"{seed} {file} {mutant.name}".encode()).digest()] = mutant
    return [found[key] for key in sorted(found)[:number]]


def importers(files: Sequence[str], pattern: str) -> dict[str, dict[str, int]]:
    """The files of tests that match a pattern and reach each of these files, by the number of imports between.

    If none reaches a file, such as what only a command starts, all of them count.
    """
    named = imported.sources()
    graph = imported.modules(named, typed=False)
    for name in graph.keys() & BY_NAME:
        graph[name] |= {one for one in graph if one.startswith(BY_NAME[name])}
    names = {str(path.relative_to(ROOT)): name for name, path in named.items()}
    every = {path: name for path, name in names.items() if Path(path).match("tests/test_*.py")}
    tests = {path: name for path, name in every.items() if re.search(pattern, Path(path).stem)}
    if not tests:
        raise typer.BadParameter(f"--tests is {pattern!r}, which no name of {len(every)} files matches; try compare")
    reached = {path: imported.distances(name, graph) for path, name in tests.items()}
    found = {file: {path: to[names[file]] for path, to in reached.items() if names[file] in to} for file in files}
    return {file: near or dict.fromkeys(tests, 0) for file, near in found.items()}


def try_in_process(sender, changed: dict[str, str], copy: Path, backend: str, tests: Sequence[str]) -> None:
    """Try a change in this process, and send the `Trial`; none comes if the change ends the process."""
    options = ["--timeout", str(HANGS), "--timeout-method", "thread", *tests]
    sender.send(tried(changed, copy, backend, options))


def trial_of(changed: dict[str, str], copy: Path, backend: str, tests: Sequence[str]) -> Trial:
    """Try a change in a process of its own, which may hang or end."""
    before = {name: (copy / name).read_text(encoding="utf-8") for name in changed}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(OTHERS))
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=try_in_process, args=(sender, changed, copy, backend, tests))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return Trial(pytest.ExitCode.INTERNAL_ERROR)
    finally:
        process.join()
        for name, source in before.items():
            (copy / name).write_text(source, encoding="utf-8")


def survivors(planned: Sequence[Mutant], copies: Sequence[Path], backends: Sequence[str], pattern: str) -> list[Mutant]:
    """Try mutants in copies of the checkout, and return those that no test notices; pattern: of files of tests."""
    console = Console(stderr=True, soft_wrap=True)
    reached = importers([*dict.fromkeys(mutant.file for mutant in planned)], pattern)
    tests = sorted({test for near in reached.values() for test in near})
    noticed: collections.Counter[tuple[str, str]] = collections.Counter()  # mutants of a file by a file of tests
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def trial(changed: dict[str, str], backend: str, order: Sequence[str]) -> Trial:
        copy = free.get()
        try:
            return trial_of(changed, copy, backend, order)
        finally:
            free.put(copy)

    def goes_unnoticed(mutant: Mutant) -> bool:
        file, near = mutant.file, reached[mutant.file]
        source = mutant.planted((ROOT / mutant.file).read_text(encoding="utf-8"))
        ast.parse(source, file)
        for backend, right in zip(backends, rights, strict=True):
            order = {test: (-noticed[file, test], away, right.seconds[test]) for test, away in near.items()}
            seen = trial({file: source}, backend, sorted(order, key=order.__getitem__))
            if seen.failure:
                noticed[file, f"tests/{seen.failure.partition('::')[0]}"] += 1
            if seen.code != pytest.ExitCode.OK:
                return False
        console.print(escape(f"unnoticed by {len(near)} files of tests: {file}:{mutant.line} {mutant.name}"))
        return True

    with ThreadPoolExecutor(len(copies)) as pool:
        console.print(f"{len(planned)} mutants of {len(reached)} files; first, {len(tests)} files of tests without any")
        rights = [*pool.map(lambda backend: trial({}, backend, tests), backends)]
        for backend, right in zip(backends, rights, strict=True):
            if right.code != pytest.ExitCode.OK:
                why = f"{right.failure or right.code}, with {backend}"
                raise typer.BadParameter(f"without a mutant, the tests fail: {why}")
        unnoticed = track(pool.map(goes_unnoticed, planned), "Trying", total=len(planned), console=console)
        return [mutant for mutant, it in zip(planned, unnoticed, strict=True) if it]


def main(
    paths: Annotated[list[str] | None, typer.Argument(help="Files and folders of mha; all of it without any.")] = None,
    since: Annotated[str, typer.Option(help="Of those, the files that changed since this commit.")] = "",
    number: Annotated[int, typer.Option(help="How many mutants to draw.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Which ones.")] = 0,
    backends: Annotated[
        str, typer.Option(help="Those to run the tests with: all mutants with the first, what is left with the next.")
    ] = "numpy,torch",
    of_tests: Annotated[
        str, typer.Option("--tests", help="Run only files of tests whose names match this regular expression.")
    ] = "",
) -> None:
    """Draw mutants and run the tests that import what changes; exit code 1 if more than 1 of 20 goes unnoticed."""
    planned = drawn(chosen(paths or ["mha"], since), number, seed)
    if not planned:
        raise typer.BadParameter(f"no mutant in {' '.join(paths or ['mha'])}; expected files of mha/ with code in them")
    with tempfile.TemporaryDirectory() as folder:
        copies = [copied(Path(folder) / str(worker)) for worker in range(WORKERS)]
        unnoticed = survivors(planned, copies, backends.split(","), of_tests)
    if unnoticed:
        table = Table("file", "before", "after", title="Unnoticed")
        for mutant in sorted(unnoticed, key=lambda one: (one.file, one.start)):
            table.add_row(f"{mutant.file}:{mutant.line}", escape(mutant.before), escape(mutant.after))
        Console(width=None if sys.stdout.isatty() else 200).print(table)
    allowed = int(SHARE * len(planned))
    print(f"{len(planned) - len(unnoticed)} of {len(planned)} mutants noticed; {allowed} may go unnoticed")
    raise typer.Exit(1 if len(unnoticed) > allowed else 0)


if __name__ == "__main__":
    typer.run(main)
