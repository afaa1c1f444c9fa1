"""Draw mutants of `mha` and see the tests fail: `python tests/programs/mutants.py mha/learn/heads`; `--since main`.

A mutant is one small change of the code (`mutations.py`). `coverage` runs the tests once and says which of them reach
which line. Each mutant is made in a copy of the checkout, where those tests run, up to the first that fails: with one
backend, then with the next. What no test reaches is reported, not changed; what no test notices is shown, with its
room; if that is more than one of twenty, it is an error. `mutants_alike.py` lists what changes nothing a user can see.

Tried on mha/core/engine, where this takes about 4 s a mutant: cosmic-ray 8.7 takes 15 s, and one that was killed left
its mutant in the code. mutmut 3.8 takes 1 s, but leaves out what is behind the link mha/backends, and what is outside
of functions or in decorated ones, 1 of 7 mutants here; it draws no sample. Both would run under a script of ours.
"""

import ast
import hashlib
import multiprocessing
import os
import queue
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import coverage
import pytest
import typer
from mutants_alike import ALIKE
from mutations import Mutant, mutants
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table
from trials import PATHS, ROOT, Trial, copied, tried

SHARE = 1 / 20  # of the mutants that may go unnoticed
WORKERS = 2  # each with a copy of the checkout
HANGS = 60  # seconds in which a single test has to end
OTHERS = ("numpy", "pytest", "safetensors", "rich", "typer")  # imported once, not by every trial


def chosen(paths: Sequence[str], since: str) -> list[str]:
    """The files of mha and its backends to change: those named, and those in the folders named.

    since: a commit; of those, the files that changed since.
    """
    rooms = [ROOT / path for path in paths]
    found = {path for room in rooms for path in ([room] if room.is_file() else room.rglob("*.py"))}
    files = {str(path.relative_to(ROOT)) for path in found}
    if since:
        command = ["git", "diff", "--name-only", since]
        files &= {*subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()}
    return sorted(file for file in files if file.startswith(("mha/", "backends/")))


APART = ("real", "mlx", "browser", "distributed")  # of other environments


