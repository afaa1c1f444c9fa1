"""Mistakes that students make and the catalogue lacks, and which mistakes a level can have."""

from dataclasses import replace
from functools import partial

import numpy as np

from mha.parity.diagnosis.mistakes.catalogue import CACHED_CATALOGUE, CATALOGUE
from mha.parity.diagnosis.mistakes.mistake import Mistake, forms_of, one, with_weights
from mha.parity.diagnosis.mistakes.of_softmax import fill_hidden
from mha.parity.diagnosis.mistakes.of_weights import PART, PROJECTIONS, other_inputs
from mha.parity.diagnosis.pipeline import pieces
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.pipeline.plan import Plan

FILLS = (-1.0, -2.0, -3.0, -5.0, -15.0)  # beside those of the catalogue


def by_exponents(normed: bool, plan: Plan) -> Plan:
    """Take exponentials of the scores in float32 without subtracting the maximum; normed: divide them by their sum."""

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        exponentials = np.exp(np.where(visible, scores, -1e6).astype(np.float32))
        found = exponentials / exponentials.sum(-1, keepdims=True) if normed else exponentials
        return found.astype(scores.dtype)

    return replace(plan, softmax=softmax)


def twice(plan: Plan) -> Plan:
    """Take the softmax of the softmax."""
    right = plan.softmax
    return replace(plan, softmax=lambda plan, scores, visible: right(plan, right(plan, scores, visible), visible))


def mask_twice(plan: Plan) -> Plan:
    """Take a plain softmax of the weights."""
    right = plan.softmax
    return replace(
        plan, softmax=lambda plan, scores, visible: pieces.softmax_of_all(plan, right(plan, scores, visible))
    )


def without_softmax(plan: Plan) -> Plan:
    """Take scores for weights, with 0 where hidden."""
    return replace(plan, softmax=lambda plan, scores, visible: np.where(visible, scores, 0).astype(scores.dtype))


def without_projection(name: str, plan: Plan) -> Plan | None:
    """Leave a projection out, if it is square."""
    kernel = plan.weights[f"{name}.kernel"]
    if kernel.shape[0] != kernel.shape[1] or np.array_equal(kernel, np.eye(len(kernel))):
        return None
    return with_weights(plan, {f"{name}.kernel": np.eye(len(kernel), dtype=kernel.dtype), f"{name}.bias": None})


def again(name: str, source: str, plan: Plan) -> Plan | None:
    """Use one projection for another one, too."""
    kernel, other = (plan.weights[f"{which}.kernel"] for which in (name, source))
    if kernel.shape != other.shape or np.array_equal(kernel, other):
        return None
    return with_weights(plan, {f"{name}.{kind}": plan.weights.get(f"{source}.{kind}") for kind in ("kernel", "bias")})


def self_attention(plan: Plan) -> Plan | None:
    """Take keys and values from the queries, where nothing hides keys."""
    X = plan.queries
    if plan.hiding or X.shape[2] != plan.keys.shape[2] or X.shape[2] != plan.values.shape[2]:
        return None
    return replace(plan, keys=X, values=X)


def pools_keys(plan: Plan) -> Plan | None:
    """Pool keys in place of values."""
    if plan.keys.shape[2] != plan.values.shape[2] or plan.config.key_dim != plan.config.value_dim:
        return None
    moved = {f"W_v.{kind}": plan.weights.get(f"W_k.{kind}") for kind in ("kernel", "bias")}
    if plan.weights["W_v.kernel"].shape != plan.weights["W_k.kernel"].shape:
        return None
    return with_weights(replace(plan, values=plan.keys), moved)


def by_heads(summed: bool, plan: Plan) -> Plan | None:
    """Merge the sum or the mean of the heads, as often as there are heads."""
    if plan.heads == 1:
        return None
    right, factor = plan.merge, 1.0 if summed else 1 / plan.heads

    def merge(X: Array) -> Array:
        return right(np.broadcast_to(factor * X.sum(1, keepdims=True), X.shape).astype(X.dtype))

    return replace(plan, merge=merge)


