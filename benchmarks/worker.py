"""One measurement in a process of its own: `python -m mha.benchmarks.worker times '{"backend": "torch", ...}'`.

Prints one JSON object, of which {"error": ...} says in one line what went wrong.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mha
from mha import dispatch, parity
from mha.benchmarks import cases
from mha.benchmarks.cases import Shape, Step

SAMPLE = 0.02  # seconds: shorter calls are repeated until a sample of them lasts as long
ROUNDS = 5  # at least, even if they take longer than they may
SIZE = 1024  # of the square matrices whose product tells the framework's rate
DIFFERENCE = 1e-4  # of the largest number: far more than float32 rounds here, far less than any other result


def times(backend: str, shape: str, kind: str, names: list[str], seconds: float) -> dict[str, Any]:
    """Time implementations in turns, for so many seconds.

    Returns the matrix product's "rate" in GFLOP/s, the number of "rounds", for each name its median "milliseconds",
    and for each but `fast` the "ratios": quartiles of its time by that of `fast` in the same round.
    """
    tab: Any = dispatch.load(backend)
    makers = _makers(backend, cases.find(shape), kind)
    steps = {name: makers[name]() for name in names}
    check_agreement(steps, tab.to_numpy)
    product = importlib.import_module(f"mha.benchmarks.{backend}").product(np.ones((SIZE, SIZE), "float32"))
    calls = {name: max(1, math.ceil(SAMPLE / min(_seconds(step) for _ in range(3)))) for name, step in steps.items()}
    products = [_seconds(product) for _ in range(5)]
    rounds: list[dict[str, float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < ROUNDS or time.perf_counter() < end:
        first = len(rounds) % len(names)  # each goes first in turn: what comes before may leave the caches cold
        rounds.append({name: _seconds(steps[name], calls[name]) for name in names[first:] + names[:first]})
    products += [_seconds(product) for _ in range(5)]
    ratios = {
        name: statistics.quantiles([one[name] / one["fast"] for one in rounds], method="inclusive")
        for name in names
        if "fast" in names and name != "fast"
    }
    return {
        "rate": 2 * SIZE**3 / min(products) / 1e9,
        "rounds": len(rounds),
        "milliseconds": {name: 1e3 * statistics.median(one[name] for one in rounds) for name in names},
        "ratios": ratios,
    }


def memory(backend: str, shape: str, kind: str, name: str) -> dict[str, Any]:
    """The memory that one call of an implementation takes at its peak, beside inputs and weights: "mebibytes"."""
    # A call of another layer, so that what loads or starts once is there before.
    _makers(backend, cases.SHAPES["S"], kind)[name]()()
    step = _makers(backend, cases.find(shape), kind)[name]()
    gc.collect()
    before = _reset_peak()
    step()
    return {"mebibytes": max(0.0, _peak() - before) / 2**20}


def check_agreement(steps: dict[str, Step], to_numpy: Callable[[Any], np.ndarray]) -> None:
    """Raise ValueError, naming it, if an implementation gives another output or gradient by the input than the first.

    to_numpy makes a NumPy array of one of the framework's.
    """
    (first, step), *others = steps.items()
    expected = [to_numpy(X) for X in step()[:2]]
    for name, step in others:
        for found, array in zip(map(to_numpy, step()[:2]), expected, strict=True):
            error, largest = parity.error(found, array), parity.largest(array)
            if error > DIFFERENCE * largest:
                raise ValueError(f"{name} differs by {error:.1e} from {first}, whose largest number is {largest:.1e}")


def _makers(backend: str, shape: Shape, kind: str) -> dict[str, Callable[[], Step]]:
    attention = mha.MultiHeadAttention(shape.D, shape.H, backend=backend)
    return importlib.import_module(f"mha.benchmarks.{backend}").implementations(attention, shape, kind)


def _seconds(step: Step, calls: int = 1) -> float:
    """The seconds that a call takes, of so many."""
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / calls


# Bytes


def _reset_peak() -> int:
    """Forget what the process held at most, as far as the system can, and return what it holds, or held at most."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)  # what it keeps of freed memory would be taken again unseen
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except (OSError, IndexError):
        return _peak()


def _peak() -> int:
    """What the process held at most, in bytes."""
    try:
        return _status("VmHWM")
    except (OSError, IndexError):  # a system without /proc, or without that line in it
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def _status(field: str) -> int:
    return 1024 * int(re.findall(rf"{field}:\s*(\d+) kB", Path("/proc/self/status").read_text())[0])


def main(arguments: list[str]) -> None:
    """Measure what the arguments say, `times` or `memory` and their own arguments in JSON, and print the result."""
    known: dict[str, Callable[..., dict[str, Any]]] = {"times": times, "memory": memory}
    try:
        result = known[arguments[0]](**json.loads(arguments[1]))
    except Exception as error:
        result = {"error": parity.one_line(error)}
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