class Reach:
    """Which lines the tests reach, and which tests reach each of them; by `coverage` of branches.

    copy: a checkout where the tests run; pattern: of the names of their files. Raises typer.BadParameter if none
    matches, or one fails.
    """

    def __init__(self, copy: Path, backends: Sequence[str], pattern: str) -> None:
        self.copy = copy
        files = [path for path in sorted((copy / "tests").rglob("test_*.py")) if re.search(pattern, path.stem)]
        files = [path for path in files if path.parent.name not in APART]
        self.paths = {path.stem: str(path.relative_to(copy)) for path in files}
        if not files:
            raise typer.BadParameter(f"--tests is {pattern!r}, which no file of tests matches; try compare")
        settings = copy / ".coveragerc"
        settings.write_text("[run]\nbranch = true\nsource = mha, backends\ndynamic_context = test_function\n")
        paths = os.pathsep.join(str(copy / path) for path in PATHS)
        for backend in backends:
            run = ["coverage", "run", "--append", "--context", backend, "-m", "pytest", "-q", "-x", "--no-header"]
            command = [sys.executable, "-m", *run, "-p", "no:cacheprovider", "--backends", backend, *map(str, files)]
            ended = subprocess.run(
                command,
                cwd=copy,
                env=os.environ | {"PYTHONPATH": paths},
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            if ended.returncode:
                raise typer.BadParameter(f"without a mutant, the tests fail, with {backend}:\n{ended.stdout[-2000:]}")
        self.coverage = coverage.Coverage(data_file=str(copy / ".coverage"), config_file=str(settings))
        self.coverage.load()
        data = self.coverage.get_data()
        self.contexts = {name: data.contexts_by_lineno(name) for name in data.measured_files()}
        self.lines = Counter(one for lines in self.contexts.values() for found in lines.values() for one in found)

    def tests(self, mutant: Mutant, backend: str) -> list[str]:
        """The tests that reach a mutant with a backend: first those that reach little else.

        What runs as a file is imported, or in a process of its own, has the tests of the file.
        """
        lines = self.contexts.get(str(self.copy / mutant.file), {})
        _, statements, *_ = self.coverage.analysis2(str(self.copy / mutant.file))
        start = max((line for line in statements if line <= mutant.line), default=0)
        stop = min((line for line in statements if line > mutant.line), default=mutant.line + 1)
        found = {one for line in range(start, stop) for one in lines.get(line, ())}
        found = self._of(found, backend) or self._of({one for line in lines.values() for one in line}, backend)
        named = (one.split(".")[-2:] for one in found)
        # hypothesis has functions of its own that begin with "test"
        return [f"{self.paths[file]}::{function}" for file, function in named if file in self.paths]

    def _of(self, contexts: set[str], backend: str) -> list[str]:
        own = [one for one in contexts if one.startswith(f"{backend}|")]
        return [one.partition("|")[2] for one in sorted(own, key=lambda one: (self.lines[one], one))]

    def misses(self, mutant: Mutant) -> bool:
        """Whether no test reaches the statement of a mutant."""
        _, statements, _, missing, _ = self.coverage.analysis2(str(self.copy / mutant.file))
        return max((line for line in statements if line <= mutant.line), default=0) in missing

    def show(self, files: Sequence[str]) -> None:
        """Print, for each of these files, the lines and the sides of branches that no test reaches."""
        self.coverage.report([str(self.copy / file) for file in files], show_missing=True, skip_covered=True)


def drawn(files: Sequence[str], number: int, seed: int) -> list[Mutant]:
    """Draw mutants of these files: by their names, so that most stay the same when other code changes."""
    found = {}
    for file in files:
        source = (ROOT / file).read_text(encoding="utf-8")
        for mutant in mutants(file, source):
            if mutant.name not in ALIKE.get(file, {}):
                found[hashlib.sha256(f"{seed} {file} {mutant.name}".encode()).digest()] = mutant
    return [found[key] for key in sorted(found)[:number]]


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


def notices(changed: dict[str, str], copy: Path, backend: str, tests: Sequence[str]) -> bool:
    """Whether a test fails by a change, or none runs to its end, which without the change all do."""
    code = trial_of(changed, copy, backend, tests).code
    if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return code == pytest.ExitCode.TESTS_FAILED
    if (code := trial_of({}, copy, backend, tests).code) != pytest.ExitCode.OK:
        raise RuntimeError(f"without a mutant, pytest ended with {code!r} for {tests} with {backend}")
    return True


def survivors(planned: Sequence[Mutant], reach: Reach, copies: Sequence[Path], backends: Sequence[str]) -> list[Mutant]:
    """Try mutants in copies of the checkout, and return those that no test notices."""
    console = Console(stderr=True, soft_wrap=True)
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def goes_unnoticed(mutant: Mutant) -> bool:
        source = mutant.planted((ROOT / mutant.file).read_text(encoding="utf-8"))
        ast.parse(source, mutant.file)
        for backend in backends:
            if tests := reach.tests(mutant, backend):
                copy = free.get()
                try:
                    if notices({mutant.file: source}, copy, backend, tests):
                        return False
                finally:
                    free.put(copy)
        console.print(escape(f"unnoticed: {mutant.file}:{mutant.line} {mutant.name}"))
        return True

    with ThreadPoolExecutor(len(copies)) as pool:
        unnoticed = track(pool.map(goes_unnoticed, planned), "Trying", total=len(planned), console=console)
        return [mutant for mutant, it in zip(planned, unnoticed, strict=True) if it]


def main(
    paths: Annotated[
        list[str] | None, typer.Argument(help="Files and folders; mha and the backends without any.")
    ] = None,
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
    """Draw mutants and run the tests that reach them; exit code 1 if more than 1 of 20 goes unnoticed."""
    names = backends.split(",")
    rooms = paths or ["mha", *(f"backends/{name}" for name in names)]
    files = chosen(rooms, since)
    if not (planned := drawn(files, number, seed)):
        raise typer.BadParameter(
            f"no mutant in {' '.join(rooms)}; expected files of mha/ or backends/ with code in them"
        )
    with tempfile.TemporaryDirectory() as folder:
        copies = [copied(Path(folder) / str(worker)) for worker in range(WORKERS)]
        reach = Reach(copies[0], names, of_tests)
        reach.show(files)
        missed = [mutant for mutant in planned if reach.misses(mutant)]
        tried_out = [mutant for mutant in planned if mutant not in missed]
        unnoticed = survivors(tried_out, reach, copies, names)
    show(tried_out, missed, unnoticed)
    allowed = int(SHARE * len(tried_out))
    print(f"{len(tried_out) - len(unnoticed)} of {len(tried_out)} mutants noticed; {allowed} may go unnoticed")
    raise typer.Exit(1 if len(unnoticed) > allowed else 0)


def show(tried_out: Sequence[Mutant], missed: Sequence[Mutant], unnoticed: Sequence[Mutant]) -> None:
    """Print the numbers of each room, and what no test noticed."""
    console = Console(width=None if sys.stdout.isatty() else 200)
    lists = [Counter(str(Path(one.file).parent) for one in found) for found in (tried_out, unnoticed, missed)]
    table = Table("room", "mutants", "unnoticed", "not reached, not tried", title="Rooms")
    for room in sorted({room for found in lists for room in found}):
        table.add_row(room, *(str(found[room]) for found in lists))
    console.print(table)
    if unnoticed:
        table = Table("room", "file", "before", "after", title="Unnoticed")
        for mutant in sorted(unnoticed, key=lambda one: (one.file, one.start)):
            room, _, name = mutant.file.rpartition("/")
            table.add_row(room, f"{name}:{mutant.line}", escape(mutant.before), escape(mutant.after))
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
