"""What one framework makes different, measured in a process of its own: `python -m mha.page.worker torch`.

Prints one line of JSON: versions, and the facts by name.
"""

import importlib
import json
import sys
import warnings
from typing import Any

from mha import parity
from mha.page.measures import NAMES, Fact
from mha.parity.worker import versions
from mha.processes import own_stdout


def measure(backend: Any) -> dict[str, Fact]:
    """Every fact of a framework; one that cannot be measured says why, and the others go on."""
    facts = importlib.import_module(f"mha.backends.{backend}.facts")
    found: dict[str, Fact] = {}
    for name in NAMES:
        try:
            found[name] = getattr(facts, name)()
        except Exception as error:
            found[name] = [("failed", parity.one_line(error))]
    return found


def main(backend: Any) -> None:
    """Print what is found."""
    lines = own_stdout()
    warnings.simplefilter("ignore")
    print(json.dumps({"versions": versions(backend), "facts": measure(backend)}), file=lines, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
