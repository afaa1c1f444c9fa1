"""One measurement in a process of its own: `python -m mha.bench.worker times '{"backend": "torch", ...}'`.

Prints one JSON object, of which {"error": ...} says in one line what went wrong.
"""

import contextlib
import ctypes
import dataclasses
import functools
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
from mha import parity
from mha.bench import cases
from mha.bench.cases import Shape
from mha.bench.steps import REFERENCE, Implementation, Results, Step
from mha.names import BackendName

SAMPLE = 0.02  # seconds: shorter calls are repeated until a sample of them lasts as long
ROUNDS = 5  # at least, even if they take longer than they may
SIZE = 1024  # of the square matrices whose product tells the framework's rate
DIFFERENCE = 1e-4  # of the largest number: far more than float32 rounds here, far less than any other result


def implementations(backend: BackendName, kind: str) -> dict[str, Any]:
    """What there is to measure: for each shape by name, the "roles" of the implementations by name, ours first."""
    return {
        "roles": {
            shape.name: {name: one.role for name, one in _implementations(backend, shape, kind).items()}
            for shape in (cases.SHAPES | cases.SWEEP).values()
        }
    }


def times(backend: BackendName, shape: str, kind: str, names: list[str], seconds: float) -> dict[str, Any]:
    """Time implementations in turns, for so many seconds.

    Returns the matrix product's "rate" in GFLOP/s, the number of "rounds", and what `summary` makes of these.
    """
    known = _implementations(backend, cases.find(shape), kind)
    steps = {name: known[name].make() for name in names}
    check_agreement(steps)
    product = _module(backend).product(np.ones((SIZE, SIZE), "float32"))
    calls = {name: max(1, math.ceil(SAMPLE / min(_seconds(step) for _ in range(3)))) for name, step in steps.items()}
    products = [_seconds(product) for _ in range(5)]
    rounds: list[dict[str, float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < ROUNDS or time.perf_counter() < end:
        first = len(rounds) % len(names)  # each goes first in turn: what comes before may leave the caches cold
        rounds.append({name: _seconds(steps[name], calls[name]) for name in names[first:] + names[:first]})
    products += [_seconds(product) for _ in range(5)]
    return {"rate": 2 * SIZE**3 / min(products) / 1e9, "rounds": len(rounds)} | summary(rounds)


def summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """What the seconds of each implementation in each round come to.

    Returns for each name its median "milliseconds". For each name but the reference, beside the reference in the same
    round: the quartiles of the times by its times as "ratios", and the median of what they take more, in microseconds,
    as "overheads".
    """
    others = [name for name in rounds[0] if name != REFERENCE] if REFERENCE in rounds[0] else []
    ratios = {name: [one[name] / one[REFERENCE] for one in rounds] for name in others}
    return {
        "milliseconds": {name: 1e3 * statistics.median(one[name] for one in rounds) for name in rounds[0]},
        "ratios": {name: statistics.quantiles(found, method="inclusive") for name, found in ratios.items()},
        "overheads": {name: 1e6 * statistics.median(one[name] - one[REFERENCE] for one in rounds) for name in others},
    }


def memory(backend: BackendName, shape: str, kind: str, name: str) -> dict[str, Any]:
    """The memory that one call of an implementation takes at its peak, beside inputs and weights: "mebibytes"."""
    measured = cases.find(shape)
    # A small call of another layer, so that what loads or starts once is there before.
    _implementations(backend, dataclasses.replace(measured, B=2, T=8), kind)[name].make()()
    step = _implementations(backend, measured, kind)[name].make()
    gc.collect()
    before = _reset_peak()
    step()
    return {"mebibytes": max(0.0, _peak() - before) / 2**20}


def check_agreement(steps: dict[str, Step]) -> None:
    """Raise ValueError, naming it, if an implementation gives another output or gradient by the input than the first.

    What either of the two does not give is not compared.
    """
    (first, step), *others = steps.items()
    expected = _parts(step())
    for name, step in others:
        for part, found in _parts(step()).items():
            if part in expected:
                error, largest = parity.error(found, expected[part]), parity.largest(expected[part])
                if error > DIFFERENCE * largest:
                    raise ValueError(
                        f"{name} differs by {error:.1e} from {first} in {part}, whose largest number is {largest:.1e}"
                    )


def _parts(results: Results) -> dict[str, Any]:
    """The output and the gradient by the input, as far as they are given."""
    found = {} if results.output is None else {"the output": mha.to_numpy(results.output)}
    return found | ({"the gradient": sum(map(mha.to_numpy, results.by_input))} if results.by_input else {})


def _implementations(backend: BackendName, shape: Shape, kind: str) -> dict[str, Implementation]:
    made: dict[str, Implementation] = _module(backend).implementations(shape.layer(backend), shape, kind)
    for other, simpler in shape.simpler().items():
        make = functools.partial(_layer_alone, backend, simpler, kind)
        made[f"{REFERENCE}, {other}"] = Implementation("simpler layer", make)
    return made


def _layer_alone(backend: BackendName, shape: Shape, kind: str) -> Step:
    """A step of the layer for another shape; it gives nothing, since it computes something else."""
    step = _module(backend).implementations(shape.layer(backend), shape, kind)[REFERENCE].make()

    def alone() -> Results:
        step()
        return Results()

    return alone


def _module(backend: BackendName) -> Any:
    """The benchmarks of a backend."""
    return importlib.import_module(f"mha.backends.{backend}.bench")


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
    """Call the function that is named first with the arguments that follow as JSON, and print what it returns."""
    known: dict[str, Callable[..., dict[str, Any]]] = {one.__name__: one for one in (implementations, times, memory)}
    try:
        result = known[arguments[0]](**json.loads(arguments[1]))
    except Exception as error:
        result = {"error": parity.one_line(error)}
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
