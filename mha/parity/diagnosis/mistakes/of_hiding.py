"""Known mistakes in what hides keys: lengths, mask, causal order, window, chunks, and the texts packed into one row."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mha.parity.diagnosis.mistakes.equivalent_masks import anywhere, in_part
from mha.parity.diagnosis.mistakes.mistake import Change, Mistake, hiding, one, only_where
from mha.parity.diagnosis.mistakes.of_masks import (  # fmt: skip
    MOVED,
    SINGLE,
    change_all,
    change_mask,
    move_mask,
    of_padding,
    transpose_mask,
    without_padding,
)
from mha.parity.diagnosis.pipeline.pieces import CONDITIONS, Array
from mha.parity.diagnosis.pipeline.plan import OFFSETS, Plan, replace


def tile_lengths(plan: Plan) -> Array:
    """Return the lengths tiled, instead of repeated, for the heads: those of b * H + h."""
    B = len(plan.queries)
    return np.tile(plan.lengths[:, 0], (plan.heads, 1, 1)).reshape(B, plan.heads, -1, 1)  # (B, H, 1 or Q, 1)


def set_field(condition: str, field: str, value: Callable[[Plan], Any], plan: Plan) -> Plan | None:
    """Set a field of a plan in which a condition of this name hides keys."""
    return replace(plan, **{field: value(plan)}) if condition in plan.hiding else None


def hide_queries(plan: Plan) -> Plan | None:
    """Hide rows of queries, from the length on, instead of keys."""
    if "lengths" not in plan.hiding or plan.lengths.shape[2] > 1:
        return None
    rows = np.arange(plan.queries.shape[1])[:, None]  # (Q, 1)
    return hiding("lengths", lambda plan: rows < plan.lengths, plan)


def invert(name: str, plan: Plan) -> Plan | None:
    """Invert one condition for a key to be seen."""
    right = plan.hiding.get(name)
    return right and hiding(name, lambda plan: ~right(plan), plan)


def invert_mask(plan: Plan, X: Array) -> Array:
    """Take True as hide."""
    return ~X


def change_order(first: Callable[[Plan], Array]) -> Change:
    """Make a change of the positions of the first query for the causal order, or for that in a mask."""
    return anywhere(partial(set_field, "order", "order_offsets", first))


def change_window(change: Callable[[Any, Any], tuple[Any, Any]]) -> Change:
    """Make a change of a window's sides, or of that in a mask."""
    return anywhere(partial(set_field, "window", "window", lambda plan: change(*plan.window)))


def hide_by_rows(name: str, plan: Plan) -> Plan | None:
    """Let a condition go by the numbers of rows, where positions are given."""
    if name not in plan.hiding or not plan.places_are_given:
        return None
    right = plan.hiding[name]

    def condition(plan: Plan) -> Array:
        first: Any = np.full((1, 1), 0 if plan.kept_k is None else plan.kept_k.shape[2])  # slots come before all tokens
        return right(replace(plan, **dict.fromkeys(OFFSETS[1:], first), key_positions=None))

    return hiding(name, condition, plan)


def looking_ahead(plan: Plan) -> Plan | None:
    """Take a window as far ahead as back, in place of the causal order."""
    made = hiding("order", None, plan)
    return made and set_field("window", "window", lambda plan: plan.window[:1] * 2, made)


def resize(to_left: int, to_right: int, left: int | None, right: int | None) -> tuple[int | None, int | None]:
    """Make the sides of a window longer by so many; None stays None, and both if one of two cannot be changed."""
    longer = [side if side is None else max(0, side + by) for side, by in ((left, to_left), (right, to_right))]
    both = to_left != 0 and to_right != 0
    return (left, right) if both and (longer[0] == left or longer[1] == right) else (longer[0], longer[1])


