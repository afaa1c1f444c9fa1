"""Known mistakes in kernels: of blocks of keys and padded sizes, and of texts that are packed into one row.

A plan numbers the texts of queries and keys by segments that rise from 0. Letters as in the lessons; N texts.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Change, Mistake, around, one, only_where, softmax_change, with_weights
from mha.parity.diagnosis.mistakes.of_masks import change_array
from mha.parity.diagnosis.pipeline import pieces
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.pipeline.plan import Plan, replace

Piece = Callable[..., Array]
BLOCKS = (16, 32, 64, 128, 256, 512)  # keys
TILES = ((64, 32), (128, 64), (128, 32))  # queries, keys
WIDTHS: dict[str, Callable[[int], int]] = {
    **{f"a multiple of {n}": partial(lambda n, d: -(-d // n) * n, n) for n in (8, 16, 32, 64, 128)},
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
    n = -plan.num_keys % size

    def softmax(right: Piece, plan: Plan, scores: Array, visible: Array) -> Array:
        low = np.where(visible, scores, -np.inf)
        largest = np.maximum(low.max(-1, keepdims=True), np.finfo(scores.dtype).min)
        sums = np.exp(pieces.beside_sinks(plan, low) - largest).sum(-1, keepdims=True)
        with np.errstate(over="ignore"):
            return (right(plan, scores, visible) * (sums / (sums + n * np.exp(-largest)))).astype(scores.dtype)

    made = around("log_sum_exp", lambda right, *given: np.logaddexp(right(*given), math.log(n)), plan)
    return around("softmax", softmax, made) if n else None


def overlapping(size: int, early: bool, plan: Plan) -> Plan | None:
    """Count the first key of each block but the first twice, or the last one of each but the last."""
    if size >= plan.num_keys:
        return None
    twice = np.where((np.arange(plan.num_keys) + early) % size, 0, math.log(2))
    twice[-1 if early else 0] = 0  # no block is beside it

    def with_twice(right: Piece, plan: Plan, X: Array, visible: Array) -> Array:
        return right(plan, (X + twice).astype(X.dtype), visible)

    return around("softmax", with_twice, around("log_sum_exp", with_twice, plan))


def padded_scale(width: Callable[[int], int], plan: Plan) -> Plan | None:
    """Take the root of the padded width of a head for that of its width."""
    d = plan.config.key_dim
    return None if plan.config.scale is not None or width(d) == d else replace(plan, scale=width(d) ** -0.5)


def of_first(axis: int, plan: Plan, X: Array) -> Array | None:
    """Give all heads (axis 1) or samples (axis 0) the mask or the bias of the first."""
    return None if X.shape[axis] == 1 else X.take([0], axis)


@softmax_change()
def without_maximum(right: Any, plan: Plan, scores: Array, visible: Array) -> Array:
    """Take exponentials in float32 without subtracting the largest score."""
    low = pieces.beside_sinks(plan, np.where(visible, scores, -np.inf))
    exponentials = np.exp(low.astype(np.float32))
    sums = exponentials.sum(-1, keepdims=True)
    return (exponentials / sums)[..., : scores.shape[3]]


def exponentials_of(scores: Array, visible: Array) -> Array:
    """Return the exponentials of visible scores less the largest, (B, H, Q, K)."""
    low = np.where(visible, scores, -np.inf)
    return np.exp(low - low.max(-1, keepdims=True, initial=np.finfo(scores.dtype).min)).astype(scores.dtype)


def largest_visible(scores: Array, visible: Array) -> Array:
    """Return the largest visible score of each query, (B, H, Q, 1)."""
    return np.where(visible, scores, -np.inf).max(-1, keepdims=True, initial=-np.inf)


LSE: dict[str, Piece] = {  # functions of the right one, the plan, scores and what is visible
    "to base 2": lambda right, *given: right(*given) / math.log(2),
    "without its maximum": lambda right, plan, *scores: right(plan, *scores) - largest_visible(*scores),
    "the maximum alone": lambda right, plan, *scores: largest_visible(*scores),
    "the sum itself": lambda right, *given: np.exp(right(*given)),
}


def without_sinks(plan: Plan) -> Plan | None:
    """Leave sinks out of the logarithm of the sum."""
    if "sinks" not in plan.weights:
        return None
    right = plan.log_sum_exp
    return replace(plan, log_sum_exp=lambda plan, *scores: right(with_weights(plan, {"sinks": None}), *scores))


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
    return around(
        "log_sum_exp", lambda right, plan, *scores: np.where(written[plan.rows, :], right(plan, *scores), 0), plan
    )


def without_last_rows(size: int, plan: Plan) -> Plan | None:
    """Leave the queries of the last tile 0, which is not full."""
    rows = np.arange(plan.queries.shape[1])[:, None]
    written = rows < len(rows) // size * size  # (Q, 1)

    def softmax(right: Piece, plan: Plan, scores: Array, visible: Array) -> Array:
        return np.where(written[plan.rows, :], right(plan, scores, visible), 0).astype(scores.dtype)

    return None if written.all() else with_sums_of(written, around("softmax", softmax, plan))


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
            ("weights",), {"the mask": partial(change_array, "mask", partial(of_first, 1))}),
    Mistake("the bias of the first", "the bias is read without its axis of heads or samples",
            "read the bias by sample and head: stride 0 only where an axis has length 1", ("scores",),
            {f"of the first {what}": partial(change_array, "score_bias", partial(of_first, axis))
             for what, axis in (("head", 1), ("sample", 0))}),
    Mistake("no maximum is subtracted", "exponentials of large scores are infinite, all of small ones 0",
            "subtract the largest score of each row before the exponentials", ("weights",),
            one(without_maximum)),
    Mistake("weights are not divided by their sum", "they are the exponentials themselves",
            "divide what is pooled by the sum of exponentials at the end", ("weights",),
            one(partial(replace, softmax=lambda plan, *scores: exponentials_of(*scores)))),
    Mistake("another log-sum-exp", "it is not the natural logarithm of the sum of all exponentials",
            "return maximum + log(sum of exponentials), to base e, with sinks in the sum", ("weights",),
            {how: partial(around, "log_sum_exp", made) for how, made in LSE.items()}
            | {"without sinks": without_sinks}),
)  # fmt: skip
GRADIENTS_OF_TILES = (
    *only_where(
        lambda back: back.plan.groups not in (1, back.plan.heads),
        Mistake("gradients of shared heads are summed over others",
                "head h is taken for one of h % G, not h // (H / G)",
                "sum over r the gradients of heads g * (H / G) + r: reshape to (G, H / G)", (),
                one(partial(dataclasses.replace, unshare=lambda by_X, groups:  # (B, H, K, d) -> (B, G, K, d)
                            by_X.reshape(len(by_X), -1, groups, *by_X.shape[2:]).sum(1))))),
    Mistake("the gradient of values has weights that are not divided", "they are the exponentials themselves",
            "take exp(scores - log-sum-exp) for the weights", (),
            one(lambda back: dataclasses.replace(back, results=back.results | {
                "weights": exponentials_of(back.results["scores"], back.visible)}))),
)  # fmt: skip


REPLACED = "segments", "key_segments", "order", "window", "positions", "key_positions"  # conditions that hide


class Ends(NamedTuple):
    """Where each text begins, and where it ends, (N,)."""

    first: Array
    last: Array


Cut = Callable[[Ends, Ends], tuple[Ends, Ends]]  # from the right ends among queries and keys to those of a mistake


def ends_of(segments: Array, number: int) -> Ends:
    """Return where each of so many texts begins and ends; segments: of its tokens, (1, T)."""
    return Ends(*(np.searchsorted(segments[0], np.arange(number), side) for side in ("left", "right")))


def cut_otherwise(cut: Cut, moved: bool, lower_right: bool, plan: Plan) -> Plan:
    """Let texts begin and end elsewhere.

    moved: whether positions are counted from there, or from where texts should begin; lower_right: whether the last
    query of a text is at its last key, or the first one at its first.
    """
    text, Q, K = plan.segments[0], plan.segments.shape[1], plan.key_segments.shape[1]
    number = 1 + max(plan.segments.max(), plan.key_segments.max())
    right = ends_of(plan.segments, number), ends_of(plan.key_segments, number)
    queries, keys = (Ends(*(X[text, None] for X in ends)) for ends in cut(*right))  # of each query, (Q, 1)
    begun, placed = (queries, keys) if moved else (Ends(*(X[text, None] for X in ends)) for ends in right)
    rows, columns = np.arange(Q)[:, None], np.arange(K)
    ahead = columns - placed.first - (rows - begun.first)  # (Q, K): how far a key is behind its query
    if lower_right:
        ahead = ahead - (placed.last - placed.first) + (begun.last - begun.first)
    left, ahead_by = plan.window if "window" in plan.hiding else (None, None)
    bounds = (left, -ahead), (ahead_by, ahead), (0 if "order" in plan.hiding else None, ahead)
    seen, written = (keys.first <= columns) & (columns < keys.last), rows < queries.last  # (Q, K), (Q, 1)
    seen = seen & written
    for bound, far in bounds:
        seen = seen if bound is None else seen & (far <= bound)
    kept = {name: X for name, X in plan.hiding.items() if name not in REPLACED}
    made = replace(plan, hiding=kept | {"segments": lambda plan: seen[None, None]})
    return with_sums_of(written, made)


def by_cuts(cuts: Mapping[str, Cut]) -> dict[str, Change]:
    """Make forms of each cut: one where nothing goes by positions, and one for each way to count these."""

    def cut_where(ordered: bool, cut: Cut, moved: bool, lower_right: bool, plan: Plan) -> Plan | None:
        return cut_otherwise(cut, moved, lower_right, plan) if ordered == bool(ORDERED & plan.hiding.keys()) else None

    return {
        ", ".join(filter(None, (how, words))): partial(cut_where, bool(words), cut, *place)
        for how, cut in cuts.items() for words, place in PLACES.items()
    }  # fmt: skip


ORDERED = {"order", "window"}
PLACES = {  # how positions are counted: moved, lower_right
    "": (False, False),
    "upper left of the right keys": (False, False),
    "upper left of these keys": (True, False),
    "lower right of the right keys": (False, True),
    "lower right of these keys": (True, True),
}


def without_last(every: bool, query_too: bool, queries: Ends, keys: Ends) -> tuple[Ends, Ends]:
    """Leave out the last key of the last text, or of every one; query_too: and its last query."""
    short = every | (np.arange(len(keys.last)) == len(keys.last) - 1)
    return queries._replace(last=queries.last - (short & query_too)), keys._replace(last=keys.last - short)


def sums_of_other_rows(order: Callable[[Ends, Array, Array], Array], plan: Plan) -> Plan:
    """Give each row the log-sum-exp of another; order: from the ends of texts, and each row's text and own number."""
    text = plan.segments[0]
    rows = np.arange(len(text))
    chosen = np.clip(order(ends_of(plan.segments, 1 + text.max()), text, rows), 0, len(rows) - 1)  # (Q,)
    return around("log_sum_exp", lambda right, *given: right(*given)[:, :, chosen], replace(plan, rows=slice(None)))


