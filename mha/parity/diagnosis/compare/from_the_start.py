"""The diagnosis of a decoder with a mistake in every call, so that each leaves wrong keys or values in its cache."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mha.core.cache import Cache
from mha.parity.diagnosis.mistakes.bench import Bench
from mha.parity.diagnosis.mistakes.mistake import State, forms_of
from mha.parity.diagnosis.mistakes.of_decoding import OF_DECODING
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.search.explanations import Diagnosis, explain, merge_alike
from mha.parity.diagnosis.search.verdicts import LEFT, SURE, apart
from mha.parity.rule.layouts import CACHED
from mha.parity.rule.problem import Expected

# A call of a decoder: from the cache before it to its problem, a `Decoding`.
DecodeCall = Callable[[Cache], Any]


@np.errstate(all="ignore")
def from_the_start(steps: Sequence[DecodeCall], cache: Cache, theirs: Array) -> Diagnosis:
    """Find the mistakes that give the output of the last call, (B, Q, D), if they are made in each of these calls.

    cache: an empty one of NumPy, before the first call.
    """
    right = last_problem(steps, cache, ())
    expected, counts = right.expected("output"), right.matters("output")
    there, forms = np.where(counts, theirs.astype(np.float64), 0), forms_of(OF_DECODING)
    far, found = expected.ratio(there), []
    for form in forms:
        try:
            asked = last_problem(steps, cache, (form,))
        except ValueError:  # no call takes the cache that the mistake leaves
            continue
        dtype = asked.config.dtype
        benches = [Bench(asked, kind) for kind in ("float64", dtype)]
        outputs: Any = (bench.steps(possible_mistakes(bench, (form,)), "output") for bench in benches)
        wide, narrow = (np.where(counts, X, X.dtype.type(0)) for X in outputs)
        ratio, left = Expected.of(dtype, wide, narrow).ratio(there), apart(there, wide) / apart(there, expected.X)
        if ratio <= 1 and left <= LEFT:
            found.append(explain((form,), ratio, left, far >= SURE))
    return Diagnosis(tuple(merge_alike(found)), "made in every call, from the prompt on" * bool(found), len(forms))


def last_problem(steps: Sequence[DecodeCall], cache: Cache, state: State) -> Any:
    """Return the problem of the last call, with the cache that these mistakes leave in the calls before it."""
    for step, _ in itertools.pairwise(steps):
        asked = step(cache)
        bench = Bench(asked, asked.config.dtype)
        slots: Any = (bench.steps(possible_mistakes(bench, state), name) for name in CACHED)
        keys, values, positions = slots
        real = (asked.call.positions >= 0).sum(1)  # (B,)
        lengths, lost = cache.lengths + real.astype(np.int32), cache.lost
        cache = Cache(cache.config, (keys, values, positions.astype(np.int32), lengths, lost))
    return steps[-1](cache)


def possible_mistakes(bench: Bench, state: State) -> State:
    """Return these mistakes, or none if they are impossible in a call."""
    return () if bench.plan_with(state) is None else state