OF_HIDING = (
    Mistake("the mask is inverted", "True is taken as hide",
            "hide keys where the mask is False: True = may be seen", ("weights",),
            {"": partial(invert, "mask"), "that of the lengths": partial(invert, "lengths"),
             "that of the causal order": in_part(partial(invert, "order")),
             "that of the padding": partial(of_padding, invert_mask),
             "all of it": partial(change_all, invert_mask, but=SINGLE)}),
    Mistake("the mask is ignored", "no mask is applied",
            "hide keys where the mask is False, before the softmax", ("weights",),
            {"": partial(hiding, "mask", None), "that of the bias": partial(hiding, "bias", None),
             "that of the padding": without_padding}),
    Mistake("the mask is moved", "each key has the mask of its neighbour",
            "apply column j of the mask to key j", ("weights",),
            {f"of the one {side}{more}": partial(change, partial(move_mask, by))
             for side, by in (("before", 1), ("after", -1))
             for more, change in (("", change_mask), (", all of it", partial(change_all, but=MOVED)))}),
    Mistake("the lengths are ignored", "padding is attended to",
            "hide keys j >= length, before the softmax", ("weights",),
            one(partial(hiding, "lengths", None))),
    Mistake("lengths are one too long", "key j = length is seen",
            "hide keys j >= length", ("weights",),
            one(anywhere(partial(set_field, "lengths", "lengths", lambda plan: plan.lengths + 1)))),
    Mistake("lengths are one too short", "key j = length - 1 is hidden",
            "hide keys j >= length, and no key before", ("weights",),
            one(anywhere(partial(set_field, "lengths", "lengths", lambda plan: plan.lengths - 1)))),
    Mistake("lengths are tiled, not repeated", "heads get the lengths of other samples",
            "repeat each length for the heads of its sample (repeat_interleave)", ("weights",),
            one(partial(set_field, "lengths", "lengths", tile_lengths))),
    Mistake("the padding mask is on the axis of queries", "it hides rows of queries instead of keys",
            "give the padding mask the shape (B, 1, 1, K), so that it hides columns", ("weights",),
            {"that of the lengths": hide_queries, "the mask is transposed": partial(change_mask, transpose_mask),
             "that of the padding": partial(of_padding, transpose_mask),
             "all of it is transposed": partial(change_all, transpose_mask, but=SINGLE)}),
    Mistake("causal order is ignored", "queries see what follows them",
            "compare key j with offset + i: hide j > offset + i", ("weights",),
            one(in_part(partial(hiding, "order", None)))),
    Mistake("causal order is reversed", "query i sees keys j >= i, as by `triu`",
            "hide keys j > i: keep the lower triangle, `tril`", ("weights",),
            one(in_part(partial(hiding, "order",
                                lambda plan: plan.key_places >= plan.query_places(plan.order_offsets))))),
    Mistake("causal order is aligned to the lower right", "the last query sees the last key",
            "compare key j with offset + i, not with i + K - Q: hide j > offset + i", ("weights",),
            one(change_order(lambda plan: 0 * plan.offsets + plan.num_keys - plan.queries.shape[1]))),
    Mistake("causal order is off by one", "query i sees keys j <= i + 1, or j < i",
            "compare key j with offset + i: hide j > offset + i, and no other", ("weights",),
            {"one too many": change_order(lambda plan: plan.order_offsets + 1),
             "one too few": change_order(lambda plan: plan.order_offsets - 1)}),
    Mistake("causal order begins again at every offset", "the offset is left out of the causal order",
            "compare key j with offset + i, not with i: hide j > offset + i", ("weights",),
            one(change_order(lambda plan: plan.order_offsets - plan.offsets))),
    Mistake("causal order goes by rows", "the positions that are given are left out of the causal order",
            "compare the positions of keys and queries, as they are given, not their rows", ("weights",),
            one(partial(hide_by_rows, "order"))),
    Mistake("padding at positions below 0 is seen", "keys there are not hidden",
            "hide keys whose position is below 0", ("weights",),
            one(partial(hiding, "key_positions", None))),
    Mistake("everything is seen", "nothing hides keys",
            "hide keys by all that the call says (lengths, mask, order), before the softmax", ("weights",),
            one(lambda plan: replace(plan, hiding={}) if plan.hiding else None)),
)  # fmt: skip


