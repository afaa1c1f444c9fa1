"""Known mistakes of rounding, which no exact formula gives: they are imitated, and recognised by their errors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Change, Mistake, one, only_where, softmax_change
from mha.parity.diagnosis.mistakes.of_rotations import rotates
from mha.parity.diagnosis.pipeline.parts import PARTS
from mha.parity.diagnosis.pipeline.pieces import Array, beside_sinks
from mha.parity.diagnosis.pipeline.plan import Plan, replace
from mha.parity.rule.rounding import through

ALL_PARTS = tuple(PARTS)


def short(bits: int, nearest: bool) -> Callable[[Array], Array]:
    """Make a function that keeps so many bits after the leading one of float32, rounded to the nearest or cut off."""
    drop = 23 - bits

    def shorten(X: Array) -> Array:
        whole = np.ascontiguousarray(X, np.float32).view(np.uint32)
        half = np.uint32(1 << (drop - 1)) if nearest else np.uint32(0)
        return ((whole + half) & np.uint32(0xFFFFFFFF << drop & 0xFFFFFFFF)).view(np.float32).astype(X.dtype)

    return shorten


def everything(dtype: str) -> Change:
    """Round both sides of every matrix product, and all results."""
    return partial(replace, into_product=through(dtype), rounded=through(dtype), after=through(dtype))


@softmax_change()
def softmax_in(dtype: str, inside: bool, right: Any, plan: Plan, scores: Array, visible: Array) -> Array:
    """Round scores and weights; inside: also every number between them."""
    into = through(dtype)
    if not inside:
        return into(right(plan, into(scores), visible))
    low = beside_sinks(plan, np.where(visible, into(scores), -np.inf))
    shares = into(np.exp(into(low - low.max(-1, keepdims=True, initial=np.finfo(np.float32).min))))
    sums = into(shares.sum(-1, keepdims=True))
    return np.where(visible, into(shares / np.where(sums == 0, 1, sums))[..., : scores.shape[3]], 0)


def heads_in(role: str, dtype: str, plan: Plan) -> Plan:
    """Round heads of queries, keys or values."""
    into, scores, share, share_values = through(dtype), plan.scores, plan.share, plan.share_values
    if role == "queries":
        return replace(plan, scores=lambda plan, q, k: scores(plan, into(q), k))
    if role == "keys":
        return replace(plan, share=lambda X, times: share(into(X), times))
    return replace(plan, share_values=lambda X, times: share_values(into(X), times))


def to_int8(axes: tuple[int, ...]) -> Callable[[Array], Array]:
    """Make a function that rounds to 127 steps on each side of 0; axes: of (B, G, K, d), those with one largest."""

    def to_steps(X: Array) -> Array:
        steps = np.abs(X.astype(np.float64)).max(axes, keepdims=True) / 127
        return (np.rint(X / np.where(steps == 0, 1, steps)) * steps).astype(X.dtype)

    return to_steps


# What keeps float32 products in float32, in PyTorch, JAX, TensorFlow and MLX.
SWITCHES = (
    "torch.set_float32_matmul_precision('highest'), jax_default_matmul_precision='highest', "
    "enable_tensor_float_32_execution(False) or MLX_ENABLE_TF32=0 is set"
)
ROUNDINGS = (
    Mistake("TF32 arithmetic", f"matrix products keep 10 bits behind the leading one, unless {SWITCHES}",
            "switch TF32 off, so that matrix products are in float32", ALL_PARTS,
            {"rounded": partial(replace, into_product=short(10, True)),
             "cut off": partial(replace, into_product=short(10, False))}),
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
                "bfloat16": through("bfloat16"), "int8, by token and head": to_int8((3,)),
                "int8, by token": to_int8((1, 3)), "int8, by head": to_int8((2, 3))}.items()}),
    # In a layer of bfloat16 it is right: code for such models does it.
    *only_where(
        lambda plan: rotates(plan) and plan.config.dtype != "bfloat16",
        Mistake("cosines and sines in bfloat16", "the rotation's cosines and sines are rounded to bfloat16",
                "compute cosines and sines in float32, and do not cast them", ("q", "k"),
                one(partial(replace, table=through("bfloat16"))))),
)  # fmt: skip
