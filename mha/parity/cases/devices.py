"""The suite on several devices: its cases, and the checks in which each rank compares its part with the whole of NumPy.

`mha/parallel/<framework>/proof.py` knows how its framework spreads a call:
    Ranks(rank, count, meet, limit) -> this process as one of several; meet: a file where ranks find one another
    ways -> the names of the ways to spread a call, each with the number of parts of the batch
    alone -> those of the ways in which parts of the heads are layers themselves, and take no norm over all heads
    compute(way, case, dtype, inputs, call) -> by name "output" and "gradient.queries" and so on, a NumPy array and the
        place of this rank's part in the whole
"""

import dataclasses
import importlib
import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.call import ROWS, axes_of
from mha.core.options.config import DTYPES
from mha.core.options.names import BackendName, FloatName, SuiteName
from mha.core.options.norms import Norm
from mha.core.options.positions import Rotary
from mha.parity.cases.suite import Check, Result, chosen_cases, worst_of_each
from mha.parity.cases.usual import WIDTHS, Case, full
from mha.parity.diagnosis.pipeline.chance import with_rounding
from mha.parity.rule.problem import problem
from mha.parity.rule.rules import error

ALL = slice(None)
BACKENDS = dispatch.backends_with("parallel/*/proof.py")


@dataclasses.dataclass(frozen=True)
class Group:
    """A backend on several devices, written torch:2."""

    backend: BackendName
    count: int

    @property
    def name(self) -> str:
        """Return the text for it: torch:2."""
        return f"{self.backend}:{self.count}"

    @property
    def cases(self) -> tuple[str, ...]:
        """Return the names of its cases."""
        return tuple(case.name for case in cases_of(self.count))


