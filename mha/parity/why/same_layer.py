"""Whether two layers compute the same though their weights differ, and how these are written then.

The calls show it: outputs and gradients of the inputs, with inputs of several sizes, masks, biases of the scores and
positions. Weights that go together may be written in another way together: a factor of the queries is one of the keys.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mha.cache import left_of
from mha.config import Config, numpy_dtype
from mha.layer import MultiHeadAttention
from mha.names import FloatName
from mha.parity.same.layouts import GRADIENT, OF_INPUTS
from mha.parity.same.problem import Problem, problem
from mha.parity.same.relations import Relation
from mha.parity.same.rules import error
from mha.parity.same.weight_rows import WeightRow
from mha.parity.why.report import Row

QUERIES, KEYS = 5, 7
MAGNITUDES = 0.02, 4.0  # of the inputs, beside 1: the epsilon of a norm shows in small ones, the cap in large ones
FAR = 5000  # an offset at which slow rotations show
TOGETHER = (
    ("W_q.kernel", "W_q.bias", "W_k.kernel", "W_k.bias", "q_norm.scale", "k_norm.scale"),
    ("W_v.kernel", "W_v.bias", "v_norm.scale", "W_o.kernel", "W_o.bias"),
)


def first_call(a: Config, b: Config, dtype: FloatName) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Draw inputs that fit both layers, and offsets at which every window, and every chunk, hides some keys."""
    lefts = {left for config in (a, b) if (left := left_of(config)) is not None}
    return drawn(a, [0, *sorted(max(0, left - KEYS // 2) for left in lefts)], 1.0, dtype, 0)


def further_calls(a: Config, b: Config, dtype: FloatName) -> Iterator[tuple[list[np.ndarray], dict[str, Any]]]:
    """Draw smaller and larger inputs, each with a mask, a bias of the scores, and offsets at which options show."""
    offsets = first_call(a, b, dtype)[1]["offset"]
    floors = [max(0, config.temperature.floor - KEYS // 2) for config in (a, b) if config.temperature]
    far = [FAR] if a.rotary or b.rotary else []
    places = list(dict.fromkeys([1, *np.atleast_1d(offsets).tolist(), *floors, *far]))
    for seed, size in enumerate(MAGNITUDES, 1):
        inputs, call = drawn(a, places, size, dtype, seed)
        random, shape = np.random.default_rng(seed), (len(places), 1, QUERIES, KEYS)
        mask, bias = random.random(shape) < 0.7, random.normal(size=shape)
        yield inputs, call | {"mask": mask, "score_bias": bias.astype(inputs[0].dtype)}


def drawn(
    config: Config, offsets: list[int], size: float, dtype: FloatName, seed: int
) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Draw inputs of a size, a sample for each of these offsets."""
    random, kind = np.random.default_rng(seed), numpy_dtype(dtype)
    rows = {"query_size": QUERIES, "key_size": KEYS, "value_size": KEYS}
    shapes = [(len(offsets), T, getattr(config, name)) for name, T in rows.items()]
    inputs = [(size * random.normal(size=shape)).astype(kind) for shape in shapes]
    return inputs, {"offset": offsets if len(offsets) > 1 else offsets[0]}


def compared_calls(
    a: MultiHeadAttention, b: MultiHeadAttention, further: bool
) -> tuple[tuple[Row, ...], tuple[Problem, dict[str, Any]] | None]:
    """Compare two layers in calls that show whether they compute the same.

    a, b: the layers on NumPy, in one dtype; further: whether to look beyond one output. Returns the worst row of each
    array, the output last, and the call in which they differ, None if in none.
    """
    dtype = a.config.dtype
    calls = [first_call(a.config, b.config, dtype), *(further_calls(a.config, b.config, dtype) if further else ())]
    worst: dict[str, Row] = {}
    for at, ((queries, keys, values), call) in enumerate(calls):
        asked = problem(a, queries, keys, values, {"causal": False} | call)
        other = problem(b, queries, keys, values, {"causal": False} | call) if dtype == "float32" else asked
        rows = [compared_row(asked, other, "output", b(queries, keys, values, **call))]
        if at:
            gradients = b.gradients(queries, keys, values, **call)
            rows = [*(compared_row(asked, other, GRADIENT + name, gradients[name]) for name in OF_INPUTS), *rows]
        if not all(row.passed for row in rows):
            return tuple(rows), (asked, call)
        worst = {row.name: max(row, worst.get(row.name, row), key=lambda row: row.ratio) for row in rows}
    return tuple(sorted(worst.values(), key=lambda row: row.name == "output")), None


def compared_row(asked: Problem, other: Problem, name: str, X: np.ndarray) -> Row:
    """Compare an array of another layer; other: its problem, or the same, as either layer may round more."""
    expected, counts = asked.expected(name), True if name.startswith(GRADIENT) else asked.matters(name)
    there = np.where(counts, X, 0)
    rows, limit = (
        0.0 if expected.rows is None else expected.ratio(there),
        max(expected.limit, other.expected(name).limit),
    )
    return Row(name, error(there, expected.X), limit, rows=rows)


def written(rows: Sequence[WeightRow]) -> tuple[WeightRow, ...]:
    """Say of weights that come from A's in no known way how they are written, in layers that compute the same."""
    lone = {row.name for row in rows if row.relation is None and row.name != "W_k.bias"}
    found = []
    for row in rows:
        relation = row.relation
        if row.name == "W_k.bias" and not (relation and relation.kept):  # one number more for all scores of a query
            relation = Relation(f"{relation.how if relation else 'another one'}, which the softmax takes back")
        elif relation is None:
            several = any(row.name in names and len(lone.intersection(names)) > 1 for names in TOGETHER)
            relation = Relation(f"written another way{' together' * several}, which no output shows")
        found.append(dataclasses.replace(row, relation=relation))
    return tuple(found)
