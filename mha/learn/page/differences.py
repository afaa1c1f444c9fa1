"""Measure the differences of the frameworks by running each in its own process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection
from typing import Any

from mha.core.options.names import BackendName
from mha.parity.cases.run.processes import why_it_ended

LIMIT = 300.0  # seconds that one framework may take


def measure(
    backends: Collection[BackendName], done: Callable[[BackendName], object] = lambda backend: None
) -> dict[BackendName, dict[str, Any]]:
    """Measure versions and facts of each backend, as its worker prints them; {"problem": why} if the worker fails.

    done: is called with each backend that is finished.
    """
    found = {}
    for backend in backends:
        found[backend] = _measure_one(backend)
        done(backend)
    return found


def _measure_one(backend: BackendName) -> dict[str, Any]:
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "mha.learn.page.worker", backend],
            capture_output=True, encoding="utf-8", errors="replace", timeout=LIMIT, check=False,
            env={"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"problem": f"gave nothing for {LIMIT:g} seconds"}
    if ended.returncode:
        return {"problem": why_it_ended(ended.returncode, ended.stderr)}
    return json.loads(ended.stdout)
