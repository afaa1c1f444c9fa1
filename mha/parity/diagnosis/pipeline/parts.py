"""The parts of the computation in order: each computes some steps of `trace`, and a result for later parts."""

import dataclasses
from collections.abc import Callable

import numpy as np

from mha.parity.diagnosis.pipeline.pieces import Array, Steps, norm, regroup, split, widen
from mha.parity.diagnosis.pipeline.plan import Plan
from mha.parity.rule.layouts import CACHED, LSE, MEANS, PAIRS, PLACED, means

ROLES = {"q": "queries", "k": "keys", "v": "values"}


WHOLE = (*ROLES, "cache")  # parts that are computed of all tokens, whichever queries are
# The parts of the computation, each with the parts that it needs; and the part to which each step belongs.
PARTS: dict[str, tuple[str, ...]] = {
    "q": (), "k": (), "v": (), "scores": ("q", "k"), "weights": ("scores",), "pooled": ("weights", "v"),
    "output": ("pooled",), "cache": ("k", "v"),
}  # fmt: skip


PART_OF = {
    **{f"{step}_{role}": role for step in ("W", "split", "norm", "rotate") for role in ROLES},
    "tempered_q": "q", **dict.fromkeys(PAIRS, "scores"), "weights": "weights", MEANS: "weights", LSE: "weights",
    "pooled": "pooled", "head_gated": "pooled", "gated": "pooled", "merged": "output", "output": "output",
    **dict.fromkeys(CACHED, "cache"),
}  # fmt: skip


