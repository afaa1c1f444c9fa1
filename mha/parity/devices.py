"""The suite on several devices: its cases, and what each rank compares of its part with the whole of NumPy.

`backends/<framework>/parallel/proof.py` knows how its framework spreads a call:
    Ranks(rank, count, meet, limit) -> what this process is of a group; meet: a file where ranks find one another
    ways -> the names of the ways to spread a call, each with the number of parts of the batch
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

from mha import dispatch
from mha.config import DTYPES
from mha.names import BackendName, FloatName
from mha.parity.cases import WIDTHS, Case
from mha.parity.layouts import GRADIENT
from mha.parity.problem import problem
from mha.parity.rules import error, fraction
from mha.parity.suite import Check, Result, SuiteName
from mha.positions import Rotary

ALL = slice(None)
BACKENDS: tuple[BackendName, ...] = ("torch", "jax", "tensorflow")  # whose frameworks have an engine for it


@dataclasses.dataclass(frozen=True)
class Group:
    """A backend on so many devices, written torch:2."""

    backend: BackendName
    count: int

    @property
    def name(self) -> str:
        """As it is written."""
        return f"{self.backend}:{self.count}"


def cases_of(count: int) -> tuple[Case, ...]:
    """The cases for so many devices: heads and samples that divide, rows that do not.

    A part of the sequence may have no rows, and padding may fill others.
    """
    H, G = (math.ceil(least / count) * count for least in (7, 4))
    B, Q, K = count, 13, 17
    plain = WIDTHS | {"num_heads": H}
    grouped = WIDTHS | {"num_heads": 2 * G, "num_key_value_heads": G}
    rest = {"softcap": 1.5, "window": (9, 3)}
    turned = {"scale": 0.7, "rotary": Rotary(10), "qk_norm": "layer", "qk_norm_eps": 0.01}
    lengths = [7 * b % (K + 3) for b in range(B)]  # 0 is one of them, and some are above K
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
        Case("no lengths", plain, **sizes, quick=()),
        Case("mask and bias of one row", plain, mask=(1, K), score_bias=(1, H, 1, K), **sizes, quick=()),
        Case("mask and bias of one column", plain, mask=(Q, 1), score_bias=(1, H, Q, 1), **sizes, quick=()),
        Case("window, offsets", plain | {"window": (2, 1)}, causal=True, offset=offsets, **sizes, quick=()),
        Case("scale 30, lengths", plain, lengths, scale=30.0, **sizes, quick=()),
        Case(
            "rotary, interleaved, far", grouped | {"rotary": Rotary(6, interleaved=True)}, offset=131072,
            head_gates=(2 * G,), **sizes, quick=(),
        ),
    )  # fmt: skip


def plan(
    backend: BackendName,
    suite: SuiteName,
    cases: Collection[str] | None,
    dtypes: Collection[FloatName] | None,
    rank: int,
    count: int,
    meet: str,
    limit: float,
) -> list[Check]:
    """What one rank of a group compares: checks to be called one after the other, by all ranks alike.

    backend, suite, cases, dtypes: as `suite.plan` takes them, cases of those for so many devices; rank, count: which of
    how many; meet, limit: a file where ranks find one another, and seconds that one waits. A check raises what a call
    raises.
    """
    group = Group(backend, count)
    ranks = importlib.import_module(f"mha.backends.{backend}.parallel.proof").Ranks(rank, count, meet, limit)
    known = [one for one in dispatch.load(backend).DTYPES if dtypes is None or one in dtypes]
    checks = []
    for case in cases_of(count):
        if cases is not None and case.name not in cases:
            continue
        wanted = case.quick if suite == "quick" and cases is None else case.dtypes
        for dtype in (one for one in wanted if one in known):
            for way, parts in ranks.ways.items():
                if case.batch % parts == 0:
                    run = partial(_check, group, ranks.compute, way, case, dtype)
                    checks.append(Check(f"{dtype}, {case.name}, {way}", run))
    return checks


def part_of_call(
    call: dict[str, Any], samples: slice = ALL, queries: slice = ALL
) -> tuple[dict[str, Any], dict[str, tuple[slice, ...]]]:
    """Of a call's arguments beside queries, keys and values, those for some samples and queries, as NumPy arrays.

    Returns them, and the places of score_bias and head_gates, where given, in the whole: all of what has no such axis.
    """
    places: dict[str, tuple[slice, ...]] = {}
    for name in ("mask", "score_bias"):
        if call.get(name) is not None:
            axes = {0: samples} if call[name].ndim > 2 else {}
            axes |= {call[name].ndim - 2: queries}
            places[name] = tuple(axes.get(axis, ALL) if n > 1 else ALL for axis, n in enumerate(call[name].shape))
    for name in ("valid_lens", "head_gates", "offset"):
        if call.get(name) is not None:
            sizes = np.shape(call[name])
            of_sample = len(sizes) == 2 or (name != "head_gates" and len(sizes) == 1)
            places[name] = ((samples,) if of_sample else (ALL,) * len(sizes)) + (
                (queries,) if name == "valid_lens" and len(sizes) == 2 else ()
            )
    cut = {name: np.asarray(X)[places[name]] if name in places else X for name, X in call.items()}
    return cut, {name: place for name, place in places.items() if name in ("score_bias", "head_gates")}


def _check(group: Group, compute: Callable[..., Any], way: str, case: Case, dtype: FloatName) -> list[Result]:
    """Output and gradients of a case, spread over devices in a way, with NaN and infinity wherever padding may be."""
    queries, keys, values, cotangent = inputs = case.inputs(dtype)
    call = case.call(dtype)
    whole = problem(case.layer("numpy", dtype), queries, keys, values, call, cotangent)
    sees, seen = whole.visible.any((1, 3)), whole.visible.any((1, 2))  # (B, Q), (B, K)
    queries[~sees], keys[~seen], values[~seen] = np.nan, np.nan, np.inf
    found = compute(way, case, dtype, inputs, call)
    if set(found) != (asked := {"output", *(name for name in whole.names() if name.startswith(GRADIENT))}):
        raise ValueError(f"{way} gave {', '.join(sorted(found))}, expected {', '.join(sorted(asked))}")
    worst: dict[str, Result] = {}
    for name, (array, place) in found.items():
        expected, limit = whole.expected(name)
        check = way if name == "output" else f"{way}, gradients"
        wrong = error(array, expected[place])
        result = Result(group.name, check, case.name, dtype, name, wrong, limit)  # type: ignore[arg-type]
        worst[check] = max(worst.get(check, result), result, key=lambda one: fraction(one.error, one.bound))
    return list(worst.values())