OF_WINDOWS = (
    Mistake("the window is symmetric", "queries look ahead as far as they look back",
            "give each side its own width: i - left <= j <= i + right", ("weights",),
            {"": change_window(lambda left, right: (left, right if left is None else left)),
             "and causal order is ignored": anywhere(looking_ahead)}),
    Mistake("the window only looks back", "queries do not look ahead",
            "let query i see keys up to i + right", ("weights",),
            one(change_window(lambda left, right: (left, 0)))),
    Mistake("the window is ignored on one side", "queries see all keys before them, or all after them",
            "limit both sides: i - left <= j <= i + right", ("weights",),
            {"to the left": change_window(lambda left, right: (left if right is None else None, right)),
             "to the right": change_window(lambda left, right: (left, right if left is None else None))}),
    *(Mistake(f"the window is one {change} {where}", what,
              "let query i see i - left <= j <= i + right, both ends included", ("weights",),
              one(change_window(partial(resize, by * to_left, by * to_right))))
      for where, to_left, to_right, sides in (("to the left", 1, 0, "before the query"),
                                              ("to the right", 0, 1, "after the query"),
                                              ("on both sides", 1, 1, "before and after the query"))
      for change, by, what in (("wider", 1, f"one key more {sides}"), ("narrower", -1, f"one key fewer {sides}"))),
    Mistake("the window is ignored", "queries see keys at any distance",
            "hide keys outside of i - left <= j <= i + right", ("weights",),
            one(in_part(partial(hiding, "window", None)))),
    Mistake("the window begins again at every offset", "the offset is left out of the window",
            "count the window from offset + i, not from i", ("weights",),
            one(partial(set_field, "window", "window_offsets", lambda plan: plan.window_offsets - plan.offsets))),
    Mistake("the window goes by rows", "the positions that are given are left out of the window",
            "count the window by the positions that are given, not by rows", ("weights",),
            one(partial(hide_by_rows, "window"))),
)  # fmt: skip


OF_CHUNKS = only_where(
    lambda plan: "chunk" in plan.hiding,
    Mistake("the chunks are ignored", "queries see keys of other chunks",
            "hide keys of other chunks: j // chunk != i // chunk", ("weights",),
            one(partial(hiding, "chunk", None))),
    Mistake("the chunk is one longer", "one position more in each",
            "divide positions by the size of a chunk itself: j // chunk == i // chunk", ("weights",),
            one(lambda plan: replace(plan, chunk=plan.chunk + 1))),
    Mistake("the chunk is one shorter", "one position fewer in each",
            "divide positions by the size of a chunk itself: j // chunk == i // chunk", ("weights",),
            one(lambda plan: replace(plan, chunk=max(1, plan.chunk - 1)))),
    Mistake("the chunk is counted from the query", "keys less than a chunk away are seen, as in a window",
            "compare the numbers of chunks: j // chunk == i // chunk", ("weights",),
            one(partial(hiding, "chunk",
                        lambda plan: np.abs(plan.key_places - plan.query_places(plan.chunk_offsets)) < plan.chunk))),
    Mistake("the chunks begin again at every offset", "the offset is left out of the chunks",
            "add the offset to i before it is divided by the size of a chunk", ("weights",),
            one(lambda plan: replace(plan, chunk_offsets=plan.chunk_offsets - plan.offsets))),
    Mistake("the chunks go by rows", "the positions that are given are left out of the chunks",
            "divide the positions that are given by the size of a chunk, not the rows", ("weights",),
            one(partial(hide_by_rows, "chunk"))),
)  # fmt: skip


def ignore(padding: bool, plan: Plan) -> Plan | None:
    """Drop the condition of segments; padding: whether padding stays hidden, which it has to have."""
    apart = hiding("segments", None, plan)
    if padding:
        return apart if "key_segments" in plan.hiding and (plan.key_segments < 0).any() else None
    return apart and (hiding("key_segments", None, apart) or apart)


def in_rows(plan: Plan) -> Plan:
    """Let order, window and chunks go by rows, if positions are given."""
    for name in ("order", "window", "chunk"):
        plan = hide_by_rows(name, plan) or plan
    return plan


def leaking(padding: bool, plan: Plan) -> Plan | None:
    """Ignore the segments, and let what hides go by rows, where positions begin again with each text."""
    made = ignore(padding, plan) if plan.places_are_given else None
    return made and in_rows(made)


def turning_by_rows(plan: Plan) -> Plan | None:
    """Ignore the segments and the positions, which begin again with each text, in the rotation, too."""
    if "segments" not in plan.hiding or plan.positions is None or (plan.frequencies is None and not plan.temperature):
        return None
    places = "segments", "key_segments", "positions", "key_positions"
    made = replace(plan, hiding={name: X for name, X in plan.hiding.items() if name not in places})
    offsets: dict[str, Any] = dict.fromkeys(OFFSETS, np.zeros((1, 1), int))
    return replace(made, positions=None, key_positions=None, **offsets)


def number_by_text(by_place: bool, plan: Plan) -> Plan | None:
    """Ignore the segments, and count positions from the first token of each text on, where none are given.

    by_place: whether order goes by them, too; else only what turns.
    """
    own, turns = plan.segments, plan.frequencies is not None or plan.temperature is not None
    if "segments" not in plan.hiding or plan.positions is not None or not np.array_equal(own, plan.key_segments):
        return None
    if not turns and not (by_place and "order" in plan.hiding):
        return None
    rows = np.arange(own.shape[1])
    starts = np.where(own != shift_numbers(1, own), rows, 0)  # (B or 1, Q)
    places = rows - np.maximum.accumulate(starts, 1)
    offsets: dict[str, Any] = dict.fromkeys(OFFSETS, places - rows)
    made = ignore(False, replace(plan, positions=places, key_positions=places, **offsets))
    return made if by_place else made and in_rows(made)


