"""Change files of a copy of the checkout and run tests there: what planted bugs and mutants share."""

import collections
import dataclasses
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATHS = ".", "tests", "tests/helpers", "tests/programs"  # from which modules are imported
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
OURS = ("mha", "bugs_by_seam", "seams", "trials", "mutants", "mutations", "mutants_alike")


def copied(folder: Path) -> Path:
    """Copy the checkout into a folder, which is made."""
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # what is changed within a second would be taken for unchanged
    return Path(shutil.copytree(ROOT, folder.resolve(), symlinks=True, ignore=LEFT_OUT))


@dataclasses.dataclass(eq=False)  # pytest keeps plugins in sets
class Trial:
    """A pytest plugin, and what it saw: how pytest ended, the first test that failed, seconds by file of tests."""

    code: int = pytest.ExitCode.OK
    failure: str | None = None
    seconds: dict[str, float] = dataclasses.field(default_factory=lambda: collections.defaultdict(float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """See one step of a test."""
        self.seconds[report.location[0]] += report.duration
        if report.failed and self.failure is None:
            self.failure = report.nodeid.rpartition("/")[2]


def tried(changed: Mapping[str, str], copy: Path, backend: str, options: Sequence[str]) -> Trial:
    """Change files of the copy to these sources, run tests there up to the first that fails, and change them back.

    Of one process, which may try much and imports its framework but once: what is ours is imported anew. options: of
    pytest, with the files of tests.
    """
    before = {name: (copy / name).read_text(encoding="utf-8") for name in changed}
    ours = [name for name, module in sys.modules.items() if name.partition(".")[0] in OURS or _is_in(copy, module)]
    modules = {name: sys.modules.pop(name) for name in ours}
    paths = [str(copy / path) for path in PATHS]
    sys.path[:] = dict.fromkeys([*paths, *sys.path])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.chdir(copy)
    trial = Trial()
    always = ["-x", "-p", "no:cacheprovider", "-p", "no:terminal", "--backends", backend]
    try:
        for name, source in changed.items():
            (copy / name).write_text(source, encoding="utf-8")
        trial.code = pytest.main([*always, *options], [trial])
    finally:
        sys.modules.update(modules)  # that of `Trial`, as who unpickles it knows it
        for name, source in before.items():
            (copy / name).write_text(source, encoding="utf-8")
    return trial


def _is_in(folder: Path, module: object) -> bool:
    return str(getattr(module, "__file__", None)).startswith(f"{folder}{os.sep}")
