"""The reason of a difference that the weights show: A's weights, changed as B's come from them, give B's output."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mha.core.options.positions import Rotary
from mha.layer import MultiHeadAttention, restore
from mha.parity.diagnosis.compare.comparison import compare
from mha.parity.diagnosis.search.explanations import Explanation
from mha.parity.diagnosis.search.verdicts import LITTLE
from mha.parity.rule.relations import pairing_order
from mha.parity.rule.weight_rows import WeightRow, weight_row

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
