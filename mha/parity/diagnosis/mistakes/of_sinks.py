"""Known mistakes with sinks, of layers that have them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Mistake, one, only_where, softmax_change, with_weights
from mha.parity.diagnosis.pipeline import pieces
from mha.parity.diagnosis.pipeline.pieces import Array, widen
from mha.parity.diagnosis.pipeline.plan import Plan


def change_sinks(change: Callable[[Plan, Array], Array], plan: Plan) -> Plan:
    """Change the sinks (H,), in float32 at least."""
    sinks = plan.weights["sinks"]
    return with_weights(plan, {"sinks": change(plan, widen(sinks)).astype(sinks.dtype)})


def several(times: float, plan: Plan) -> Plan:
    """Count sinks so many times: exp(sink + log(times)) is times exp(sink)."""
    return change_sinks(lambda plan, sinks: sinks + np.log(times), plan)


@softmax_change()
def count_visits(size: int, right: Any, plan: Plan, scores: Array, visible: Array) -> Array:
    """Count a sink once for each block of so many keys in which its query sees any."""
    shares = pieces.shares(plan, scores, visible)
    visits = np.logical_or.reduceat(visible, range(0, scores.shape[3], size), 3).sum(3, keepdims=True)
    return (shares / (1 + (np.maximum(visits, 1) - 1) * shares[..., -1:]))[..., :-1]


def by_visits(size: int, plan: Plan) -> Plan | None:
    """Count sinks by blocks of so many keys, if there are several."""
    return None if size >= plan.num_keys else count_visits(size, plan)


@softmax_change()
def shift_scores_alone(right: Any, plan: Plan, scores: Array, visible: Array) -> Array:
    """Subtract the largest score from scores alone, not from sinks."""
    low = np.where(visible, scores, -np.inf)
    largest = np.maximum(low.max(plan.axis, keepdims=True), np.finfo(scores.dtype).min)
    shares = np.exp(low - largest)
    sums = shares.sum(plan.axis, keepdims=True) + np.exp(widen(plan.weights["sinks"])[:, None, None])
    return shares / sums


@softmax_change()
def with_value(key: int, right: Any, plan: Plan, scores: Array, visible: Array) -> Array:
    """Let the weight of a sink pool the value of a key."""
    shares = pieces.shares(plan, scores, visible)
    shares[..., key if key >= 0 else key - 1] += shares[..., -1]
    return shares[..., :-1]


@softmax_change()
def shift_weights(right: Any, plan: Plan, scores: Array, visible: Array) -> Array:
    """Put the weights of sinks before those of keys, and leave out the last."""
    return np.roll(pieces.shares(plan, scores, visible), 1, -1)[..., :-1]


BLOCKS = (*range(2, 17), 32, 64, 128, 256, 512)  # keys
# Of any number of blocks, see `search.numbers`.
SINKS_SEVERAL_TIMES = Mistake("sinks count several times", "as where each block of keys begins its sum with them",
                              "add exp(sink - maximum) to the sum of a row once, not for every block",
                              ("weights",), {})  # fmt: skip

OF_SINKS = only_where(
    lambda plan: "sinks" in plan.weights,
    Mistake("sinks are forgotten", "the weights of a query add up to 1",
            "add exp(sink of the head) to the sum of exponentials of each row", ("weights",),
            one(lambda plan: with_weights(plan, {"sinks": None}))),
    Mistake("sinks are scaled", "they are multiplied by the scale of dot products",
            "scale the dot products alone, and leave sinks as they are", ("weights",),
            one(partial(change_sinks, lambda plan, X: X * plan.scale if plan.config.pooling == "dot" else X))),
    Mistake("sinks are capped", "the cap bends them, too",
            "cap the dot products alone, and leave sinks as they are", ("weights",),
            one(partial(change_sinks, lambda plan, X: X if plan.softcap is None else plan.cap(plan, X)))),
    Mistake("sinks are left out of the maximum", "the largest score is subtracted from scores alone, and sinks have "
            "another share",
            "subtract the same number from a row's scores and from its sink", ("weights",), one(shift_scores_alone)),
    Mistake("sinks pool a value", "they are as a key that has a value, the weight of which does not vanish",
            "drop the weight of the sink before values are pooled",
            ("weights",), {"that of the first key": partial(with_value, 0),
                           "that of the last key": partial(with_value, -1),
                           "with every weight one key further": shift_weights}),
    Mistake("sinks of other heads", "they come in another order",
            "give head h sink h", ("weights",),
            {how: partial(change_sinks, change) for how, change in {
                "reversed": lambda plan, X: X[::-1],
                "as (r, g)": lambda plan, X: X.reshape(plan.groups, -1).T.ravel(),
                "as (r, g), the other way": lambda plan, X: X.reshape(-1, plan.groups).T.ravel(),
                "one head further": lambda plan, X: np.roll(X, 1),
                "one head back": lambda plan, X: np.roll(X, -1),
                "of the first head, for all": lambda plan, X: np.repeat(X[:1], len(X)),
                "one for the heads that share keys": lambda plan, X: np.repeat(X[:plan.groups], len(X) // plan.groups),
                "that of h % G": lambda plan, X: np.tile(X[:plan.groups], len(X) // plan.groups)}.items()}),
    Mistake("a sink counts once for each block", "of keys in which its query sees any, as its sum is begun with a sink",
            "add exp(sink - maximum) to the sum of a row once, not for every block",
            ("weights",), {f"blocks of {size}": partial(by_visits, size) for size in BLOCKS}, rare=True),
)  # fmt: skip
