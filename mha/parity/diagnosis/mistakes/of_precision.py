"""Known mistakes of rounding, which no exact formula gives: they are imitated, and recognised by their errors."""

from collections.abc import Callable

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Change, Mistake
from mha.parity.diagnosis.pipeline.parts import PARTS
from mha.parity.diagnosis.pipeline.pieces import Array, beside_sinks, through
from mha.parity.diagnosis.pipeline.plan import Plan, replace

ALL_PARTS = tuple(PARTS)


def short(bits: int, nearest: bool) -> Callable[[Array], Array]:
    """Make a function that keeps so many bits after the leading one of float32, rounded to the nearest or cut off."""
    drop = 23 - bits

    def shorten(X: Array) -> Array:
        whole = np.ascontiguousarray(X, np.float32).view(np.uint32)
        half = np.uint32(1 << (drop - 1)) if nearest else np.uint32(0)
        return ((whole + half) & np.uint32(0xFFFFFFFF << drop & 0xFFFFFFFF)).view(np.float32).astype(X.dtype)

    return shorten


def products(function: Callable[[Array], Array]) -> Change:
    """Round both sides of every matrix product."""
    return lambda plan: replace(plan, into_product=function)


def everything(dtype: str) -> Change:
    """Round both sides of every matrix product, and all results."""
    return lambda plan: replace(plan, into_product=through(dtype), rounded=through(dtype), after=through(dtype))


def softmax_in(dtype: str, inside: bool) -> Change:
    """Round scores and weights; inside: also every number between them."""
    into = through(dtype)

    def change(plan: Plan) -> Plan:
        right = plan.softmax

        def rough(plan: Plan, scores: Array, visible: Array) -> Array:
            if not inside:
                return into(right(plan, into(scores), visible))
            low = beside_sinks(plan, np.where(visible, into(scores), -np.inf))
            shares = into(np.exp(into(low - low.max(-1, keepdims=True, initial=np.finfo(np.float32).min))))
            sums = into(shares.sum(-1, keepdims=True))
            shares = into(shares / np.where(sums == 0, 1, sums))[..., : scores.shape[3]]
            return np.where(visible, shares, 0).astype(scores.dtype)

        return replace(plan, softmax=rough)

    return change


def weights_in(dtype: str) -> Change:
    """Round weights before they pool."""
    return lambda plan: replace(plan, after=through(dtype))


def heads_in(role: str, dtype: str) -> Change:
    """Round heads of queries, keys or values."""
    into = through(dtype)

    def change(plan: Plan) -> Plan:
        if role == "queries":
            scores = plan.scores
            return replace(plan, scores=lambda plan, q, k: scores(plan, into(q), k))
        share, share_values = plan.share, plan.share_values
        if role == "keys":
            return replace(plan, share=lambda X, times: share(into(X), times))
        return replace(plan, share_values=lambda X, times: share_values(into(X), times))

    return change


def in_forms(dtype: str) -> dict[str, Change]:
    """Make the forms of arithmetic in a dtype: of the products alone, or of all results."""
    return {"in matrix products": products(through(dtype)), "everywhere": everything(dtype)}


def of_cache(function: Callable[[Array], Array]) -> Change:
    """Round keys and values, as a cache stores them."""
    return lambda plan: replace(plan, cached=function)


def to_int8(axes: tuple[int, ...]) -> Callable[[Array], Array]:
    """Make a function that rounds to 127 steps on each side of 0; axes: of (B, G, K, d), those with one largest."""

    def to_steps(X: Array) -> Array:
        steps = np.abs(X.astype(np.float64)).max(axes, keepdims=True) / 127
        return (np.rint(X / np.where(steps == 0, 1, steps)) * steps).astype(X.dtype)

    return to_steps


def coarse_turns(plan: Plan) -> Plan | None:
    """Round cosines and sines to bfloat16, which is right in a layer of bfloat16: code for such models does it."""
    if plan.frequencies is None or plan.config.dtype == "bfloat16":
        return None
    return replace(plan, table=through("bfloat16"))


ROUNDINGS = (
    Mistake("TF32 arithmetic", "matrix products keep 10 bits behind the leading one", ALL_PARTS,
            {"rounded": products(short(10, True)), "cut off": products(short(10, False))}),
    Mistake("bfloat16 arithmetic", "numbers are rounded to bfloat16 on the way", ALL_PARTS, in_forms("bfloat16")),
    Mistake("float16 arithmetic", "numbers are rounded to float16 on the way", ALL_PARTS, in_forms("float16")),
    Mistake("float32 arithmetic", "numbers are rounded to float32 on the way", ALL_PARTS, in_forms("float32")),
    Mistake("softmax in half precision", "scores or weights are rounded to half precision", ("weights",),
            {f"{dtype}{', inside too' * inside}": softmax_in(dtype, inside)
             for dtype in ("float16", "bfloat16") for inside in (False, True)}
            | {f"{dtype}, weights alone": weights_in(dtype) for dtype in ("float16", "bfloat16")}),
    Mistake("heads in half precision", "queries, keys or values alone are rounded to it", ("scores", "pooled"),
            {f"{role}, {dtype}": heads_in(role, dtype)
             for role in ("queries", "keys", "values") for dtype in ("float16", "bfloat16")}),
    Mistake("keys and values are rounded in a cache", "a cache stores them in fewer bits", ("scores", "pooled"),
            {"bfloat16": of_cache(through("bfloat16")), "int8, by token and head": of_cache(to_int8((3,))),
             "int8, by token": of_cache(to_int8((1, 3))), "int8, by head": of_cache(to_int8((2, 3)))}),
    Mistake("cosines and sines in bfloat16", "the rotation's cosines and sines are rounded to bfloat16", ("q", "k"),
            {"": coarse_turns}),
)  # fmt: skip