def reverse_heads(plan: Plan) -> Plan | None:
    """Merge the last head first."""
    right = plan.merge
    return None if plan.heads == 1 else replace(plan, merge=lambda X: right(X[:, ::-1]))


def along(axis: int, plan: Plan) -> Plan:
    """Take the softmax over another axis, in which hidden scores are low numbers."""

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        return pieces.plain_softmax(np.where(visible, scores, -1e6).astype(scores.dtype), axis)

    return replace(plan, softmax=softmax, rows=slice(None))


OF_STUDENTS = (
    Mistake("the softmax is over another axis", "weights add up to 1 over queries, heads or samples, not keys",
            "take the softmax over the last axis, that of keys",
            ("weights",), {"over queries": partial(along, 2), "over heads": partial(along, 1)}),
    Mistake("the softmax overflows", "exponentials of large scores: subtract the largest score of each row first",
            "subtract the largest score of each row first",
            ("weights",), one(partial(by_exponents, True))),
    Mistake("the softmax is not normed", "weights do not add up to 1",
            "divide the exponentials of scores by their sum over keys", ("weights",),
            {"exponentials": partial(by_exponents, False), "scores themselves": without_softmax}),
    Mistake("the softmax is taken twice", "of weights, again",
            "take the softmax once", ("weights",), {"": twice, "of all keys": mask_twice}),
    Mistake("weak mask fill", "hidden scores get a number that is not low enough, or add it",
            "set hidden scores to -1e6 or lower before the softmax", ("weights",),
            {f"{fill:g}": partial(fill_hidden, fill, False) for fill in FILLS}),
    *(Mistake(f"{name} is left out", f"there is no projection by {name}",
              f"multiply by {name}.kernel", (PART[name],),
              one(partial(without_projection, name)))
      for name in PROJECTIONS),
    *(Mistake(f"{source} is used for {name}, too", f"two projections share {source}",
              f"give {name} a projection of its own", (PART[name],),
              one(partial(again, name, source)))
      for name in PROJECTIONS for source in PROJECTIONS if name != source),
    Mistake("keys and values are taken from queries", "it is self-attention, whatever comes in",
            "project keys and values from what comes in as such", ("k", "v"),
            one(self_attention)),
    *(Mistake(f"{source} are taken for {name}", f"{name} are not used",
              f"project {name} from what comes in as {name}", ("q", "k", "v"),
              one(partial(other_inputs, ("queries", source, source))))
      for name, source in (("keys", "values"), ("values", "keys"))),
    Mistake("keys are pooled, not values", "the weights are multiplied by keys",
            "multiply the weights by values", ("v",), one(pools_keys)),
    Mistake("the heads are added up", "their sum or mean is merged in place of each",
            "merge the heads side by side, (B, T, H*d)", ("output",),
            {"the sum": partial(by_heads, True), "the mean": partial(by_heads, False)}),
    Mistake("the heads are merged in reverse", "the last head comes first",
            "merge head 0 first", ("output",), one(reverse_heads)),
)  # fmt: skip

# Of these, a few samples do not show the numbers: all are computed.
OVER_SAMPLES = forms_of(
    [Mistake("the softmax is over another axis", "weights add up to 1 over samples, not keys",
             "take the softmax over the last axis, that of keys", ("weights",),
             {"over samples": partial(along, 0)})]
)  # fmt: skip

# Mistakes that a level cannot have, since it has no such step: its parts.
PARTS: dict[int, tuple[str, ...]] = {1: ("weights",), 2: ("scores", "weights", "pooled", "v", "k")}


def of_level(number: int) -> tuple[Mistake, ...]:
    """List the mistakes that a level can have: those of students first."""
    everything = (*OF_STUDENTS, *(CACHED_CATALOGUE if number == 9 else CATALOGUE))
    if number not in PARTS:
        return everything
    allowed = PARTS[number]
    return tuple(mistake for mistake in everything if set(mistake.parts) <= set(allowed))
