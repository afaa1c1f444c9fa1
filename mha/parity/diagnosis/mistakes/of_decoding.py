"""Known mistakes in calls with a cache: positions of new tokens, the slots they go to, and what is seen and kept there.

A plan has the slots before a call as they should be: what an earlier call did wrong shows in what is left in them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Mistake, hiding, only_where
from mha.parity.diagnosis.mistakes.of_rotations import rotates, turn_by
from mha.parity.diagnosis.mistakes.of_scores import ALIKE
from mha.parity.diagnosis.pipeline.pieces import CONDITIONS, Array, rotate, split
from mha.parity.diagnosis.pipeline.plan import OFFSETS, Plan, replace

FACTORS = (2, 4, 8)  # by which a longer sequence stretches the rotation
BEAMS: dict[str, Callable[[int], list[int]]] = {
    "of the sample before": lambda B: [(b - 1) % B for b in range(B)],
    "of the sample after": lambda B: [(b + 1) % B for b in range(B)],
    "of the first sample": lambda B: [0] * B,
    "the first two swapped": lambda B: [1, 0, *range(2, B)],
    "the last two swapped": lambda B: [*range(B - 2), B - 1, B - 2],
}


def slot_places(plan: Plan) -> tuple[Array, Array]:
    """Return the positions of the slots before the call, (B, S), and of its tokens, (B, K); -1 = empty, or padding."""
    S = plan.kept_k.shape[2]
    return plan.key_positions[:, :S], plan.key_positions[:, S:]


def grows(plan: Plan) -> bool:
    """Return whether a token goes into a cache."""
    return plan.kept_k is not None and bool((slot_places(plan)[1] >= 0).any())


def slots_of(plan: Plan) -> Array:
    """Return the slot of each of the T slots and tokens after the call, (B, T); -1 = in none."""
    found = np.full(plan.key_positions.shape, -1)
    np.put_along_axis(found, plan.columns, np.arange(plan.columns.shape[1])[None], 1)
    return found


def next_places(plan: Plan) -> Array:
    """Return the position after the newest of each sample, (B, 1)."""
    return np.asarray(slot_places(plan)[0].max(1, keepdims=True) + 1)


def move_tokens(by: Callable[[Plan], Any], slots: bool, plan: Plan) -> Plan | None:
    """Move the positions of the new tokens by so many, (B, 1) or one; slots: whether they go to other slots, too."""
    change = np.broadcast_to(by(plan), (len(plan.queries), 1))
    if not change.any():
        return None
    before, new = slot_places(plan)
    shifted = [np.where(places >= 0, places + change, places) for places in (new, plan.positions)]
    offsets = {name: getattr(plan, name) + change for name in OFFSETS}
    made = replace(plan, key_positions=np.concatenate([before, shifted[0]], 1), positions=shifted[1], **offsets)
    return into(change, made) if slots else made


def into(by: Any, plan: Plan) -> Plan:
    """Write the new tokens so many slots further, (B, 1) or one; overwritten tokens are not seen."""
    S = plan.columns.shape[1]
    slot = np.broadcast_to(np.arange(S), plan.columns.shape)
    target, columns = (slot + by) % S, slot.copy()  # (B, S)
    sample, at = np.nonzero(plan.columns >= S)
    columns[sample, target[sample, at]] = plan.columns[sample, at]
    return see_slots(replace(plan, columns=columns))


def see_slots(plan: Plan) -> Plan:
    """Let queries see the tokens in slots after the call, and no others."""
    return replace(plan, hiding=plan.hiding | {"slots": lambda plan: (slots_of(plan) >= 0)[:, None, None]})


def by_slots(far: int, plan: Plan) -> Plan:
    """Let queries see the slots up to their own, or so many before it, whatever the positions."""

    def condition(plan: Plan) -> Array:
        slots, S = slots_of(plan)[:, None, None], plan.columns.shape[1]  # (B, 1, 1, T)
        return (slots >= 0) & (slots <= slots[:, :, 0, S:, None] - far)

    kept = {name: plan.hiding[name] for name in ("mask", "bias", "positions") if name in plan.hiding}
    return replace(plan, hiding=kept | {"slots": condition})


def write_first(plan: Plan) -> Plan | None:
    """Let queries see the slots of a ring after the call; impossible where the call overwrites no token."""
    lost = (slots_of(plan) < 0) & (plan.key_positions >= 0)  # (B, T)
    return see_slots(plan) if lost.any() else None


def in_order_of_slots(plan: Plan) -> Plan | None:
    """Let queries see the slots of a ring up to their own; impossible where the newer token is in the later slot."""
    places = np.take_along_axis(plan.key_positions, plan.columns, 1)  # (B, S)
    wrapped = (places >= 0) & (places < np.maximum.accumulate(places, 1))
    return by_slots(0, plan) if wrapped.any() else None


def see_empty(plan: Plan) -> Plan | None:
    """Let queries see empty slots, but for those into which the call writes."""
    before, new = slot_places(plan)
    empty = np.concatenate([before < 0, np.zeros(new.shape, bool)], 1) & (slots_of(plan) >= 0)  # (B, T)
    return hiding("key_positions", lambda plan: CONDITIONS["key_positions"](plan) | empty[:, None, None], plan)


def padding_too(stays: bool, plan: Plan) -> Plan | None:
    """Take padding for tokens, which are seen and kept; stays: whether those behind it have their right positions."""
    before, new = slot_places(plan)
    (B, S), K, real = before.shape, new.shape[1], new >= 0
    if real.all():
        return None
    first = np.take_along_axis(slots_of(plan)[:, S:], real.argmax(1)[:, None], 1)  # (B, 1): the slot of the first token
    rows, slots = next_places(plan) + np.arange(K), (first + np.arange(K)) % S  # (B, K)
    columns = np.broadcast_to(np.arange(S), (B, S)).copy()
    np.put_along_axis(columns, slots, np.broadcast_to(S + np.arange(K), (B, K)), 1)
    places = np.where(real & stays, new, rows)  # (B, K)
    begun: dict[str, Any] = dict.fromkeys(OFFSETS, places - np.arange(K))
    made = replace(plan, key_positions=np.concatenate([before, places], 1), positions=places, columns=columns)
    return replace(made, **begun)


def left_behind(count: int, plan: Plan) -> Plan:
    """Give so many empty slots behind the new tokens the positions that a crop should have taken."""
    before, new = slot_places(plan)
    S = before.shape[1]
    last = slots_of(plan)[:, S:].max(1, keepdims=True)  # (B, 1): without a ring, the slot of the newest
    behind = np.arange(S) - last  # (B, S)
    stale = (before < 0) & (behind >= 1) & (behind <= count)
    places = np.where(stale, new.max(1, keepdims=True) + behind, before)
    return replace(plan, key_positions=np.concatenate([places, new], 1))


def turn_by_slots(roles: str, plan: Plan) -> Plan:
    """Turn new keys, or queries, by the numbers of their slots."""
    own = slots_of(plan)[:, plan.columns.shape[1] :]  # (B, K)
    return turn_by(lambda plan, role, places: np.where(own < 0, places, own) if role in roles else places, plan)


def turn_again(places: Callable[[Plan], Array], stays: bool, plan: Plan) -> Plan:
    """Turn the keys in the slots once more as they are read; places: by which; stays: whether they are kept so."""
    again = rotate(plan, "k", plan.kept_k, places(plan))
    return replace(plan, kept_k=again) if stays else replace(plan, read_k=again)


def keep_early(role: str, turns: bool, seen: bool, plan: Plan) -> Plan | None:
    """Keep new keys or values as they are before their projection, or keys before they turn; seen: and see them so."""
    inputs, width = (plan.keys, plan.config.key_dim) if role == "k" else (plan.values, plan.config.value_dim)
    if not turns and inputs.shape[2] != plan.groups * width:
        return None

    def early(plan: Plan, given: str, X: Array) -> Array:
        if given != role:
            return X
        if turns:
            return rotate(plan, role, X, -plan.of_samples(slot_places(plan)[1]))
        return split(plan.of_samples(inputs), plan.groups)  # (B, G, K, d)

    return replace(plan, stored=early, read=early) if seen else replace(plan, stored=early)


def of_beams(roles: str, rows: Callable[[int], list[int]], plan: Plan) -> Plan | None:
    """Take the slots of other samples, of keys, of values, or of both with their positions."""
    B = len(plan.queries)
    if B == 1:
        return None
    before, new = slot_places(plan)
    kept = {f"kept_{role}": getattr(plan, f"kept_{role}")[rows(B)] for role in roles}
    places = before[rows(B)] if len(roles) == 2 else before
    return replace(plan, **kept, key_positions=np.concatenate([places, new], 1))


def of_distance(plan: Plan) -> Plan | None:
    """Take the bias of scores by the distance of slots, where it goes by that of positions."""
    X, slots, S = plan.score_bias, slots_of(plan), plan.columns.shape[1]
    if X is None or X.shape[3] == 1:
        return None
    places = plan.key_positions[:, None, None]  # (B, 1, 1, T)
    distance = places - plan.query_places(plan.offsets)  # (B, 1, Q, T)
    seen = (places >= 0) & (slots >= 0)[:, None, None] & np.isfinite(X)  # (B, H, Q, T)
    squares = np.where(seen, distance**2, 0).sum((0, 2, 3), keepdims=True)
    slopes = np.where(seen, X * distance, 0).sum((0, 2, 3), keepdims=True) / np.maximum(squares, 1)  # (1, H, 1, 1)
    far = np.abs(np.where(seen, X - slopes * distance, 0)).max()
    if far > ALIKE * np.abs(np.where(seen, X, 0)).max():
        return None
    other = slots[:, None, None] - slots[:, None, S:, None]  # (B, 1, Q, T)
    return replace(plan, score_bias=np.where(seen, slopes * other, X).astype(X.dtype))


def stretch(factor: float, whole: bool, plan: Plan) -> Plan:
    """Turn new tokens by slower frequencies than those in the slots; whole: all alike, or those of a larger base."""
    n = len(plan.frequencies)
    powers = np.ones(n) if whole or n == 1 else np.arange(n) / (n - 1)
    return replace(plan, frequencies=plan.frequencies / factor**powers)


NEW = ("q", "k", "weights", "cache")
KEPT = ("scores", "weights", "pooled", "cache")
AGAIN: dict[str, Callable[[Plan], Array]] = {
    "by their positions": lambda plan: slot_places(plan)[0],
    "by one": lambda plan: 1 + 0 * slot_places(plan)[0],
    "back by one": lambda plan: -1 + 0 * slot_places(plan)[0],
}

OF_DECODING = only_where(
    grows,
    Mistake("new tokens are one position off", "the first is two after the newest, or at its position",
            "give the first new token the position after the newest in its cache", NEW,
            {"too far": partial(move_tokens, lambda plan: 1, False),
             "too near": partial(move_tokens, lambda plan: -1, False)}),
    Mistake("positions are counted from the padded length", "all samples go on where the longest one does",
            "count the positions of each sample from its own newest token", NEW,
            {how: partial(move_tokens, lambda plan: next_places(plan).max() - next_places(plan), slots)
             for how, slots in (("", False), ("and their slots", True))}),
    Mistake("all samples share a position", "all go on where the first, or the shortest, one does",
            "count the positions of each sample from its own newest token", NEW,
            {"that of the first": partial(move_tokens, lambda plan: next_places(plan)[0] - next_places(plan), False),
             "that of the shortest":
                 partial(move_tokens, lambda plan: next_places(plan).min() - next_places(plan), False)}),
    *only_where(
        rotates,
        Mistake("tokens turn by their slots", "the rotation goes by the number of a slot, not by the position",
                "turn tokens by their positions, whichever slot holds them",
                ("q", "k"), {"keys": partial(turn_by_slots, "k"), "queries, too": partial(turn_by_slots, "qk")}),
        Mistake("keys in the slots turn again", "they turn as they come in, and once more as they are read",
                "turn keys once, as they come in, and read them as they are",
                ("scores", "cache"),
                {f"{by}{', and stay so' * stays}": partial(turn_again, places, stays)
                 for by, places in AGAIN.items() for stays in (False, True)}),
        Mistake("the rotation is stretched in the middle",
                "new tokens turn by other frequencies than those in the slots",
                "take one table of frequencies from the first token to the last", ("q", "k"),
                {f"by {factor}{', by a larger base' * (not whole)}": partial(stretch, factor, whole)
                 for factor in FACTORS for whole in (True, False)}),
        Mistake("keys are kept before they turn", "the slots hold keys that are not rotated",
                "turn keys before they are written to their slots", ("scores", "cache"),
                {"": partial(keep_early, "k", True, False), "and are seen so": partial(keep_early, "k", True, True)}),
    ),
    Mistake("keys or values are kept before their projection", "the slots hold inputs",
            "project keys and values before they are written to their slots", ("scores", "pooled", "cache"),
            {f"{name}{', and seen so' * seen}": partial(keep_early, role, False, seen)
             for name, role in (("values", "v"), ("keys", "k")) for seen in (False, True)}),
    Mistake("tokens are written to a slot beside theirs", "one slot too far, or over the newest",
            "write each token to the slot behind the newest, in a ring to position % S", ("weights", "cache"),
            {"one too far": partial(into, 1), "over the newest": partial(into, -1),
             "one too far, and not seen there": lambda plan: by_slots(1, into(1, plan))}),
    Mistake("a portion overwrites what its first queries see", "a ring is written before it is read",
            "read a ring before new tokens are written to it", ("weights",),
            {"": write_first}),
    Mistake("order goes by slots", "slots of a ring that are behind the query's are older, but not seen",
            "compare the positions in the slots with the query's, not the numbers of the slots",
            ("weights",), {"": in_order_of_slots}),
    Mistake("causal order is aligned to the upper left", "the first query sees the first position alone",
            "count queries behind what the cache holds: hide positions above offset + i", ("weights",),
            {"": lambda plan: replace(plan, order_offsets=0 * plan.order_offsets,
                                      hiding=plan.hiding | {"order": CONDITIONS["order"]})}),
    Mistake("empty slots are seen", "what is in them counts as a token",
            "hide slots at position -1", ("weights",), {"": see_empty}),
    Mistake("padding is taken for tokens", "it is seen, and kept in slots",
            "write tokens alone to slots, and count positions by them", NEW,
            {"and counts in positions": partial(padding_too, False),
             "positions are right": partial(padding_too, True)}),
    Mistake("a crop leaves positions", "tokens that were taken back are still seen",
            "set the positions of slots behind the new end to -1", ("weights", "cache"),
            {f"of {count} behind the newest": partial(left_behind, count) for count in (1, 2, 3, 4)}),
    Mistake("beams are reordered for keys alone", "values in the slots are those of other samples",
            "reorder values, too, by the same beams", KEPT,
            {how: partial(of_beams, "v", rows) for how, rows in BEAMS.items()}),
    Mistake("beams are reordered for values alone", "keys in the slots are those of other samples",
            "reorder keys, too, by the same beams", KEPT,
            {how: partial(of_beams, "k", rows) for how, rows in BEAMS.items()}),
    Mistake("the cache is that of another sample", "slots of a sample before, or of another beam",
            "take keys, values and positions of the beam that a sample goes on from", KEPT,
            {how: partial(of_beams, "kv", rows) for how, rows in BEAMS.items()}),
    Mistake("the bias goes by slots", "as ALiBi does that counts slots, not positions",
            "count the distance of the bias by positions, not by slots", ("scores",),
            {"": of_distance}),
)  # fmt: skip
