"""Run one measurement as a process: `python -m mha.bench.worker times '{"backend": "torch", ...}'`.

It prints one JSON object; {"error": ...} says in one line what went wrong.
"""

import dataclasses
import functools
import gc
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mha import parity
from mha.arrays import to_numpy
from mha.bench import cases
from mha.bench.cases import Shape
from mha.bench.peak import peak, reset_peak
from mha.bench.steps import REFERENCE, Implementation, Results, Step
from mha.core.options.names import BackendName

SAMPLE = 0.02  # seconds: shorter calls are repeated until a sample takes this long
ROUNDS = 5  # the least number of rounds, even if they take longer than allowed
SIZE = 1024  # of the square matrices whose product gives the framework's rate
DIFFERENCE = 1e-4  # of the largest number: far more than rounding in float32, far less than a wrong result


def implementations(backend: BackendName, kind: str) -> dict[str, Any]:
    """List what there is to measure: for each shape by name, the "roles" of the implementations by name, ours first."""
    return {
        "roles": {
            shape.name: {name: one.role for name, one in _implementations(backend, shape, kind).items()}
            for shape in cases.of_kind(kind, (cases.SHAPES | cases.SWEEP).values())
        }
    }


def times(backend: BackendName, shape: str, kind: str, names: list[str], seconds: float) -> dict[str, Any]:
    """Time implementations in turns, for a number of seconds.

    Returns the matrix product's "rate" in GFLOP/s, the number of "rounds", and their `summary`.
    """
    known = _implementations(backend, cases.find(shape), kind)
    steps = {name: known[name].make() for name in names}
    check_agreement((name, step()) for name, step in steps.items())
    product = _module(backend).product(np.ones((SIZE, SIZE), "float32"))
    calls = {name: max(1, math.ceil(SAMPLE / min(_seconds(step) for _ in range(3)))) for name, step in steps.items()}
    products = [_seconds(product) for _ in range(5)]
    rounds: list[dict[str, float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < ROUNDS or time.perf_counter() < end:
        first = len(rounds) % len(names)  # each goes first in turn, since the caches depend on what ran before
        rounds.append({name: _seconds(steps[name], calls[name]) for name in names[first:] + names[:first]})
    products += [_seconds(product) for _ in range(5)]
    return {"rate": 2 * SIZE**3 / min(products) / 1e9, "rounds": len(rounds)} | summary(rounds)


def summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Summarise the seconds of each implementation in each round.

    Returns the median "milliseconds" of each name. For each name except the reference, it returns as "ratios" the
    quartiles of its time divided by the reference's in the same round, and as "overheads" the median of the
    difference of these two times, in microseconds.
    """
    others = [name for name in rounds[0] if name != REFERENCE] if REFERENCE in rounds[0] else []
    ratios = {name: [one[name] / one[REFERENCE] for one in rounds] for name in others}
    return {
        "milliseconds": {name: 1e3 * statistics.median(one[name] for one in rounds) for name in rounds[0]},
        "ratios": {name: statistics.quantiles(found, method="inclusive") for name, found in ratios.items()},
        "overheads": {name: 1e6 * statistics.median(one[name] - one[REFERENCE] for one in rounds) for name in others},
    }


def memory(backend: BackendName, shape: str, kind: str, name: str) -> dict[str, Any]:
    """Measure the peak memory of one call of an implementation, without inputs and weights: "mebibytes"."""
    measured = cases.find(shape)
    # A small call of another layer first, so that everything that is loaded or started once is there.
    _implementations(backend, dataclasses.replace(measured, B=2, T=8), kind)[name].make()()
    step = _implementations(backend, measured, kind)[name].make()
    gc.collect()
    before = reset_peak()
    step()
    return {"mebibytes": max(0.0, peak() - before) / 2**20}


def check_agreement(results: Iterable[tuple[str, Results]]) -> None:
    """Raise ValueError if an implementation's output or gradient by the input differs from the first one's.

    Arrays that one of the two does not have are not compared. Of results that are computed as they are asked for, no
    more than two are kept.
    """
    first, expected = "", dict[str, Any]()
    for name, one in results:
        arrays = _arrays_to_compare(one)
        first, expected = (first, expected) if first else (name, arrays)
        for result, found in arrays.items():
            if result in expected:
                error, largest = parity.error(found, expected[result]), parity.largest(expected[result])
                if error > DIFFERENCE * largest:
                    raise ValueError(
                        f"{name} differs by {error:.1e} from {first} in {result}, whose largest number is {largest:.1e}"
                    )


def _arrays_to_compare(results: Results) -> dict[str, Any]:
    """The arrays of results by name that implementations must agree on: the output and the gradient by the input."""
    found = {} if results.output is None else {"the output": to_numpy(results.output)}
    return found | ({"the gradient": sum(map(to_numpy, results.by_input))} if results.by_input else {})


def _implementations(backend: BackendName, shape: Shape, kind: str) -> dict[str, Implementation]:
    made: dict[str, Implementation] = _make_all(backend, shape, kind)
    for other, simpler in shape.simpler().items():
        make = functools.partial(_layer_alone, backend, simpler, kind)
        made[f"{REFERENCE}, {other}"] = Implementation("simpler layer", make)
    return made


def _layer_alone(backend: BackendName, shape: Shape, kind: str) -> Step:
    """A step of the layer for another shape; it returns no results, since they are different ones."""
    step = _make_all(backend, shape, kind)[REFERENCE].make()

    def alone() -> Results:
        step()
        return Results()

    return alone


def _make_all(backend: BackendName, shape: Shape, kind: str) -> Any:
    """The implementations of a backend for a shape."""
    attention, module = shape.layer(backend), _module(backend)
    return module.tokens(attention, shape) if kind == "decoding" else module.passes(attention, shape, kind)


def _module(backend: BackendName) -> Any:
    """The benchmarks of a backend."""
    return importlib.import_module(f"mha.bench.frameworks.{backend}")


def _seconds(step: Step, calls: int = 1) -> float:
    """The seconds of one call, the mean of several."""
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / calls


def main(arguments: list[str]) -> None:
    """Call the function of the first argument with the JSON of the second, and print its result."""
    known: dict[str, Callable[..., dict[str, Any]]] = {one.__name__: one for one in (implementations, times, memory)}
    try:
        result = known[arguments[0]](**json.loads(arguments[1]))
    except Exception as error:
        result = {"error": parity.one_line(error)}
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
