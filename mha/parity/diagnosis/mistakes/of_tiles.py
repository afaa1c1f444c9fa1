"""Known mistakes in kernels, which take the keys in blocks, and pad heads and blocks to sizes that fit."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Mistake, one, only_where, softmax_change
from mha.parity.diagnosis.pipeline import pieces
from mha.parity.diagnosis.pipeline.backward import Backward
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.pipeline.plan import Plan, replace


def next_multiple(n: int, d: int) -> int:
    """Return the least multiple of n that is not smaller than d."""
    return -(-d // n) * n


BLOCKS = (16, 32, 64, 128, 256, 512)  # keys
TILES = ((64, 32), (128, 64), (128, 32))  # queries, keys
WIDTHS: dict[str, Callable[[int], int]] = {
    **{f"a multiple of {n}": partial(next_multiple, n) for n in (8, 16, 32, 64, 128)},
    "a power of two": lambda d: 1 << (d - 1).bit_length(),
}


def numbers(plan: Plan) -> tuple[Array, Array]:
    """Return the numbers of the queries to compute, (Q, 1), and of the keys, (K,)."""
    return np.arange(plan.queries.shape[1])[plan.rows, None], np.arange(plan.num_keys)


def hide_too(seen: Callable[[Array, Array, int], Array], plan: Plan) -> Plan | None:
    """Hide more keys; seen: a function of the numbers of queries and keys, and of the number of keys."""
    if seen(*numbers(plan), plan.num_keys).all():
        return None
    return replace(plan, hiding=plan.hiding | {"tiles": lambda plan: seen(*numbers(plan), plan.num_keys)[None, None]})


def in_last_block(size: int, on_diagonal: bool, queries: Array, keys: Array, K: int) -> Array:
    """Return which keys are in the last block: of all, or of those up to the diagonal, (Q or 1, K)."""
    last = np.full((1, 1), (K - 1) // size)
    return keys // size == (np.minimum(last, queries // size) if on_diagonal else last)


def before_last_block(size: int, even_full: bool, queries: Array, keys: Array, K: int) -> Array:
    """Return which keys are not in the last block, (1, K); even_full: whether it counts as such if it is full."""
    return (keys < ((K - 1) // size if even_full else K // size) * size)[None]


def before_diagonal(tile: int, size: int, queries: Array, keys: Array, K: int) -> Array:
    """Return which keys are in blocks that begin before those of the diagonal, (Q, K); tile: of queries."""
    return keys < queries // tile * tile + (0 if tile == size else size)


def with_last_values(size: int, plan: Plan) -> Plan | None:
    """Pool the values of the last block alone, divided by the sum over all."""
    last = in_last_block(size, False, *numbers(plan), plan.num_keys)
    return None if last.all() else replace(plan, after=lambda weights: np.where(last, weights, 0).astype(weights.dtype))


def padding_counts(size: int, plan: Plan) -> Plan | None:
    """Let each key that pads the last block have the score 0, and a value of 0."""
    right, right_sum, n = plan.softmax, plan.log_sum_exp, -plan.num_keys % size

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        low = np.where(visible, scores, -np.inf)
        largest = np.maximum(low.max(-1, keepdims=True), np.finfo(scores.dtype).min)
        sums = np.exp(pieces.beside_sinks(plan, low) - largest).sum(-1, keepdims=True)
        with np.errstate(over="ignore"):
            return (right(plan, scores, visible) * (sums / (sums + n * np.exp(-largest)))).astype(scores.dtype)

    def log_sum_exp(plan: Plan, scores: Array, visible: Array) -> Array:
        return np.logaddexp(right_sum(plan, scores, visible), math.log(n))

    return replace(plan, softmax=softmax, log_sum_exp=log_sum_exp) if n else None


def overlapping(size: int, early: bool, plan: Plan) -> Plan | None:
    """Count the first key of each block but the first twice, or the last one of each but the last."""
    if size >= plan.num_keys:
        return None
    twice = np.where((np.arange(plan.num_keys) + early) % size, 0, math.log(2))
    twice[-1 if early else 0] = 0  # no block is beside it

    def with_twice(right: Callable[..., Array]) -> Callable[..., Array]:
        return lambda plan, X, visible: right(plan, (X + twice).astype(X.dtype), visible)

    return replace(plan, softmax=with_twice(plan.softmax), log_sum_exp=with_twice(plan.log_sum_exp))


def padded_scale(width: Callable[[int], int], plan: Plan) -> Plan | None:
    """Take the root of the padded width of a head for that of its width."""
    d = plan.config.key_dim
    return None if plan.config.scale is not None or width(d) == d else replace(plan, scale=width(d) ** -0.5)


def of_first(field: str, axis: int, plan: Plan) -> Plan | None:
    """Give all heads (axis 1) or samples (axis 0) the mask or the bias of the first."""
    X = getattr(plan, field)
    return None if X is None or X.shape[axis] == 1 else replace(plan, **{field: X[:1] if axis == 0 else X[:, :1]})


@softmax_change()
def without_maximum(right: Any, plan: Plan, scores: Array, visible: Array) -> Array:
    """Take exponentials in float32 without subtracting the largest score."""
    low = pieces.beside_sinks(plan, np.where(visible, scores, -np.inf))
    exponentials = np.exp(low.astype(np.float32))
    sums = exponentials.sum(-1, keepdims=True)
    return (exponentials / sums)[..., : scores.shape[3]]


@softmax_change()
def not_divided(right: Any, plan: Plan, scores: Array, visible: Array) -> Array:
    """Return exponentials less the largest score, not divided by their sum."""
    return exponentials_of(scores, visible)


def exponentials_of(scores: Array, visible: Array) -> Array:
    """Return the exponentials of visible scores less the largest, (B, H, Q, K)."""
    low = np.where(visible, scores, -np.inf)
    return np.exp(low - low.max(-1, keepdims=True, initial=np.finfo(scores.dtype).min)).astype(scores.dtype)


def largest_visible(scores: Array, visible: Array) -> Array:
    """Return the largest visible score of each query, (B, H, Q, 1)."""
    return np.where(visible, scores, -np.inf).max(-1, keepdims=True, initial=-np.inf)


LSE: dict[str, Callable[[Array, Array, Array], Array]] = {  # functions of the right one, scores and what is visible
    "to base 2": lambda right, scores, visible: right / math.log(2),
    "without its maximum": lambda right, scores, visible: right - largest_visible(scores, visible),
    "the maximum alone": lambda right, scores, visible: largest_visible(scores, visible),
    "the sum itself": lambda right, scores, visible: np.exp(right),
}


def other_log_sum(made: Callable[[Array, Array, Array], Array], plan: Plan) -> Plan:
    """Give another number for the logarithm of the sum of exponentials."""
    right = plan.log_sum_exp
    return replace(plan, log_sum_exp=lambda plan, X, visible: made(right(plan, X, visible), X, visible))


def without_sinks(plan: Plan) -> Plan | None:
    """Leave sinks out of the logarithm of the sum."""
    if "sinks" not in plan.weights:
        return None
    right, others = plan.log_sum_exp, {name: X for name, X in plan.weights.items() if name != "sinks"}
    return replace(plan, log_sum_exp=lambda plan, X, visible: right(replace(plan, weights=others), X, visible))


def share_other_heads(back: Backward) -> Backward | None:
    """Sum the gradients of heads (r, g) where they are (g, r)."""
    if back.plan.groups in (1, back.plan.heads):
        return None

    def unshare(by_X: Array, groups: int) -> Array:
        B, H, K, d = by_X.shape
        return by_X.reshape(B, H // groups, groups, K, d).sum(1)  # (B, G, K, d)

    return dataclasses.replace(back, unshare=unshare)


def with_weights_not_divided(back: Backward) -> Backward:
    """Take exponentials for attention weights in the gradient of values."""
    weights = exponentials_of(back.results["scores"], back.visible)
    return dataclasses.replace(back, results=back.results | {"weights": weights})


def by_blocks(change: Callable[..., Plan | None]) -> dict[str, Any]:
    """Make the forms of a mistake for each size of blocks."""
    return {f"blocks of {size}": partial(change, size) for size in BLOCKS}


def hiding_blocks(seen: Callable[..., Array], **words: bool) -> dict[str, Any]:
    """Make the forms of a mistake that hides blocks of keys, for each size and each switch of it in words."""
    return {
        f"blocks of {size}{how and f', {how}'}": partial(hide_too, partial(seen, size, switch))
        for size in BLOCKS for how, switch in {name.replace("_", " "): X for name, X in words.items()}.items()
    }  # fmt: skip


def with_sums_of(written: Array, plan: Plan) -> Plan:
    """Leave the log-sum-exp 0 in rows that are not written, of (Q, 1)."""
    right = plan.log_sum_exp
    return replace(plan, log_sum_exp=lambda plan, *scores: np.where(written[plan.rows, :], right(plan, *scores), 0))


def without_last_rows(size: int, plan: Plan) -> Plan | None:
    """Leave the queries of the last tile 0, which is not full."""
    right, rows = plan.softmax, np.arange(plan.queries.shape[1])[:, None]
    written = rows < len(rows) // size * size  # (Q, 1)

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        return np.where(written[plan.rows, :], right(plan, scores, visible), 0).astype(scores.dtype)

    return None if written.all() else with_sums_of(written, replace(plan, softmax=softmax))


OF_TILES = (
    Mistake("only the last block of keys counts", "each block takes the place of what was added up before",
            "add each block to what was added up before: acc = acc * factor + p @ v",
            ("weights",), hiding_blocks(in_last_block, of_all=False, up_to_the_diagonal=True)
            | {f"blocks of {size}, divided by the sum of all": partial(with_last_values, size) for size in BLOCKS}),
    Mistake("the last block of keys is left out", "the number of blocks is rounded down, or one too small",
            "round the number of blocks up: (K + size - 1) // size",
            ("weights",), hiding_blocks(before_last_block, if_it_is_in_part=False, always=True)),
    Mistake("the last rows are not written", "the last tile of queries, which is not full, stays 0",
            "round the number of tiles up: (Q + size - 1) // size, and write the rows below Q", ("weights",),
            by_blocks(without_last_rows)),
    Mistake("the padding of the last block counts", "keys that fill it up have the score 0, and their share",
            "set the scores of keys j >= K to minus infinity in the last block",
            ("weights",), by_blocks(padding_counts)),
    Mistake("blocks of keys overlap by a key", "it counts twice",
            "take keys n * size <= j < (n + 1) * size in block n", ("weights",),
            {f"blocks of {size}, {which}": partial(overlapping, size, early) for size in BLOCKS
             for which, early in (("the first of each", False), ("the last of each", True))}),
    *only_where(
        lambda plan: "order" in plan.hiding,
        Mistake("blocks are skipped too early", "a causal order ends with the blocks before the diagonal",
                "go on to the block that holds key offset + i of the tile's last query i", ("weights",),
                {f"tiles of {tile} queries and {size} keys": partial(hide_too, partial(before_diagonal, tile, size))
                 for tile, size in (*zip(BLOCKS, BLOCKS, strict=True), *TILES)})),
    Mistake("the scale of padded heads", "it is that of the width to which heads are padded",
            "multiply the dot products by 1 / sqrt(d), d the width before the padding", ("scores",),
            {how: partial(padded_scale, width) for how, width in WIDTHS.items()}),
    Mistake("all heads have the mask of the first", "the mask, or the bias, is read without its axis of heads",
            "read the mask by head: (b, h, i, j), with stride 0 only where an axis has length 1",
            ("weights",), {"the mask": partial(of_first, "mask", 1)}),
    Mistake("the bias of the first", "the bias is read without its axis of heads or samples",
            "read the bias by sample and head: stride 0 only where an axis has length 1", ("scores",),
            {"of the first head": partial(of_first, "score_bias", 1),
             "of the first sample": partial(of_first, "score_bias", 0)}),
    Mistake("no maximum is subtracted", "exponentials of large scores are infinite, all of small ones 0",
            "subtract the largest score of each row before the exponentials", ("weights",),
            one(without_maximum)),
    Mistake("weights are not divided by their sum", "they are the exponentials themselves",
            "divide what is pooled by the sum of exponentials at the end", ("weights",),
            one(not_divided)),
    Mistake("another log-sum-exp", "it is not the natural logarithm of the sum of all exponentials",
            "return maximum + log(sum of exponentials), to base e, with sinks in the sum", ("weights",),
            {how: partial(other_log_sum, made) for how, made in LSE.items()} | {"without sinks": without_sinks}),
)  # fmt: skip
GRADIENTS_OF_TILES = (
    Mistake("gradients of shared heads are summed over others", "head h is taken for one of h % G, not h // (H / G)",
            "sum over r the gradients of heads g * (H / G) + r: reshape to (G, H / G)",
            (), one(share_other_heads)),
    Mistake("the gradient of values has weights that are not divided", "they are the exponentials themselves",
            "take exp(scores - log-sum-exp) for the weights", (),
            one(with_weights_not_divided)),
)  # fmt: skip