def of_neighbour(by: int, ends: Ends, text: Array, rows: Array) -> Array:
    """Return the rows at the same places of the text so many behind, (Q,)."""
    return rows + (np.roll(ends.first, -by) - ends.first)[text]


ROWS: dict[str, Callable[[Ends, Array, Array], Array]] = {
    "of the text before": partial(of_neighbour, -1),
    "of the text behind": partial(of_neighbour, 1),
    "in reverse": lambda ends, text, rows: (ends.first + ends.last)[text] - 1 - rows,
}

OF_TEXTS = only_where(
    lambda plan: "segments" in plan.hiding,
    Mistake("a text sees the one before it", "its keys begin one too early, at the last of the text before",
            "begin the keys of text n at cu_seqlens_k[n], and hide those before", ("weights",),
            by_cuts({"": lambda queries, keys: (queries, Ends(np.maximum(keys.first - 1, 0), keys.last))})),
    Mistake("a text lacks its last token", "its keys end one too early",
            "end the keys of text n before cu_seqlens_k[n + 1], not one earlier", ("weights",),
            by_cuts({f"{what} of {where} text": partial(without_last, every, query)
                     for what, query in (("the key", False), ("query and key", True))
                     for where, every in (("the last", False), ("each", True))})),
    Mistake("keys are cut where queries are", "texts begin and end among keys where they do among queries",
            "cut keys and values at cu_seqlens_k, and queries at cu_seqlens_q", ("weights",),
            by_cuts({"": lambda queries, keys: (queries, queries)})),
    Mistake("the log-sum-exp of other rows", "a row has that of another row of its text, or of another text",
            "write the log-sum-exp of row i of text n to place cu_seqlens_q[n] + i", ("weights",),
            {how: partial(sums_of_other_rows, order) for how, order in ROWS.items()}),
)  # fmt: skip