def keep_apart(plan: Plan) -> Plan | None:
    """Let tokens see their own text alone, which ends where positions begin again."""
    places = plan.positions
    if places is None or "segments" in plan.hiding or not np.array_equal(places, plan.key_positions):
        return None
    numbers = np.concatenate([0 * places[:, :1], (places[:, 1:] <= places[:, :-1]).cumsum(1)], 1)  # (B or 1, Q)
    kept = plan.hiding | {"segments": CONDITIONS["segments"]}
    return replace(plan, hiding=kept, segments=numbers, key_segments=numbers)


def compare_otherwise(how: Callable[[Array, Array], Array], plan: Plan) -> Plan | None:
    """Compare the segments of keys with those of queries in another way."""
    return hiding("segments", lambda plan: how(plan.key_segments[:, None, None], plan.segments[:, None, :, None]), plan)


def begin_later(by: int, plan: Plan) -> Plan | None:
    """Let each text begin so many tokens later, and the first where it does; order goes by rows, as it does there."""
    if "segments" not in plan.hiding:
        return None
    own, keys = (shift_numbers(by, X) for X in (plan.segments, plan.key_segments))
    return in_rows(replace(plan, segments=own, key_segments=keys))


def shift_numbers(by: int, X: Array) -> Array:
    """Take the numbers so many places before, (B or 1, T); at the end, the first or last one."""
    return np.asarray(X[:, np.clip(np.arange(X.shape[1]) - by, 0, X.shape[1] - 1)])


OF_SEGMENTS = (
    Mistake("the segments are ignored", "tokens see those of other texts in their row, and padding",
            "hide keys whose segment is not that of the query", ("weights",),
            {"": in_part(partial(ignore, False)), "but padding is hidden": in_part(partial(ignore, True))}),
    Mistake("texts see those before them", "segments are ignored, and order goes by rows, not by the positions that "
            "begin again with each text",
            "hide keys of other texts: compare segments as well as positions", ("q", "k", "weights"),
            {"": anywhere(partial(leaking, False)), "but padding is hidden": anywhere(partial(leaking, True)),
             "and the rotation goes by rows": anywhere(turning_by_rows),
             "where positions begin again": anywhere(partial(number_by_text, False)),
             "in the order of positions that begin again": anywhere(partial(number_by_text, True))}),
    Mistake("texts are kept apart", "tokens see those since positions began again alone, as if segments were given",
            "let tokens see the texts before theirs: no segments are given",
            ("weights",), one(keep_apart)),
    Mistake("other segments are seen", "segments are compared as lengths are, by their order",
            "compare segments by ==", ("weights",),
            {"earlier ones, too": in_part(partial(compare_otherwise, np.less_equal)),
             "later ones, too": in_part(partial(compare_otherwise, np.greater_equal))}),
    Mistake("the segments of keys are moved", "each key has the segment of its neighbour",
            "compare the segment of key j itself with that of query i", ("weights",),
            {how: in_part(partial(set_field, "segments", "key_segments",
                                  partial(lambda by, plan: np.roll(plan.key_segments, by, 1), by)))
             for how, by in (("one later", 1), ("one earlier", -1))}),
    Mistake("texts begin beside their first token", "the segments of queries and keys are those of their neighbours",
            "begin each text at its first token: rows cu_seqlens[n] <= i < cu_seqlens[n + 1]",
            ("weights",),
            {"one later": anywhere(partial(begin_later, 1)), "one earlier": anywhere(partial(begin_later, -1))}),
    Mistake("segment 0 is padding", "texts are numbered from 1 on in the port",
            "hide keys whose segment is below 0, and no others", ("weights",),
            one(anywhere(partial(set_field, "segments", "hiding", lambda plan: plan.hiding | {
                "key_segments": lambda plan: plan.key_segments[:, None, None] > 0})))),
    Mistake("padding is a segment like others", "tokens of padding see padding: a number below 0 is compared like any",
            "hide keys whose segment is below 0, also from queries of that segment",
            ("weights",), one(partial(hiding, "key_segments", None))),
)  # fmt: skip
