"""Known mistakes in the softmax, with NaN, and with sinks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mha.parity.diagnosis.mistakes.equivalent_masks import hides, in_part
from mha.parity.diagnosis.mistakes.mistake import Mistake, around, one, only_where, softmax_change, with_weights
from mha.parity.diagnosis.mistakes.of_scores import cap_last
from mha.parity.diagnosis.pipeline import pieces
from mha.parity.diagnosis.pipeline.pieces import Array, widen
from mha.parity.diagnosis.pipeline.plan import Plan, replace

BLOCKS = (16, 32, 64, 128, 256, 512)  # keys
FILLS = (-1e9, -1e6, -1e5, -1e4, -1e3, -100.0, -50.0, -30.0, -20.0, -10.0)
Softmax = Callable[..., Array]
SMALL = (1e-9, 0.0)  # a minus in the wrong place, and products with a mask
PADDING, PARTLY = frozenset({"lengths", "mask", "bias"}), "in lengths and mask alone"


@softmax_change(lambda plan: plan.hiding)
def fill_hidden(fill: float, added: bool, right: Any, plan: Plan, scores: Array, visible: Array) -> Array:
    """Set hidden scores to a number, or add it to them, and hide nothing else."""
    low = fill if np.isfinite(fill) else np.finfo(scores.dtype).min
    hidden = scores + scores.dtype.type(low) if added else low
    return pieces.softmax_of_all(plan, np.where(visible, scores, hidden).astype(scores.dtype))


def choose_conditions(names: frozenset[str] | None, plan: Plan) -> frozenset[str] | None:
    """Choose some of the conditions that hide, None = all; return None if there are none, or if named ones are all."""
    given = hides(plan)
    chosen = given if names is None else names & given
    return None if not chosen or (names is not None and chosen == given) else chosen


def add_as_numbers(names: frozenset[str] | None, plan: Plan) -> Plan | None:
    """Add 1 to the scores of keys that some conditions leave visible; the others hide as ever; None = all of them."""
    if (chosen := choose_conditions(names, plan)) is None:
        return None

    def softmax(right: Softmax, plan: Plan, scores: Array, visible: Array) -> Array:
        return right(plan, scores + visible.astype(scores.dtype), plan.visible(plan.hiding.keys() - chosen))

    return around("softmax", softmax, plan)


def cap_hidden(names: frozenset[str] | None, last: bool, plan: Plan) -> Plan | None:
    """Give keys that some conditions hide the score minus the cap; the others hide as ever; None = all of them.

    last: whether the cap comes after the bias, too.
    """
    if plan.softcap is None or (chosen := choose_conditions(names, plan)) is None:
        return None
    made, least = cap_last(plan) if last else plan, -plan.softcap
    if made is None or (last and not pieces.finite_bias(plan).any()):
        return None

    def softmax(right: Softmax, plan: Plan, scores: Array, visible: Array) -> Array:
        low = least + (0 if last or plan.score_bias is None else pieces.finite_bias(plan))
        scores = np.where(plan.visible(chosen & plan.hiding.keys()), scores, low).astype(scores.dtype)
        return right(plan, scores, plan.visible(plan.hiding.keys() - chosen))

    return around("softmax", softmax, made)


@softmax_change()
def with_one_more(late: bool, right: Any, plan: Plan, scores: Array, visible: Array) -> Array:
    """Add 1 to the sum of exponents; late: after the largest score was subtracted."""
    low = pieces.beside_sinks(plan, np.where(visible, scores, -np.inf))
    largest = np.maximum(low.max(plan.axis, keepdims=True), np.finfo(scores.dtype).min)
    sums = np.exp(low - largest).sum(plan.axis, keepdims=True)
    shares = sums / (sums + (1 if late else np.exp(-largest)))  # over another axis, sinks have one of their own
    return right(plan, scores, visible) * shares[..., : scores.shape[3]]


@softmax_change(lambda plan: plan.hiding)
def uniform_over(all_keys: bool, right: Any, plan: Plan, scores: Array, visible: Array) -> Array:
    """Let a query that sees no key see all keys, with equal weights or by its scores."""
    instead = 1 / scores.shape[-1] if all_keys else pieces.softmax_of_all(replace(plan, axis=3), scores)
    return np.where(visible.any(-1, keepdims=True), right(plan, scores, visible), instead)


@softmax_change(lambda plan: plan.hiding)
def divide_by_nothing(right: Any, plan: Plan, scores: Array, visible: Array) -> Array:
    """Give NaN, which is 0 / 0, to a query that sees no key."""
    return np.where(visible.any(-1, keepdims=True), right(plan, scores, visible), np.nan)


def overflowing(hidden_too: bool, blank: bool, plan: Plan) -> Plan | None:
    """Make dot products in float16, before their scale: infinity where they are above 65504, which makes NaN of a row.

    hidden_too: also those of hidden keys, as a mask that is added leaves them; blank: NaN becomes 0.
    """
    if plan.config.pooling != "dot" or plan.config.dtype == "bfloat16" or (hidden_too and not plan.hiding):
        return None
    unscaled, softmax = plan.scores, plan.softmax

    def scores(plan: Plan, q: Array, k: Array) -> Array:
        right = unscaled(plan, q, k)
        products = (right / plan.scale).astype(np.float16).astype(right.dtype)
        return np.where(np.isinf(products).any(), products * plan.scale, right).astype(right.dtype)

    def spread(plan: Plan, scores: Array, visible: Array) -> Array:
        lost = (np.isposinf(scores) & (visible | hidden_too)).any(3, keepdims=True)
        weights = np.where(lost, np.nan, softmax(plan, scores, visible))
        return (np.nan_to_num(weights) if blank else weights).astype(scores.dtype)

    return replace(plan, scores=scores, softmax=spread)


@softmax_change(lambda plan: plan.hiding)
def hide_after_softmax(right: Any, plan: Plan, scores: Array, visible: Array) -> Array:
    """Blank hidden keys after the softmax over all keys, so that weights do not add up to 1."""
    return np.where(visible, pieces.softmax_of_all(plan, scores), 0)


def lowest_for_each(together: frozenset[str], plan: Plan) -> Plan | None:
    """Add the lowest number once for each condition that hides a key; together: conditions that are one mask."""
    masks = [frozenset({name}) for name in plan.hiding if name not in together]
    masks += [together] if together & plan.hiding.keys() else []
    if len(masks) < 2 or not together <= plan.hiding.keys():
        return None

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        for mask in masks:
            seen = plan.visible(mask & plan.hiding.keys())
            scores = np.where(seen, scores, scores + np.finfo(scores.dtype).min)
        return pieces.softmax_of_all(plan, scores)

    return replace(plan, softmax=softmax)


def without_rescaling(size: int, sum_too: bool, plan: Plan) -> Plan:
    """Sum blocks of keys one after the other, each by its largest score so far; sum_too: the sum of weights, too."""
    right, right_sum = plan.softmax, plan.log_sum_exp

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        if size >= scores.shape[3]:  # one block alone
            return right(plan, scores, visible)
        shares, _, sums = sum_blocks(size, sum_too, plan, scores, visible)
        return (shares / np.where(sums == 0, 1, sums)).astype(scores.dtype)

    def log_sum_exp(plan: Plan, scores: Array, visible: Array) -> Array:
        if size >= scores.shape[3]:
            return right_sum(plan, scores, visible)
        _, largest, sums = sum_blocks(size, sum_too, plan, scores, visible)
        return largest + np.log(sums)

    return replace(plan, softmax=softmax, log_sum_exp=log_sum_exp)


def sum_blocks(size: int, sum_too: bool, plan: Plan, scores: Array, visible: Array) -> tuple[Array, Array, Array]:
    """Return exponentials less the largest score so far (B, H, Q, K), the largest, and their sum, (B, H, Q, 1)."""
    K = scores.shape[-1]
    low = np.where(visible, scores, -np.inf).astype(scores.dtype)
    largest = np.maximum.accumulate(np.maximum.reduceat(low, range(0, K, size), -1), -1)  # (B, H, Q, blocks)
    largest = np.maximum(largest, np.finfo(scores.dtype).min)
    shares = np.exp(low - np.repeat(largest, size, -1)[..., :K])
    counted = pieces.beside_sinks(plan, shares if sum_too else np.exp(low - largest[..., -1:]), 0)
    if "sinks" in plan.weights:  # which are added to the sum last
        counted[..., -1:] = np.exp(pieces.widen(plan.weights["sinks"])[:, None, None] - largest[..., -1:])
    return shares, largest[..., -1:], counted.sum(-1, keepdims=True)


OF_NAN = (
    Mistake("rows without keys are NaN", "the softmax of a row of minus infinity divides 0 by 0",
            "give 0 to a query that sees no key: divide by the sum only where it is not 0", ("weights",),
            one(divide_by_nothing)),
    Mistake("dot products overflow float16", "they are made in float16 and scaled afterwards: what is above 65504 is "
            "infinite, and its row NaN",
            "scale queries before the dot products, or make these in float32", ("scores", "weights"),
            {f"{keys}{', and NaN becomes 0' * blank}": partial(overflowing, hidden, blank)
             for keys, hidden in (("of keys that are seen", False), ("of hidden keys, too", True))
             for blank in (False, True)}, rare=True),
    Mistake("NaN in padding comes through", "hidden values are multiplied by 0, and 0 * NaN is NaN",
            "set hidden values to 0 before the weights multiply them", ("pooled",),
            one(partial(replace, blanked=False))),
)  # fmt: skip


OF_SOFTMAX = (
    Mistake("the softmax is over another axis", "weights add up to 1 over queries or heads, not keys",
            "take the softmax over the last axis of scores (B, H, Q, K), that of keys", ("weights",),
            {how: partial(replace, axis=axis, rows=slice(None))
             for how, axis in (("over queries", 2), ("over heads", 1))}),
    Mistake("hidden keys are blanked after the softmax", "weights do not add up to 1",
            "set hidden scores to minus infinity before the softmax", ("weights",),
            one(hide_after_softmax)),
    Mistake("weights are averaged over the heads", "every head pools with the mean of all weights",
            "let each head pool with its own weights", ("weights",),
            one(partial(replace, after=lambda X: np.broadcast_to(X.mean(1, keepdims=True), X.shape)))),
    Mistake("rows without keys are uniform", "a query that sees no key sees all padding alike, as in the book",
            "give 0 to a query that sees no key",
            ("weights",), {"": partial(uniform_over, True), "by its scores": partial(uniform_over, False)}),
    Mistake("weak mask fill", "hidden scores get a number that is not low enough, or add it",
            "set hidden scores to minus infinity before the softmax, or to `finfo.min`", ("weights",),
            {f"{fill:g}{', added' * added}": partial(fill_hidden, fill, added) for fill in (-np.inf, *FILLS, *SMALL)
             for added in (False, True) if not added or fill in FILLS}),
    Mistake("booleans are added to the scores", "True adds 1 where a key is seen, and False hides nothing",
            "add 0 where the mask is True and minus infinity where it is False",
            ("weights",), {"": partial(add_as_numbers, None), PARTLY: in_part(partial(add_as_numbers, PADDING))}),
    Mistake("hidden scores are capped", "the mask comes before the cap, which makes minus the cap of minus infinity",
            "cap the scores first, then hide keys",
            ("weights",), {"": partial(cap_hidden, None, False),
                           PARTLY: in_part(partial(cap_hidden, PADDING, False))}),
    Mistake("the cap comes after the bias and the mask", "as ONNX' `Attention` first had it: the bias is capped, and "
            "hidden keys have the score minus the cap",
            "cap the scaled dot products first, then add the bias and hide keys", ("scores", "weights"),
            {"": partial(cap_hidden, None, True), PARTLY: in_part(partial(cap_hidden, PADDING, True))}),
    Mistake("1 is added to the sum of the softmax", "weights add up to less than 1, as beside a sink that is not there",
            "divide by the sum of the exponentials alone",
            ("weights",), {"": partial(with_one_more, False),
                           "after the largest is subtracted": partial(with_one_more, True)}),
    Mistake("the lowest number is added twice", "two masks add `finfo.min`: the sum is minus infinity",
            "join masks by `and` first, then set hidden scores once", ("weights",),
            {"for each mask": partial(lowest_for_each, frozenset()),
             "causal order and window are one mask": partial(lowest_for_each, frozenset({"order", "window"}))}),
    Mistake("the accumulator of blocks is not rescaled", "earlier blocks of keys keep the scale of their own maximum",
            "multiply accumulator and sum by exp(old maximum - new maximum) at every block",
            ("weights",),
            {f"blocks of {size}{', nor the sum of weights' * sum_too}": partial(without_rescaling, size, sum_too)
             for size in BLOCKS for sum_too in (False, True)}),
)  # fmt: skip


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


SINK_BLOCKS = (*range(2, 17), 32, 64, 128, 256, 512)  # keys
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
            ("weights",), {f"blocks of {size}": partial(by_visits, size) for size in SINK_BLOCKS}, rare=True),
)  # fmt: skip
