"""Known mistakes of rounding, which no exact formula gives: they are imitated, and recognised by their errors."""

from functools import partial
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.parity.diagnosis.mistakes.mistake import Change, Mistake, around, one, only_where, softmax_change
from mha.parity.diagnosis.mistakes.of_rotations import rotates
from mha.parity.diagnosis.pipeline.parts import PARTS
from mha.parity.diagnosis.pipeline.pieces import Array, half_softmax
from mha.parity.diagnosis.pipeline.plan import Plan, replace
from mha.parity.rule.rounding import cut_off, through

ALL_PARTS = tuple(PARTS)


def everything(dtype: str) -> Change:
    """Round both sides of every matrix product, and all results."""
    return partial(replace, into_product=through(dtype), rounded=through(dtype), after=through(dtype))


@softmax_change()
def softmax_in(dtype: str, inside: bool, right: Any, plan: Plan, scores: Array, visible: Array) -> Array:
    """Round scores and weights; inside: also every number between them."""
    into = through(dtype)
    if not inside:
        return into(right(plan, into(scores), visible))
    weights = half_softmax(into, lambda rows: rows.sum(0), plan, into(scores), visible)
    return np.where(visible, weights, 0)


def heads_in(role: str, dtype: str, plan: Plan) -> Plan:
    """Round heads of queries, keys or values."""
    into, piece = through(dtype), "share" if role == "keys" else "share_values"
    if role == "queries":
        return around("scores", lambda right, plan, q, k: right(plan, into(q), k), plan)
    return around(piece, lambda right, X, times: right(into(X), times), plan)


def to_int8(axes: tuple[int, ...], X: Array) -> Array:
    """Round to 127 steps on each side of 0; axes: of (B, G, K, d), those with one largest."""
    steps = np.abs(X.astype(np.float64)).max(axes, keepdims=True) / 127
    return (np.rint(X / np.where(steps == 0, 1, steps)) * steps).astype(X.dtype)


TF32 = "TF32 arithmetic"
TF32_EFFECT = "matrix products keep 10 bits behind the leading one"
TF32_OFF = {name: line for name, line in dispatch.facts("TF32_OFF").items() if line}  # what a user types, by backend
ROUNDINGS = (
    Mistake(TF32, f"{TF32_EFFECT}; what switches it off: {'; '.join(TF32_OFF.values())}",
            "switch TF32 off, so that matrix products are in float32", ALL_PARTS,
            {"rounded": partial(replace, into_product=lambda X: cut_off(X, 13, 2**12).astype(X.dtype)),
             "cut off": partial(replace, into_product=lambda X: cut_off(X, 13).astype(X.dtype))}),
    *(Mistake(f"{dtype} arithmetic", f"numbers are rounded to {dtype} on the way",
              f"compute in the layer's own dtype, and cast nothing to {dtype} on the way", ALL_PARTS,
              {"in matrix products": partial(replace, into_product=through(dtype)), "everywhere": everything(dtype)})
      for dtype in ("bfloat16", "float16", "float32")),
    Mistake("softmax in half precision", "scores or weights are rounded to half precision",
            "compute scores, their softmax and weights in float32", ("weights",),
            {f"{dtype}{', inside too' * inside}": partial(softmax_in, dtype, inside)
             for dtype in ("float16", "bfloat16") for inside in (False, True)}
            | {f"{dtype}, weights alone": partial(replace, after=through(dtype)) for dtype in ("float16", "bfloat16")}),
    Mistake("heads in half precision", "queries, keys or values alone are rounded to it",
            "leave heads of queries, keys and values in the layer's own dtype", ("scores", "pooled"),
            {f"{role}, {dtype}": partial(heads_in, role, dtype)
             for role in ("queries", "keys", "values") for dtype in ("float16", "bfloat16")}),
    Mistake("keys and values are rounded in a cache", "a cache stores them in fewer bits",
            "store keys and values in the layer's own dtype", ("scores", "pooled"),
            {how: partial(replace, cached=function) for how, function in {
                "bfloat16": through("bfloat16"), "int8, by token and head": partial(to_int8, (3,)),
                "int8, by token": partial(to_int8, (1, 3)), "int8, by head": partial(to_int8, (2, 3))}.items()}),
    # In a layer of bfloat16 it is right: code for such models does it.
    *only_where(
        lambda plan: rotates(plan) and plan.config.dtype != "bfloat16",
        Mistake("cosines and sines in bfloat16", "the rotation's cosines and sines are rounded to bfloat16",
                "compute cosines and sines in float32, and do not cast them", ("q", "k"),
                one(partial(replace, table=through("bfloat16"))))),
)  # fmt: skip
