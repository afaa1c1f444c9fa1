"""Known mistakes with masks as arrays, whichever way a call says what hides keys, and with biases: their axes."""

import functools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from mha.parity.diagnosis.mistakes.equivalent_masks import as_mask, hides, pairs_left_by, take_apart
from mha.parity.diagnosis.mistakes.mistake import Change, Mistake
from mha.parity.diagnosis.pipeline.pieces import Array, finite_bias
from mha.parity.diagnosis.pipeline.plan import Plan, replace

OfArray = Callable[[Plan, Array], Array | None]
GROUPS = frozenset({"order", "window", "chunk"}), frozenset({"segments"})  # conditions that a port has in one mask


def change_array(field: str, change: OfArray, plan: Plan) -> Plan | None:
    """Change the mask or the bias of scores, (B or 1, H or 1, Q or 1, K or 1); minus infinity goes with the bias."""
    X = getattr(plan, field)
    changed = None if X is None else change(plan, X)
    return None if changed is None else replace(plan, **{field: changed})


def change_mask(change: OfArray, plan: Plan) -> Plan | None:
    """Change the mask, if it hides keys."""
    return change_array("mask", change, plan) if "mask" in plan.hiding else None


def change_all(change: OfArray, plan: Plan, but: Sequence[frozenset[str]]) -> Plan | None:
    """Change all hidden keys as one mask; but: conditions that have mistakes of their own where no other hides."""
    names = hides(plan)
    return None if not names or names in but else change_mask(change, as_mask(names, plan))


def padding_in_mask(plan: Plan) -> tuple[Plan, set[str]]:
    """Find the padding in a mask that hides more: return the plan with it as a condition, and its conditions."""
    parts = take_apart(plan, 2)
    return (plan, set()) if parts is None else (parts, {"lengths", "mask"} & parts.hiding.keys())


def of_padding(change: OfArray, plan: Plan) -> Plan | None:
    """Change the hidden padding, where a mask, or positions and segments, hide more than that."""
    parts, names = padding_in_mask(plan)
    if not names and hides(plan) - {"key_positions", "key_segments"}:
        names = {"key_positions", "key_segments"} & hides(plan)
    return change_mask(change, as_mask(names, parts)) if names else None


def without_padding(plan: Plan) -> Plan | None:
    """Hide no padding, where a mask hides more than that."""
    parts, names = padding_in_mask(plan)
    return replace(parts, hiding={name: X for name, X in parts.hiding.items() if name not in names}) if names else None


def unlike(plan: Plan) -> set[str]:
    """Return the conditions that hide other keys in one sample than in another."""
    found = {name: pairs_left_by([name], plan) for name in plan.hiding}
    return {name for name, seen in found.items() if not (seen == seen[:1]).all()}


def of_all_samples(change: OfArray, but: str, plan: Plan) -> Plan | None:
    """Change all hidden keys as one mask, if the samples' masks differ, and not by one condition alone."""
    return change_mask(change, as_mask(hides(plan), plan)) if unlike(plan) - {but} else None


def of_the_mask(change: OfArray, plan: Plan) -> Plan | None:
    """Change the mask alone, where the samples differ by other conditions, too."""
    return change_mask(change, plan) if unlike(plan) - {"mask"} else None


def by_sample(change: OfArray, but: str = "") -> dict[str, Change]:
    """Make forms of a change of the samples' masks."""
    return {"": partial(of_all_samples, change, but), "of the mask alone": partial(of_the_mask, change)}


def heads_first(plan: Plan, X: Array) -> Array | None:
    """Take the axis (B*H) of an array as (H*B): b * H + h has what h * B + b should, (B, H, Q or 1, K or 1)."""
    B = len(plan.queries)
    full = np.broadcast_to(X, (B, plan.heads, *X.shape[2:]))
    return None if B == 1 else full.swapaxes(0, 1).reshape(full.shape)