def cases_of(count: int) -> tuple[Case, ...]:
    """Make the cases for so many devices: heads and samples divide by their number; rows and few heads of keys do not.

    Some part of the sequence may have no rows, others only padding.
    """
    H, G = (math.ceil(least / count) * count for least in (7, 4))
    B, Q, K = count, 13, 17
    plain = WIDTHS | {"num_heads": H}
    grouped = WIDTHS | {"num_heads": 2 * G, "num_key_value_heads": G}
    few = WIDTHS | {"num_heads": 2 * count, "num_key_value_heads": 1 if count % 2 else count // 2}
    torn = next(n for n in (2, 3, 5, 7) if count % n)  # heads of keys, of which some are on two devices
    torn_heads = WIDTHS | {"num_heads": torn * count, "num_key_value_heads": torn}
    rest = {"softcap": 1.5, "window": (9, 3)}
    turned = {"scale": 0.7, "rotary": Rotary(10), "qk_norm": Norm("layer", 0.01)}
    of_all = {"qk_norm": Norm("layer", 0.01, "all"), "value_norm": Norm("rms", 0.01, "all"), "rotary": Rotary(10)}
    after = {"qk_norm": Norm("rms", 0.01, "all", after=True), "value_norm": Norm("layer", 0.01, "all")}
    lengths = [13 * b % (K + 3) for b in range(B)]  # 0 is one of them, and some are above K
    of_queries = [[(3 * b + 5 * i) % (K + 1) for i in range(Q)] for b in range(B)]
    offsets = [b % 7 - 2 for b in range(B)]
    sizes: dict[str, Any] = {"batch": B, "num_queries": Q, "num_keys": K}
    pairs: dict[str, Any] = {"score_bias": (B, 1, Q, K), "offset": offsets, "head_gates": (B, 2 * G)}
    return (
        Case("lengths per sample", plain, lengths, **sizes, dtypes=DTYPES, quick=("float64", "float32")),
        Case("lengths per query, mask", plain, of_queries, mask=(B, H, Q, K), **sizes),
        Case("causal, offset, one sample", plain, causal=True, offset=4, batch=1, num_queries=Q, num_keys=K),
        Case("grouped heads", grouped, lengths, **sizes, dtypes=DTYPES),
        Case("all options", grouped | rest | turned, lengths, mask=(B, Q, K), **pairs, **sizes, dtypes=DTYPES),
        Case("additive, all options", grouped | rest | {"pooling": "additive"}, lengths, **pairs, **sizes),
        Case("fewer rows than devices", plain, [2], batch=1, num_queries=count - 1, num_keys=max(2, count - 1)),
        full("no lengths", plain, **sizes),
        full("mask and bias of one row", plain, mask=(1, K), score_bias=(1, H, 1, K), **sizes),
        full("mask and bias of one column", plain, mask=(Q, 1), score_bias=(1, H, Q, 1), **sizes),
        full("window, offsets", plain | {"window": (2, 1)}, causal=True, offset=offsets, **sizes),
        Case("chunks, offsets", grouped | {"chunk": 5}, lengths, offset=offsets, **sizes),
        Case(
            "positions", grouped | rest | turned, lengths, causal=True, **sizes,
            positions=[[(5 * b + 3 * i) % 19 - 1 for i in range(Q)] for b in range(B)],
            key_positions=[(7 * j) % 23 - 1 for j in range(K)],
        ),
        Case(
            "segments", grouped, lengths, causal=True, offset=2, **sizes,
            segments=[[(b + i) // 5 - 1 for i in range(Q)] for b in range(B)],
            key_segments=[j // 5 for j in range(K)],
        ),
        full(
            "segments, positions", plain | turned, **sizes, causal=True, segments=[i % 3 - 1 for i in range(Q)],
            positions=[i // 3 for i in range(Q)], key_segments=[j % 3 - 1 for j in range(K)],
            key_positions=[j // 3 for j in range(K)],
        ),
        full("scale 30, lengths", plain, lengths, scale=30.0, **sizes),
        Case("sinks, lengths", grouped | {"sinks": True}, lengths, **sizes, dtypes=DTYPES),
        full("additive, sinks, causal", plain | {"pooling": "additive", "sinks": True}, causal=True, **sizes),
        Case("output gate, lengths", grouped | {"output_gate": "element"}, lengths, **sizes, dtypes=DTYPES),
        full("output gate of heads, causal", plain | {"output_gate": "head"}, causal=True, **sizes),
        full(
            "rotary, interleaved, far", grouped | {"rotary": Rotary(6, interleaved=True)}, offset=131072,
            head_gates=(2 * G,), **sizes,
        ),
        Case("norms over all heads", grouped | of_all, lengths, **sizes, dtypes=DTYPES),
        full(
            "norms over all heads, after the rotation", plain | of_all | after, causal=True, mask=(B, H, Q, K),
            **sizes,
        ),
        Case(
            "few heads of keys", few | turned | {"value_norm": "rms", "sinks": True}, lengths, causal=True, **sizes,
            dtypes=DTYPES,
        ),
        Case(
            "heads of keys on two devices", torn_heads | rest, lengths, mask=(B, torn * count, Q, K), **sizes,
        ),
        Case(
            "heads of equal widths", grouped | {"value_dim": WIDTHS["key_dim"], "sinks": True}, lengths, causal=True,
            **sizes, dtypes=DTYPES,
        ),
        full("norms over all heads, few of keys", torn_heads | of_all, lengths, **sizes),
    )  # fmt: skip


def plan_rank(
    backend: BackendName,
    suite: SuiteName,
    cases: Collection[str] | None,
    dtypes: Collection[FloatName] | None,
    rank: int,
    count: int,
    meet: str,
    limit: float,
) -> list[Check]:
    """Plan the checks of one rank, as `suite.plan`; all ranks call them one after the other in the same order.

    rank, count: which rank of how many; meet: a file where ranks find one another; limit: the seconds that a rank waits
    for the others. A check raises the errors of its call.
    """
    group = Group(backend, count)
    ranks = importlib.import_module(f"mha.parallel.{backend}.proof").Ranks(rank, count, meet, limit)
    known = [one for one in dispatch.load(backend).DTYPES if dtypes is None or one in dtypes]
    checks = []
    for case, dtype in chosen_cases(cases_of(count), suite, cases, known):
        together = any(isinstance(X, Norm) and X.over == "all" for X in case.options.values())
        for way, parts in ranks.ways.items():
            if case.batch % parts == 0 and not (together and way in ranks.alone):
                run = partial(_check, group, ranks.compute, way, case, dtype)
                checks.append(Check(f"{dtype}, {case.name}, {way}", run))
    return checks


def part_of_call(
    call: dict[str, Any], samples: slice = ALL, queries: slice = ALL
) -> tuple[dict[str, Any], dict[str, tuple[slice, ...]]]:
    """Cut the arguments of a call, other than queries, keys and values, to some samples and queries, as NumPy arrays.

    Returns them, and for each of those with a gradient its place in the whole, a slice for each axis.
    """
    cuts, own, places = {"B": samples, "Q": queries}, dict(call), {}
    for name, given in call.items():
        if given is None or isinstance(given, (int, bool)):
            continue
        X, row = np.asarray(given), ROWS[name]
        sizes = zip(axes_of(name, X), X.shape, strict=True)
        place = tuple(ALL if n == 1 and row.broadcasts else cuts.get(letter, ALL) for letter, n in sizes)
        own[name] = X[place]
        if row.differentiable:
            places[name] = place
    return own, places


def _check(group: Group, compute: Callable[..., Any], way: str, case: Case, dtype: FloatName) -> list[Result]:
    """Compare output and gradients of a case, spread over devices in one way; all padding is NaN and infinity."""
    queries, keys, values, cotangent = inputs = case.inputs(dtype)
    call = case.call(dtype)
    whole = with_rounding(problem(case.layer("numpy", dtype), queries, keys, values, call, cotangent))
    sees, seen = whole.visible.any((1, 3)), whole.visible.any((1, 2))  # (B, Q), (B, K)
    queries[~sees], keys[~seen], values[~seen] = np.nan, np.nan, np.inf
    found = compute(way, case, dtype, inputs, call)
    if set(found) != (asked := {"output", *whole.gradients()}):
        raise ValueError(f"{way} gave {', '.join(sorted(found))}, expected {', '.join(sorted(asked))}")
    results = []
    for name, (array, place) in found.items():
        right, check = whole.expected(name), way if name == "output" else f"{way}, gradients"
        results.append(Result(group.name, check, case.name, dtype, name, error(array, right.X[place]), right.limit))
    return list(worst_of_each(results, lambda one: one.check).values())
