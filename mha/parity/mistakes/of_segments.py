"""Known mistakes with segments, the texts that are packed into one row."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from mha.parity.mistakes.mistake import Mistake, hiding, one
from mha.parity.pipeline.pieces import Array
from mha.parity.pipeline.plan import Plan


def ignored(plan: Plan) -> Plan | None:
    """Let nothing hide what segments hide."""
    unpacked = hiding("segments", None, plan)
    return None if unpacked is None else hiding("key_segments", None, unpacked)


def compared(how: Callable[[Array, Array], Array], plan: Plan) -> Plan | None:
    """Compare the segments of keys with those of queries in another way."""
    return hiding("segments", lambda plan: how(plan.key_segments[:, None, None], plan.segments[:, None, :, None]), plan)


def moved(by: int, plan: Plan) -> Plan | None:
    """Give each key the segment of another one, so many places before it."""
    return replace(plan, key_segments=np.roll(plan.key_segments, by, 1)) if "segments" in plan.hiding else None


OF_SEGMENTS = (
    Mistake("the segments are ignored", "tokens see those of other texts in their row, and padding", ("weights",),
            one(ignored)),
    Mistake("other segments are seen", "segments are compared as lengths are, by their order", ("weights",),
            {"earlier ones, too": partial(compared, np.less_equal),
             "later ones, too": partial(compared, np.greater_equal)}),
    Mistake("the segments of keys are moved", "each key has the segment of its neighbour", ("weights",),
            {"one later": partial(moved, 1), "one earlier": partial(moved, -1)}),
    Mistake("padding is a segment like others", "tokens of padding see padding: a number below 0 is compared like any",
            ("weights",), one(partial(hiding, "key_segments", None))),
)  # fmt: skip
