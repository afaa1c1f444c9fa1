"""Measure the facts of one framework as a process: `python -m mha.learn.page.worker torch`.

It prints one line of JSON: versions, and the facts by name.
"""

import importlib
import json
import sys
import warnings
from typing import Any

from mha import parity
from mha.learn.page.measures import NAMES, NONE, Fact
from mha.parity.cases.run.processes import own_stdout
from mha.parity.cases.run.worker import versions


def measure(backend: Any) -> dict[str, Fact]:
    """Measure every fact of a framework; if one cannot be measured, the reason stands in its place."""
    measures = importlib.import_module(f"mha.learn.page.frameworks.{backend}")
    found: dict[str, Fact] = {}
    for name in NAMES:
        try:
            found[name] = getattr(measures, name, lambda: NONE)()
        except Exception as error:
            found[name] = [("failed", parity.one_line(error))]
    return found


def main(backend: Any) -> None:
    """Print versions and facts."""
    lines = own_stdout()
    warnings.simplefilter("ignore")
    print(json.dumps({"versions": versions(backend), "facts": measure(backend)}), file=lines, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
