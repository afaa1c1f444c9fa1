"""Known mistakes with segments, the texts that are packed into one row."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mha.parity.diagnosis.mistakes.equivalent_masks import anywhere, in_part
from mha.parity.diagnosis.mistakes.mistake import Mistake, hiding, one
from mha.parity.diagnosis.mistakes.of_hiding import hide_by_rows, set_field
from mha.parity.diagnosis.pipeline.pieces import CONDITIONS, Array
from mha.parity.diagnosis.pipeline.plan import OFFSETS, Plan, replace


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
    made = None if plan.positions is None and plan.key_positions is None else ignore(padding, plan)
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


def move_segments(by: int, plan: Plan) -> Plan | None:
    """Give each key the segment of another one, so many places before it."""
    return set_field("segments", "key_segments", lambda plan: np.roll(plan.key_segments, by, 1), plan)


def begin_later(by: int, plan: Plan) -> Plan | None:
    """Let each text begin so many tokens later, and the first where it does; order goes by rows, as it does there."""
    if "segments" not in plan.hiding:
        return None
    own, keys = (shift_numbers(by, X) for X in (plan.segments, plan.key_segments))
    return in_rows(replace(plan, segments=own, key_segments=keys))


def number_from_one(plan: Plan) -> Plan | None:
    """Take segment 0 as padding."""
    above = {"key_segments": lambda plan: plan.key_segments[:, None, None] > 0}
    return set_field("segments", "hiding", lambda plan: plan.hiding | above, plan)


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
            {"one later": in_part(partial(move_segments, 1)), "one earlier": in_part(partial(move_segments, -1))}),
    Mistake("texts begin beside their first token", "the segments of queries and keys are those of their neighbours",
            "begin each text at its first token: rows cu_seqlens[n] <= i < cu_seqlens[n + 1]",
            ("weights",),
            {"one later": anywhere(partial(begin_later, 1)), "one earlier": anywhere(partial(begin_later, -1))}),
    Mistake("segment 0 is padding", "texts are numbered from 1 on in the port",
            "hide keys whose segment is below 0, and no others", ("weights",),
            one(anywhere(number_from_one))),
    Mistake("padding is a segment like others", "tokens of padding see padding: a number below 0 is compared like any",
            "hide keys whose segment is below 0, also from queries of that segment",
            ("weights",), one(partial(hiding, "key_segments", None))),
)  # fmt: skip
