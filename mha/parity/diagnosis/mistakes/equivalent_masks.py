"""Rewrite the conditions that hide keys: several as one mask, or a mask as lengths, order, window and texts.

So a mistake can be made whichever way a call says what it hides.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Change
from mha.parity.diagnosis.pipeline.pieces import CONDITIONS, Array
from mha.parity.diagnosis.pipeline.plan import OF_HIDING, Plan, equal_plans, replace

ALL = slice(None)
# The parts that a mask is tried to be made of, beside keys and queries that are hidden as such.
MADE_OF = (
    (), ("order",), ("window",), ("order", "window"), ("texts",), ("texts", "order"), ("texts", "order", "window"),
)  # fmt: skip


class MaskPart(NamedTuple):
    """A part of what a mask hides: the pairs left visible, (B or 1, Q or 1, K or 1), and the plan's fields for it.

    names: of its conditions.
    """

    seen: Array
    names: tuple[str, ...]
    fields: dict[str, Any]


def pairs_left_by(names: Iterable[str], plan: Plan) -> Array:
    """Return the pairs that these conditions leave visible in all of the call, (B or 1, H or 1, Q or 1, K or 1)."""
    whole, seen = replace(plan, samples=ALL, rows=ALL), np.ones((1, 1, 1, 1), bool)
    for name in names:
        seen = seen & plan.hiding[name](whole)
    return seen


def hides(plan: Plan) -> frozenset[str]:
    """Return the conditions that hide anything."""
    return frozenset(name for name in plan.hiding if not pairs_left_by([name], plan).all())


def only_hides(made: Plan, plan: Plan) -> bool:
    """Return whether a plan differs from another at most in which query sees which key."""
    return equal_plans(replace(made, **{name: getattr(plan, name) for name in OF_HIDING}), plan)


def as_pairs(plan: Plan) -> list[str]:
    """List the conditions that are a mask, or may be: minus infinity in a bias, lengths of each query, padding.

    So are segments, if all tokens that are no padding are in one text.
    """
    names: list[str] = [name for name in ("mask", "bias") if name in plan.hiding]
    if "lengths" in plan.hiding and plan.lengths.shape[2] > 1:
        names.append("lengths")
    if "key_positions" in plan.hiding and (plan.key_positions < 0).any():
        names.append("key_positions")
    if "segments" in plan.hiding:
        text, keys = plan.segments.max(), plan.key_segments
        if text >= 0 and (plan.segments == text).all() and (keys[keys >= 0] == text).all():
            names += [name for name in ("segments", "key_segments") if name in plan.hiding]
    return names


def as_mask(names: Iterable[str], plan: Plan) -> Plan:
    """Write these conditions as one mask."""
    chosen = set(names)
    rest, other = {name: X for name, X in plan.hiding.items() if name not in chosen}, plan.mask
    if "mask" in rest:
        rest["other mask"] = lambda plan: other
    return replace(plan, hiding=rest | {"mask": CONDITIONS["mask"]}, mask=pairs_left_by(chosen, plan))


def anywhere(change: Change, least: int = 1) -> Change:
    """Apply a change to the parts of a mask, if it has so many or more, or else to separate conditions."""

    def change_parts(plan: Plan) -> Plan | None:
        parts = take_apart(plan, least)
        found = None if parts is None else change(parts)
        return change(plan) if found is None else found

    return change_parts


def in_part(change: Change) -> Change:
    """Apply a change to a part of a mask, or to a separate condition; whole masks have other mistakes."""
    return anywhere(change, 2)


def take_apart(plan: Plan, least: int = 1) -> Plan | None:
    """Write a mask as lengths, order, window and texts; None if it does not consist of so many of these, or more.

    Padding by positions is written so, too, or by segments where there is one text.
    """
    names = as_pairs(plan)
    if not names or plan.kept_k is not None:
        return None
    fields = plan.mask, plan.score_bias, plan.lengths, plan.key_positions, plan.segments, plan.key_segments
    how, given = ("parts", *names, plan.offsets.tobytes()), [X for X in fields if X is not None]
    found = plan.once(how, lambda *_: parts_of(pairs_left_by(names, plan), plan), *given)
    if len(found) < (2 if names == ["lengths"] else least) or not found:
        return None
    hiding = {name: X for name, X in plan.hiding.items() if name not in names}
    changed = {name: X for part in found for name, X in part.fields.items()}
    for name, field in (("lengths", "lengths"), ("order", "order_offsets")):
        if name in hiding and field in changed:  # both hide
            changed[field] = np.minimum(changed[field], getattr(plan, field))
    if hiding.keys() & {"window", "segments"} & {name for part in found for name in part.names}:
        return None
    return replace(plan, hiding=hiding | {name: CONDITIONS[name] for part in found for name in part.names}, **changed)


def parts_of(seen: Array, plan: Plan) -> list[MaskPart]:
    """Find the parts that together leave these pairs visible, (B or 1, H or 1, Q or 1, K or 1); [] if none do."""
    if not seen.any() or not (seen == seen[:, :1]).all():
        return []
    seen = seen[:, 0]  # (B or 1, Q or 1, K or 1)
    keys, rows = (np.asarray(seen.any(axis, keepdims=True)) for axis in (1, 2))
    known = {name: MaskPart(X, ("mask",), {"mask": X[:, None]}) for name, X in (("keys", keys), ("rows", rows))}
    counts = keys.sum(2, keepdims=True)  # (B or 1, 1, 1)
    if (keys == (np.arange(keys.shape[2]) < counts)).all():
        known["keys"] = MaskPart(keys, ("lengths",), {"lengths": counts[:, None]})
    if seen.shape[1] > 1 and seen.shape[2] > 1:
        known |= distances_as_window(seen, plan) | texts_as_segments(seen, plan)
    for names in MADE_OF:
        chosen = [known[name] for name in ("keys", "rows", *names) if name in known]
        if not leave_just(chosen, seen):
            continue
        for name in ("rows", "keys"):
            without = [part for part in chosen if part is not known[name]]
            chosen = without if leave_just(without, seen) else chosen
        masks = [part for part in chosen if part.names == ("mask",)]
        if len(masks) == 2:
            both = keys & rows
            chosen = [part for part in chosen if part.names != ("mask",)]
            chosen.insert(0, MaskPart(both, ("mask",), {"mask": both[:, None]}))
        return chosen
    return []


def leave_just(parts: list[MaskPart], seen: Array) -> bool:
    """Return whether these parts together leave just these pairs visible."""
    found = np.ones((1, 1, 1), bool)
    for part in parts:
        found = found & part.seen
    return bool((found == seen).all())


def distances_as_window(seen: Array, plan: Plan) -> dict[str, MaskPart]:
    """Write how far ahead and back queries see as causal order and as a window; seen: (B or 1, Q, K)."""
    far = (plan.key_places - replace(plan, rows=ALL).query_places(plan.offsets))[:, 0]  # (B or 1, Q, K)
    there = (far + 0 * seen)[seen | np.zeros(far.shape, bool)]
    left, right = -int(there.min()), int(there.max())
    offsets = {"window_offsets": plan.offsets}
    if right not in (0, plan.num_keys - plan.queries.shape[1]):
        window = MaskPart((far >= -left) & (far <= right), ("window",), {"window": (left, right)} | offsets)
        return {"window": window}
    order = MaskPart(far <= right, ("order",), {"order_offsets": plan.offsets + right})
    return {"order": order, "window": MaskPart(far >= -left, ("window",), {"window": (left, None)} | offsets)}


def texts_as_segments(seen: Array, plan: Plan) -> dict[str, MaskPart]:
    """Write which queries and keys are in one text, if neighbours who see each other are; seen: (B or 1, Q, K)."""
    if seen.shape[1] != seen.shape[2]:
        return {}
    linked = (seen | seen.swapaxes(1, 2)).diagonal(1, 1, 2)  # (B or 1, Q - 1)
    numbers = np.concatenate([np.zeros((len(seen), 1), int), (~linked).cumsum(1)], 1)  # (B or 1, Q)
    return {"texts": MaskPart(
        numbers[:, :, None] == numbers[:, None], ("segments",), {"segments": numbers, "key_segments": numbers}
    )}  # fmt: skip