def groups_first(plan: Plan, X: Array) -> Array | None:
    """Take the axis (B*G) of the heads of keys as (G*B), as `heads_first` does with (B*H)."""
    G = plan.groups
    full = None if G in (1, plan.heads) or X.shape[1] > 1 else heads_first(replace(plan, heads=G), X)
    return None if full is None else np.repeat(full, plan.heads // G, 1)  # (B, H, Q or 1, K or 1)


def over_heads(groups: Callable[[Plan], int], inner: bool, plan: Plan, X: Array) -> Array | None:
    """Take the axis of samples as that of groups of heads, or of the heads in each, if there are as many."""
    B, H, number = len(plan.queries), plan.heads, groups(plan)
    if X.shape[:2] != (B, 1) or number != B or B == 1:
        return None
    heads = X.swapaxes(0, 1)  # (1, B, Q or 1, K or 1)
    return np.tile(heads, (1, H // B, 1, 1)) if inner else np.repeat(heads, H // B, 1)


def over_queries(plan: Plan, X: Array) -> Array | None:
    """Take the axis of samples as that of queries, if there are as many."""
    B = len(plan.queries)
    if X.shape[:3] != (B, 1, 1) or plan.queries.shape[1] != B or B == 1:
        return None
    return X.transpose(1, 2, 0, 3)  # (1, 1, Q, K)


def heads_over_samples(plan: Plan, X: Array) -> Array | None:
    """Take the axis of heads as that of samples, if there are as many."""
    B = len(plan.queries)
    return X.swapaxes(0, 1) if X.shape[:2] == (1, B) and B > 1 else None  # (B, 1, Q or 1, K or 1)


# Which axis one of B masks, or biases, is taken for.
AXES: dict[str, OfArray] = {
    "over heads": partial(over_heads, lambda plan: plan.heads, False),
    "over groups of heads": partial(over_heads, lambda plan: plan.groups if plan.groups < plan.heads else 0, False),
    "over the heads of a group": partial(
        over_heads, lambda plan: plan.heads // plan.groups if plan.groups > 1 else 0, True
    ),
    "over queries": over_queries,
}


def first_for_all(plan: Plan, X: Array) -> Array | None:
    """Take the array of the first sample for all; None where a search begins with that one, as the worst sample."""
    return None if isinstance(plan.samples, list) and plan.samples[0] == 0 else X[:1]


def transpose_mask(plan: Plan, X: Array) -> Array | None:
    """Take the axis of keys as that of queries, if there are as many."""
    if plan.queries.shape[1] != plan.num_keys or max(X.shape[2:]) == 1:
        return None
    return X.swapaxes(2, 3)  # (B or 1, H or 1, K, Q or 1)


def move_mask(by: int, plan: Plan, X: Array) -> Array | None:
    """Move a mask by so many keys; what goes out at one end comes in at the other."""
    return None if X.shape[3] == 1 else np.roll(X, by, 3)


def join_by_or(plan: Plan) -> Plan | None:
    """Let a key be seen that one of several masks leaves visible."""
    parts = take_apart(plan) or plan
    names = hides(parts)
    masks = [pairs_left_by(joint, parts) for group in GROUPS if (joint := [name for name in names if name in group])]
    padding = [name for name in names if not any(name in group for group in GROUPS)]
    masks += [pairs_left_by(padding, parts)] if padding else []
    if len(masks) < 2:
        return None
    seen = functools.reduce(np.logical_or, masks)  # (B or 1, H or 1, Q or 1, K or 1)
    return replace(as_mask(names, parts), mask=seen)


of_bias = partial(change_array, "score_bias")


def of_joint_bias(change: OfArray, plan: Plan) -> Plan | None:
    """Change the bias of scores and all hidden keys likewise, as where they are one array."""
    made, names = of_bias(change, plan), hides(plan) - {"bias"}
    if made is None or not unlike(plan) - {"bias"} or not finite_bias(plan).any():
        return None
    return change_mask(change, as_mask(names, made))


def of_samples_alone(change: OfArray, plan: Plan, X: Array) -> Array | None:
    """Make a change of a bias that differs by samples."""
    return change(plan, X) if len(X) > 1 else None


# Conditions that have a mistake of their own where nothing else hides: where they are inverted or turned, or moved.
SINGLE = frozenset({"mask"}), frozenset({"lengths"}), frozenset({"order"})
MOVED = frozenset({"mask"}), frozenset({"segments"}), frozenset({"segments", "key_segments"})

OF_MASKS = (
    Mistake("the mask is tiled, not repeated", "what is meant for row h * B + b of (B*H) is in row b * H + h",
            "repeat each mask for the heads of its sample (repeat_interleave): b * H + h has that of b",
            ("weights",),
            by_sample(heads_first, "lengths") | {"of heads of keys": partial(of_all_samples, groups_first, "")}),
    Mistake("the mask is broadcast over another axis", "its axis of samples is taken as another one, of as many",
            "give the mask all its axes: (B, 1, Q, K), or (1, H, Q, K) if heads have their own",
            ("weights",), {how: partial(of_all_samples, change, "") for how, change in AXES.items()}
            | {"heads over samples": partial(change_mask, heads_over_samples)}),
    Mistake("all samples have the mask of the first", "the mask lacks the axis of samples",
            "give the mask its axis of samples, (B, 1, Q, K), and read it by sample", ("weights",),
            by_sample(first_for_all)),
    Mistake("masks are joined by or, not and", "a key is seen if one of the masks leaves it visible",
            "join masks by `and`: a key is seen if every mask leaves it visible", ("weights",),
            {"": join_by_or}),
    Mistake("the bias is tiled, not repeated", "what is meant for row h * B + b of (B*H) is in row b * H + h",
            "repeat each bias for the heads of its sample (repeat_interleave): b * H + h has that of b",
            ("scores", "weights"),
            {"": partial(of_bias, partial(of_samples_alone, heads_first)),
             "of heads of keys": partial(of_bias, partial(of_samples_alone, groups_first)),
             "with the mask": partial(of_joint_bias, heads_first)}),
    Mistake("the bias is broadcast over another axis", "its axis of samples is taken as another one, of as many",
            "give the bias all its axes: (B, 1, Q, K), or (1, H, Q, K) if heads have their own",
            ("scores", "weights"), {how: partial(of_bias, change) for how, change in AXES.items()}
            | {"heads over samples": partial(of_bias, heads_over_samples)}),
)  # fmt: skip
