"""Known mistakes in kernels of texts that are packed into one row: which keys a text has, and its log-sum-exp.

A plan numbers the texts of queries and keys by segments that rise from 0. Letters as in the lessons; N texts.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Change, Mistake, only_where
from mha.parity.diagnosis.mistakes.of_tiles import with_sums_of
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.pipeline.plan import Plan, replace

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


def with_key_before(queries: Ends, keys: Ends) -> tuple[Ends, Ends]:
    """Let the keys of texts begin one too early."""
    return queries, Ends(np.maximum(keys.first - 1, 0), keys.last)


def without_last(every: bool, query_too: bool, queries: Ends, keys: Ends) -> tuple[Ends, Ends]:
    """Leave out the last key of the last text, or of every one; query_too: and its last query."""
    short = every | (np.arange(len(keys.last)) == len(keys.last) - 1)
    return queries._replace(last=queries.last - (short & query_too)), keys._replace(last=keys.last - short)


def sums_of_other_rows(order: Callable[[Ends, Array, Array], Array], plan: Plan) -> Plan:
    """Give each row the log-sum-exp of another; order: from the ends of texts, and each row's text and own number."""
    right, text = plan.log_sum_exp, plan.segments[0]
    rows = np.arange(len(text))
    chosen = np.clip(order(ends_of(plan.segments, 1 + text.max()), text, rows), 0, len(rows) - 1)  # (Q,)
    return replace(plan, rows=slice(None), log_sum_exp=lambda plan, X, visible: right(plan, X, visible)[:, :, chosen])


def of_neighbour(by: int, ends: Ends, text: Array, rows: Array) -> Array:
    """Return the rows at the same places of the text so many behind, (Q,)."""
    return rows + (np.roll(ends.first, -by) - ends.first)[text]


def in_reverse(ends: Ends, text: Array, rows: Array) -> Array:
    """Return the rows as far from the ends of texts as these are from their beginnings, (Q,)."""
    return (ends.first + ends.last)[text] - 1 - rows


ROWS: dict[str, Callable[[Ends, Array, Array], Array]] = {
    "of the text before": partial(of_neighbour, -1),
    "of the text behind": partial(of_neighbour, 1),
    "in reverse": in_reverse,
}

OF_TEXTS = only_where(
    lambda plan: "segments" in plan.hiding,
    Mistake("a text sees the one before it", "its keys begin one too early, at the last of the text before",
            "begin the keys of text n at cu_seqlens_k[n], and hide those before", ("weights",),
            by_cuts({"": with_key_before})),
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
