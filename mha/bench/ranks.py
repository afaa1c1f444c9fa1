"""One rank of a layer that is split over devices: `python -m mha.bench.ranks '{"backend": "torch", ...}'`.

It prints lines of JSON: {"now": ...} as each part of the work begins, and in the end {"ways": ...}, or {"error": ...}
if that could not be measured.

`mha/bench/frameworks/ranks/<framework>.py` knows how its framework splits a layer:
    Group(rank, count, meet, limit) -> this process as one of several; meet: a file where ranks find one another
    together(value) -> the values of all ranks that are processes, in their order; all call it
    ways(shape, kind) -> by name, a function that makes the `Way`, or raises UnavailableError; UNSPLIT comes first
"""

import gc
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from mha import parity
from mha.bench import cases, peak
from mha.bench.steps import UNSPLIT, Results, UnavailableError, Way
from mha.bench.worker import ROUNDS, SAMPLE, check_agreement
from mha.core.options.names import BackendName
from mha.parity.cases.run.processes import own_stdout

Found = dict[str, dict[str, Any]]


def measure(
    backend: BackendName,
    kind: str,
    shape: str,
    seconds: float,
    memory: bool,
    ranks: dict[str, Any],
    say: Callable[[str], None] = lambda now: None,
) -> Found:
    """Measure all ways to split a layer, and the layer itself, which all ranks call together.

    Args:
        seconds: the time for all ways, in turns.
        memory: whether it is measured.
        ranks: the arguments of `Group`.
        say: a function that is called with a text for each part of the work.

    Returns:
        For each way by name its `summary`, and its "mebibytes" and their "share" of the unsplit layer's; or its
        "problem", with "failed", whether it should have been measured.
    """
    group = importlib.import_module(f"mha.bench.frameworks.ranks.{backend}").Group(**ranks)
    ways, found = _check_ways(group, group.ways(cases.find(shape), kind), say)
    if UNSPLIT not in ways:
        return found
    say("times")
    found |= summary(_rounds(group, ways, seconds))
    if memory:
        peak.return_at_once()
        for name, way in ways.items():
            say(f"memory of {name}")
            found[name]["mebibytes"] = _bytes(group, way) / 2**20
        whole = found[UNSPLIT]["mebibytes"]
        for name in ways:
            found[name]["share"] = found[name]["mebibytes"] / whole if whole else None
    return found


def summary(rounds: list[dict[str, tuple[float, list[float]]]]) -> Found:
    """Summarise the seconds of each way in each round, and the processor's seconds of each rank.

    Returns for each way the median "milliseconds" and the number of "rounds"; as "processor", the median of the
    processor's time of all ranks divided by that of the unsplit layer in the same round; and as "busiest", the median
    of the largest such time of a rank divided by the mean, None if the way is of one process.
    """
    found = {}
    for name in rounds[0]:
        ratios = [sum(one[name][1]) / sum(one[UNSPLIT][1]) for one in rounds]
        uneven = [max(one[name][1]) / statistics.mean(one[name][1]) for one in rounds]
        found[name] = {
            "milliseconds": 1e3 * statistics.median(one[name][0] for one in rounds),
            "rounds": len(rounds),
            "processor": statistics.median(ratios),
            "busiest": statistics.median(uneven) if len(rounds[0][name][1]) > 1 else None,
        }
    return found


def _check_ways(
    group: Any, makers: dict[str, Callable[[], Way]], say: Callable[[str], None]
) -> tuple[dict[str, Way], Found]:
    """The ways that give the same numbers as the unsplit layer, and the problems of the others."""
    ways: dict[str, Way] = {}
    found: Found = {}
    expected = Results()
    for name, make in makers.items():
        say(f"check of {name}")
        pair, found[name] = _alike(group, _call_once, make)
        if pair:  # here as on all other ranks, which now make the whole results together
            way, here = pair
            results, found[name] = _alike(group, _check_results, name, way, here, expected)
            if results:
                ways[name] = way
                expected = results if name == UNSPLIT else expected
    return ways, found


def _alike(group: Any, run: Callable, *arguments: Any) -> tuple[Any, dict[str, Any]]:
    """Call a function on this rank; return its result and {}, or None and the problem if it raises on any rank.

    "failed" beside the "problem" says whether the way should have been measured.
    """
    result, problem, failed = None, "", False
    try:
        result = run(*arguments)
    except UnavailableError as error:
        problem = str(error)
    except Exception as error:
        problem, failed = parity.one_line(error), True
    said = [one for one in group.together((problem, failed)) if one[0]]
    if said:
        return None, {"problem": said[0][0], "failed": any(failed for _, failed in said)}
    return result, {}


def _call_once(make: Callable[[], Way]) -> tuple[Way, Results | None]:
    """Make a way and call it once; return it with the results on this rank."""
    way = make()
    return way, way.step() if way.step else None


def _check_results(name: str, way: Way, here: Results | None, expected: Results) -> Results:
    """The results of the whole layer by a way; raises ValueError if they are not the expected ones."""
    results = way.whole(here)
    check_agreement([(UNSPLIT, expected), (name, results)])
    return results


def _rounds(group: Any, ways: dict[str, Way], seconds: float) -> list[dict[str, tuple[float, list[float]]]]:
    """Call the ways in turns for some seconds; return, for each, the seconds of a call and of each rank's processor."""
    calls = {name: _calls(group, way) for name, way in ways.items()}
    names = list(ways)
    rounds: list[dict[str, tuple[float, list[float]]]] = []
    end = time.perf_counter() + seconds
    # The first rank decides for all.
    while len(rounds) < ROUNDS or group.together(time.perf_counter() < end)[0]:
        first = len(rounds) % len(names)  # each goes first in turn, since the caches depend on what ran before
        rounds.append({name: _turn(group, ways[name], calls[name]) for name in names[first:] + names[:first]})
    return rounds


def _calls(group: Any, way: Way) -> int:
    """The number of calls of a way that take as long as a sample, the same on all ranks."""
    fastest, _ = _turn(group, way, 1)
    if fastest < SAMPLE:  # where the first one tells little
        fastest = min(_turn(group, way, 1)[0] for _ in range(3))
    return max(1, math.ceil(SAMPLE / fastest))


def _turn(group: Any, way: Way, calls: int) -> tuple[float, list[float]]:
    """Call a way on all ranks; return the seconds of a call, and the processor's seconds of each rank in it."""
    group.together(None)  # all begin at once, and who takes no part waits without work
    start, used, here = time.perf_counter(), time.process_time(), None
    if way.step:
        for _ in range(calls):
            way.step()
        here = start, time.perf_counter(), time.process_time() - used
    there = [one for one in group.together(here) if one]
    begins, ends, spent = zip(*there, strict=True)  # of one clock, which is that of the machine
    return (max(ends) - min(begins)) / calls, [one / calls for one in spent]


def _bytes(group: Any, way: Way) -> int:
    """The peak memory of a call on the rank where it is the largest, beyond what was there before."""
    if way.bytes is not None:
        return way.bytes
    group.together(None)
    here = 0
    if way.step:
        gc.collect()
        before = peak.reset_peak()
        way.step()
        here = max(0, peak.peak() - before)
    return max(group.together(here))


def main(arguments: str) -> None:
    """Measure with the arguments of `measure` in JSON, and print what it says and returns."""
    lines = own_stdout()

    def say(**known: Any) -> None:
        print(json.dumps(known), file=lines, flush=True)

    try:
        say(ways=measure(**json.loads(arguments), say=lambda now: say(now=now)))
    except Exception as error:
        say(error=parity.one_line(error))


if __name__ == "__main__":
    main(sys.argv[1])