def compute(part: str, plan: Plan, before: dict[str, Array]) -> tuple[Steps, Array]:
    """Compute the steps of one part, and its result; before: the results of the parts that it needs."""
    if part in ROLES:
        return prepare_heads(plan, part)
    if part == "scores":
        k = plan.read_slots("k", before["k"])
        q, k = before["q"][:, :, plan.rows], plan.share(k, plan.heads // plan.groups)
        first = plan.rounded(plan.scores(plan, q, k))
        steps = {"scores": first} | plan.bend(plan, first)
        return {name: plan.by_slots(X) for name, X in steps.items()}, list(steps.values())[-1]
    if part == "weights":
        weights = plan.after(plan.softmax(plan, before["scores"], plan.visible()))
        given = plan.by_slots(weights.astype(plan.queries.dtype))
        steps = {"weights": given, MEANS: means(given)}
        if not plan.projects:  # a kernel may give it
            steps[LSE] = plan.log_sum_exp(plan, before["scores"], plan.visible())
        return steps, weights
    if part == "pooled":
        values = plan.read_slots("v", before["v"])
        weights, values = before["weights"], plan.share_values(values, plan.heads // plan.groups)
        if plan.blanked and not np.isfinite(widen(values).sum()):  # 0 * NaN is NaN
            values = np.where((weights != 0).any(2)[..., None], values, np.zeros_like(values))  # (B, H, K, dv)
        pooled = plan.product(weights, widen(values)).astype(plan.queries.dtype)  # (B, H, Q, dv)
        steps = {"pooled": regroup(pooled, plan.config.num_heads)}
        if plan.gates is not None:
            steps["head_gated"] = pooled = plan.rounded(pooled * plan.of_samples(plan.gates))
        if plan.opened is not None:
            pooled = plan.rounded(apply_gates(pooled, plan.opened(project_gates(plan)[:, :, plan.rows])))
            steps["gated"] = regroup(pooled, plan.config.num_heads)
        return steps, pooled
    if part == "cache":
        return fill_slots(plan, before), before["k"]
    merged = plan.merge(before["pooled"])  # (B, Q, H*dv)
    output = plan.output(merged)
    if plan.closed is not None:
        gates = plan.closed(plan.project("W_g", plan.queries)[:, plan.rows, plan.features])  # (B, Q, D)
        output = plan.rounded((widen(output) * gates).astype(output.dtype))
    return {"merged": split(merged, plan.config.num_heads), "output": output}, output


def project_gates(plan: Plan) -> Array:
    """Project the queries for the output gate, (B, H, T, dv or 1)."""
    return split(plan.project("W_g", plan.queries), plan.heads)


def apply_gates(pooled: Array, gates: Array) -> Array:
    """Multiply pooled heads (B, H, Q, dv) by gates (B, H, Q, dv or 1); queries that see nothing stay 0."""
    nothing = (pooled == 0).all(-1, keepdims=True)  # 0 * NaN is NaN
    return np.where(nothing, 0, widen(pooled) * gates).astype(pooled.dtype)


def fill_slots(plan: Plan, before: dict[str, Array]) -> Steps:
    """Return the slots after a call: its keys, values and positions are written into them; {} without a cache."""
    if plan.columns is None:
        return {}
    written = {
        f"cache.{ROLES[role]}": plan.by_slots(plan.behind_slots(role, plan.stored(plan, role, before[role])), 2)
        for role in "kv"
    }
    found = {name: regroup(X, plan.config.num_key_value_heads) for name, X in written.items()}
    return found | {PLACED: plan.by_slots(plan.of_samples(plan.key_places[:, 0, 0]), 1)}


def prepare_heads(plan: Plan, role: str) -> tuple[Steps, Array]:
    """Compute queries, keys or values from the projection up to the heads that are scored or pooled."""
    heads = plan.heads if role == "q" else plan.groups
    projected = plan.project(f"W_{role}", getattr(plan, ROLES[role]))  # (B, T, H*d)
    X = plan.split(projected, heads)  # (B, H, T, d)
    whole = plan.config.num_heads if role == "q" else plan.config.num_key_value_heads
    steps = {f"W_{role}": split(projected, whole), f"split_{role}": regroup(X, whole)}
    changes: dict[str, Callable[[Array], Array]] = {}
    if own := plan.norms.get(role):
        changes[f"norm_{role}"] = lambda X: plan.rounded(norm(plan, role, X))
    if plan.frequencies is not None and role != "v":
        changes[f"rotate_{role}"] = lambda X: plan.rounded(rotate_heads(plan, role, X))
    for name in reversed(changes) if own and own.after else changes:
        steps[name] = X = changes[name](X)
    if plan.temperature is not None and role in plan.tempered:
        X = plan.rounded(apply_temperature(plan, role, X))
    if plan.temperature is not None and role == "q":
        steps["tempered_q"] = X
    return steps, X


def places_of(plan: Plan, role: str, T: int) -> Array:
    """Return the positions of queries, or of as many of the last keys, (B or 1, T)."""
    return plan.offsets + np.arange(T) if role == "q" else plan.key_places[:, 0, 0, -T:]


def apply_temperature(plan: Plan, role: str, X: Array) -> Array:
    """Multiply queries, gradients by them, or by mistake keys, by a factor that grows with their positions."""
    numbers, scale, floor = places_of(plan, role, X.shape[2]), plan.temperature.scale, plan.temperature.floor
    if plan.tempered_places is not None:
        numbers = plan.tempered_places(plan, numbers)
    places = np.maximum(plan.of_samples(numbers), 0) + plan.temperature.shift  # (B or 1, Q)
    factors = plan.factors(1 + scale * np.log1p(places // floor))  # (B or 1, Q)
    return (widen(X) * factors[:, None, :, None]).astype(X.dtype)


def rotate_heads(plan: Plan, role: str, X: Array) -> Array:
    """Rotate queries or keys by their positions."""
    places = places_of(plan, role, X.shape[2])
    if plan.rotary_offsets is not None:
        places = plan.rotary_offsets(plan, role, places)
    if role not in plan.magnified:
        plan = dataclasses.replace(plan, magnitude=1.0)
    return plan.rotate(plan, role, X, plan.of_samples(places))


def all_steps(plan: Plan) -> tuple[Steps, Steps]:
    """Compute every step of a plan, and the result of each part."""
    steps, results = dict[str, Array](), dict[str, Array]()
    for part in PARTS:
        some, results[part] = compute(part, plan, results)
        steps |= some
    return steps, results
