"""Do two layers compute the same though their weights differ, and how are these written then? If not, do these say why?

The calls show it: outputs and gradients of the inputs, with inputs of several sizes, masks, biases of the scores and
positions. Weights that go together may be written in another way together: a factor of the queries is one of the keys.
Where outputs differ, weights are the reason if A's, changed as B's come from them, give B's output.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mha.core.cache import left_of
from mha.core.options.config import Config, numpy_dtype
from mha.core.options.names import FloatName
from mha.core.options.positions import Rotary
from mha.layer import MultiHeadAttention, restore
from mha.parity.diagnosis.compare.comparison import compare
from mha.parity.diagnosis.compare.report import Row
from mha.parity.diagnosis.search.explanations import Explanation
from mha.parity.diagnosis.search.verdicts import LITTLE
from mha.parity.rule.layouts import GRADIENT, OF_INPUTS
from mha.parity.rule.problem import Expected, Problem, problem
from mha.parity.rule.relations import Relation, pairing_order
from mha.parity.rule.rules import bound, in_dtype
from mha.parity.rule.weight_rows import WeightRow, weight_row

QUERIES, KEYS = 5, 7
MAGNITUDES = 0.02, 4.0  # of the inputs, beside 1: the epsilon of a norm shows in small ones, the cap in large ones
TOGETHER = (
    ("W_q.kernel", "W_q.bias", "W_k.kernel", "W_k.bias", "q_norm.scale", "k_norm.scale"),
    ("W_v.kernel", "W_v.bias", "v_norm.scale", "W_o.kernel", "W_o.bias"),
)


def first_call(a: Config, b: Config, dtype: FloatName) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Draw inputs that fit both layers, and offsets at which every window, and every chunk, hides some keys."""
    lefts = {left for config in (a, b) if (left := left_of(config)) is not None}
    offsets = [0, *sorted(max(0, left - KEYS // 2) for left in lefts)]
    return draw_call(a, offsets, 1.0, dtype, 0)


def further_calls(a: Config, b: Config, dtype: FloatName) -> Iterator[tuple[list[np.ndarray], dict[str, Any]]]:
    """Draw smaller and larger inputs, each with a mask, a bias of the scores, and offsets at which options show."""
    offsets = first_call(a, b, dtype)[1]["offset"]
    floors = [max(0, config.temperature.floor - KEYS // 2) for config in (a, b) if config.temperature]
    places = list(dict.fromkeys([1, *np.atleast_1d(offsets).tolist(), *floors]))
    for seed, size in enumerate(MAGNITUDES, 1):
        inputs, call = draw_call(a, places, size, dtype, seed)
        random, shape = np.random.default_rng(seed), (len(places), 1, QUERIES, KEYS)
        mask, bias = random.random(shape) < 0.7, random.normal(size=shape)
        yield inputs, call | {"mask": mask, "score_bias": bias.astype(inputs[0].dtype)}


def draw_call(
    config: Config, offsets: list[int], size: float, dtype: FloatName, seed: int
) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Draw inputs of a standard deviation, `size`, one sample for each of these offsets."""
    random, kind = np.random.default_rng(seed), numpy_dtype(dtype)
    rows = {"query_size": QUERIES, "key_size": KEYS, "value_size": KEYS}
    shapes = [(len(offsets), T, getattr(config, name)) for name, T in rows.items()]
    inputs = [(size * random.normal(size=shape)).astype(kind) for shape in shapes]
    return inputs, {"offset": offsets if len(offsets) > 1 else offsets[0]}


def compare_calls(
    a: MultiHeadAttention, b: MultiHeadAttention, further: bool
) -> tuple[tuple[Row, ...], tuple[Problem, dict[str, Any]] | None]:
    """Compare two layers in calls that show whether they compute the same.

    a, b: the layers on NumPy, in one dtype; further: whether to look beyond one output. Returns the worst row of each
    array, the output last, and the call in which they differ, None if in none.
    """
    dtype = a.config.dtype
    calls = [first_call(a.config, b.config, dtype), *(further_calls(a.config, b.config, dtype) if further else ())]
    worst: dict[str, Row] = {}
    for at, (inputs, call) in enumerate(calls):
        gradients = 0 < at == len(calls) - 1  # of the largest inputs alone, as they take longest
        ours, theirs = (expected_arrays(layer, inputs, call, gradients) for layer in (a, b))
        rows = [compare_row(name, X, *theirs[name]) for name, (X, _) in ours.items()]
        if not all(row.passed for row in rows):
            queries, keys, values = inputs
            return tuple(rows), (problem(a, queries, keys, values, {"causal": False} | call), call)
        worst |= {row.name: max(row, worst.get(row.name, row), key=lambda row: row.ratio) for row in rows}
    return tuple(sorted(worst.values(), key=lambda row: row.name == "output")), None


def expected_arrays(
    layer: MultiHeadAttention, inputs: Sequence[np.ndarray], call: dict[str, Any], gradients: bool
) -> dict[str, tuple[Expected, np.ndarray]]:
    """Compute the output, and the gradients by the inputs if asked for: each as expected, and in the layer's dtype."""
    dtype = layer.config.dtype
    base = output_and_gradients(layer, inputs, call, gradients)
    wide = call | {name: X.astype(np.float64) for name, X in call.items() if name == "score_bias"}
    inputs = [X.astype(np.float64) for X in inputs]
    oracle = base if dtype == "float64" else output_and_gradients(in_dtype(layer, "float64"), inputs, wide, gradients)
    found = {}
    for name, X in oracle.items():
        own = name.startswith(GRADIENT)
        right = Expected(X, bound(dtype, X, base[name], gradient=own)) if own else Expected.of(dtype, X, base[name])
        found[name] = right, base[name]
    return found


def output_and_gradients(
    layer: MultiHeadAttention, inputs: Sequence[np.ndarray], call: dict[str, Any], gradients: bool
) -> dict[str, np.ndarray]:
    """Return the output, and the gradients by the inputs if they are asked for."""
    queries, keys, values = inputs
    by_name = layer.gradients(queries, keys, values, **call) if gradients else {}
    found = {GRADIENT + name: by_name[name] for name in OF_INPUTS if gradients}
    return found | {"output": layer(queries, keys, values, **call)}


def compare_row(name: str, ours: Expected, theirs: Expected, X: np.ndarray) -> Row:
    """Compare an array of another layer, X, with the expected one; either layer may round more than the other."""
    verdict, limit = ours.judge(X.astype(np.float64)), max(ours.limit, theirs.limit)
    return Row(name, max(verdict.error, verdict.rest * limit), limit)


def describe_weights(rows: Sequence[WeightRow]) -> tuple[WeightRow, ...]:
    """Describe how the weights that come from A's in no known way are written, in layers that compute the same."""
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


PAIRS, ORDER = "rotary pairs, ", " in another order"  # how the words of these relations begin, or end


def only_reordered(rows: Sequence[WeightRow]) -> bool:
    """Return whether only the order of columns differs: then the weights say why, and no mistake has to be tried."""
    found = [row.relation.how if row.relation else "" for row in rows if not row.same]
    return bool(found) and all(how.startswith(PAIRS) or how.endswith(ORDER) for how in found)


def explain_by_weights(
    rows: Sequence[WeightRow],
    a: MultiHeadAttention,
    b: MultiHeadAttention,
    inputs: Sequence[np.ndarray],
    call: Mapping[str, Any],
) -> Explanation | None:
    """Explain B's output by those of its weights that come from A's in a known way; None if it is another output.

    rows: of all weights; a, b: on NumPy, in one dtype, with different outputs; inputs, call: the arguments of the call.
    """
    first, second = a.config.rotary, b.config.rotary
    if first and second and first.interleaved != second.interleaved:
        a = swap_pairing(a, first)
        rows = [weight_row(row.name, a.weights, b.weights, a.config, b.config) for row in rows]
    ours, theirs = a.weights, b.weights
    changed = [row for row in rows if not row.same and (row.relation is not None or row.shapes[1] is None)]
    weights = {row.name: theirs.get(row.name, np.zeros_like(ours[row.name])) for row in changed}
    if not changed or any(X.shape != ours[name].shape for name, X in weights.items()):
        return None
    output = b(*inputs, **call)
    plain, made = (compare(layer, output, *inputs, **call) for layer in (a, restore(a.config, ours | weights, "numpy")))
    left = made.rows[-1].error / plain.rows[-1].error
    if not made or left > LITTLE:
        return None
    by_note: dict[str, list[WeightRow]] = {}
    for row in changed:
        by_note.setdefault(row.note, []).append(row)
    named = (name_mistake(note, list_weights(some, list(ours))) for note, some in by_note.items())
    names, hows = zip(*named, strict=True)
    what = "A's weights, changed so, give B's output"
    return Explanation(names, hows, (what,) * len(names), made.ratio, left, True)


def swap_pairing(layer: MultiHeadAttention, rotary: Rotary) -> MultiHeadAttention:
    """Make a layer with the same output and the other pairing of components: neighbours for halves, or halves.

    rotary: the layer's.
    """
    config, weights = layer.config, layer.weights
    order = pairing_order(config, not rotary.interleaved)
    for name, X in weights.items():
        if name.partition(".")[0] in ("W_q", "W_k", "q_norm", "k_norm"):
            heads = X.reshape(*X.shape[:-1], -1, config.key_dim)  # (..., H, d)
            weights[name] = np.ascontiguousarray(heads[..., order].reshape(X.shape))  # (..., H*d)
    other = dataclasses.replace(rotary, interleaved=not rotary.interleaved)
    return restore(dataclasses.replace(config, rotary=other), weights, "numpy")


def name_mistake(note: str, names: str) -> tuple[str, str]:
    """Name a mistake, and its form, by the note of the rows of these weights."""
    if note.startswith(PAIRS):
        return f"rotary components of {names} are in another order", note.removeprefix(PAIRS)
    if note.endswith(ORDER):
        return f"{note.removesuffix(ORDER)} of {names} are in another order", ""
    return f"{names} changed", note


def list_weights(some: Sequence[WeightRow], names: Sequence[str]) -> str:
    """List weights by name: W_q alone where both its kernel and its bias are meant, or where it has no bias."""
    meant = [row.name for row in some]
    found: dict[str, None] = {}
    for name in meant:
        projection = name.partition(".")[0]
        every = [one for one in names if one.startswith(f"{projection}.")]
        found[projection if set(every) <= set(meant) else name] = None
    *before, last = found
    return f"{', '.join(before)} and {last}" if before else last
