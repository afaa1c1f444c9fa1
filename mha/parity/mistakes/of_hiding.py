"""Known mistakes in what hides keys: lengths, mask, causal order, window."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mha.parity.mistakes.mistake import Mistake, hiding, one
from mha.parity.pipeline import pieces
from mha.parity.pipeline.pieces import Array
from mha.parity.pipeline.plan import Plan


def longer(by: int, plan: Plan) -> Array:
    """Whether key j is below a length that is longer by so many."""
    return plan.key_places < plan.lengths + by


def tiled(plan: Plan) -> Array:
    """Whether key j is below the length at b * H + h in the lengths tiled, instead of repeated, for the heads."""
    B = len(plan.queries)
    lengths = np.tile(plan.lengths[:, 0], (plan.heads, 1, 1)).reshape(B, plan.heads, -1, 1)
    return plan.key_places < lengths


def lower_right(plan: Plan) -> Array:
    """Whether the order allows key j, if the last query sees the last key."""
    more = plan.keys.shape[1] - plan.queries.shape[1]
    return plan.key_places <= plan.query_places - plan.offsets[:, :, None, None] + more


def without_offset(plan: Plan) -> Array:
    """Whether the order allows key j, if queries begin at position 0."""
    return plan.key_places <= plan.query_places - plan.offsets[:, :, None, None]


def inverted(name: str, plan: Plan) -> Plan | None:
    """Invert one condition for a key to be seen."""
    if name not in plan.hiding:
        return None
    right = plan.hiding[name]
    return hiding(name, lambda plan: ~right(plan), plan)


def windowed(change: Callable[[Any, Any], tuple[Any, Any]], plan: Plan) -> Plan | None:
    """Take another window."""
    window = plan.config.window
    if window is None or change(*window) == window:
        return None
    return hiding("window", lambda plan: pieces.within(plan, *change(*window)), plan)


def more(side: Any, by: int) -> Any:
    """Make a side of a window longer by so many; None stays None."""
    return None if side is None else max(0, side + by)


OF_HIDING = (
    Mistake("the mask is inverted", "True is taken as hide", ("weights",),
            {"": partial(inverted, "mask"), "that of the lengths": partial(inverted, "lengths"),
             "that of the causal order": partial(inverted, "order")}),
    Mistake("the mask is ignored", "no mask is applied", ("weights",),
            {"": partial(hiding, "mask", None)}),
    Mistake("the lengths are ignored", "padding is attended to", ("weights",), one(partial(hiding, "lengths", None))),
    Mistake("lengths are one too long", "j <= length instead of j < length", ("weights",),
            one(partial(hiding, "lengths", partial(longer, 1)))),
    Mistake("lengths are one too short", "j < length - 1 instead of j < length", ("weights",),
            one(partial(hiding, "lengths", partial(longer, -1)))),
    Mistake("lengths are tiled, not repeated", "heads get the lengths of other samples", ("weights",),
            one(partial(hiding, "lengths", tiled))),
    Mistake("causal order is ignored", "queries see what follows them", ("weights",),
            one(partial(hiding, "order", None))),
    Mistake("causal order is aligned to the lower right", "the last query sees the last key", ("weights",),
            one(partial(hiding, "order", lower_right))),
    Mistake("causal order is off by one", "j <= i + 1, or j < i, instead of j <= i", ("weights",),
            {"one too many": partial(hiding, "order", lambda plan: plan.key_places <= plan.query_places + 1),
             "one too few": partial(hiding, "order", lambda plan: plan.key_places < plan.query_places)}),
    Mistake("causal order begins again at every offset", "the offset is left out of the causal order", ("weights",),
            one(partial(hiding, "order", without_offset))),
    Mistake("everything is seen", "nothing hides keys", ("weights",),
            one(lambda plan: replace(plan, hiding={}) if plan.hiding else None)),
)  # fmt: skip


OF_WINDOWS = (
    Mistake("the window is one wider to the left", "one key more before the query", ("weights",),
            one(partial(windowed, lambda left, right: (more(left, 1), right)))),
    Mistake("the window is one narrower to the left", "one key fewer before the query", ("weights",),
            one(partial(windowed, lambda left, right: (more(left, -1), right)))),
    Mistake("the window is one wider to the right", "one key more after the query", ("weights",),
            one(partial(windowed, lambda left, right: (left, more(right, 1))))),
    Mistake("the window is one narrower to the right", "one key fewer after the query", ("weights",),
            one(partial(windowed, lambda left, right: (left, more(right, -1))))),
    Mistake("the window is symmetric", "queries look ahead as far as they look back", ("weights",),
            one(partial(windowed, lambda left, right: (left, left)))),
    Mistake("the window only looks back", "queries do not look ahead", ("weights",),
            one(partial(windowed, lambda left, right: (left, 0)))),
    Mistake("the window is ignored", "queries see keys at any distance", ("weights",),
            one(partial(hiding, "window", None))),
    Mistake("the window begins again at every offset", "the offset is left out of the window", ("weights",),
            one(partial(hiding, "window",
                        lambda plan: pieces.CONDITIONS["window"](replace(plan, offsets=0 * plan.offsets))))),
)  # fmt: skip
