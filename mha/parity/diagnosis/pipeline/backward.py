"""The gradients of the pipeline, derived by hand, in pieces that a mistake can replace.

`by_X` is the gradient of the loss by X. Letters as in the lessons.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mha.parity.diagnosis.pipeline.parts import ROLES, all_steps, apply_temperature, project_gates, rotate_heads
from mha.parity.diagnosis.pipeline.pieces import (
    Array,
    Steps,
    beside_sinks,
    merge,
    parts_of_norm,
    shares,
    sigmoid,
    split,
    widen,
)
from mha.parity.diagnosis.pipeline.plan import Plan
from mha.parity.rule.heads import unshare
from mha.parity.rule.rounding import as_it_is


def through_softmax(back: "Backward", by_weights: Array) -> Array:
    """Return the gradient by scores in the softmax, 0 for hidden keys; by_weights: (B, H, Q, K or K + 1)."""
    shares = back.shares
    by_weights = np.where(back.in_softmax, by_weights, 0)  # 0 * NaN is NaN
    return shares * (by_weights - (shares * by_weights).sum(-1, keepdims=True))


def through_cap(back: "Backward", by_capped: Array) -> Array:
    """Return the gradient by scores before the cap, (B, H, Q, K)."""
    softcap = back.plan.softcap
    if softcap is None:
        return by_capped
    return by_capped * (1 - (widen(back.steps["capped"]) / softcap) ** 2)


def turn_back(back: "Backward", role: str, by_X: Array) -> Array:
    """Turn gradients by rotated heads back, by minus their positions."""
    plan = dataclasses.replace(back.plan, rotary_offsets=lambda plan, role, places: -places)
    return rotate_heads(plan, role, by_X)


def through_norm(back: "Backward", role: str, by_X: Array) -> tuple[Array, Array]:
    """Return the gradients by heads before a norm, (B, H, T, d), and by its scale (d,)."""
    normalized, roots, scale = back.parts_of_norm(role)
    own, by_normalized = back.plan.norms[role], by_X * scale
    axes = (1, 3) if own.over == "all" else 3
    by_heads = by_normalized - normalized * (by_normalized * normalized).mean(axes, keepdims=True)
    if own.kind == "layer":
        by_heads = by_heads - by_normalized.mean(axes, keepdims=True)
    return by_heads / roots, by_scale(back, scale, by_X * normalized)


def by_scale(back: "Backward", scale: Array, by_scaled: Array) -> Array:
    """Return the gradient by the scale of a norm, (d,) or (H*d,), from that by scaled heads (B, H, T, d)."""
    rows = by_scaled if len(scale) == 1 else merge(by_scaled)  # (B, H, T, d) or (B, T, H*d)
    return back.add(rows.reshape(-1, rows.shape[-1]))  # (d,) or (H*d,)


def add(rows: Array) -> Array:
    """Add rows (N, n)."""
    return np.asarray(rows.sum(0))


def through_dense(back: "Backward", name: str, X: Array, by_result: Array) -> tuple[Array, Steps]:
    """Return the gradients of a projection by its input (B, T, in), and by its weights; by_result: (B, T, out).

    A kernel projects nothing.
    """
    if not back.plan.projects:
        return by_result, {}
    kernel = widen(back.plan.weights[f"{name}.kernel"])
    by_weights = {f"{name}.kernel": np.tensordot(X, by_result, ((0, 1), (0, 1)))}  # (in, out)
    if f"{name}.bias" in back.plan.weights:
        by_weights[f"{name}.bias"] = back.add(by_result.reshape(-1, by_result.shape[-1]))  # (out,)
    return by_result @ kernel.T, by_weights


@dataclasses.dataclass(frozen=True)
class Backward:
    """All that the gradients of a call are computed from; a mistake is a function from one to another."""

    plan: Plan  # with all samples and queries
    steps: Steps
    results: Steps  # of the parts
    cotangent: Array  # the gradient by the output, (B, Q, D), in float32 at least
    # Changes of gradients by the "output", "pooled" heads, attention "weights", scaled scores for queries ("scaled_q")
    # and for keys ("scaled_k"), heads ("q", "k", "v"), inputs and weights (their names).
    on_the_way: Mapping[str, Callable[[Array], Array]] = dataclasses.field(default_factory=dict)
    through_softmax: Callable[["Backward", Array], Array] = through_softmax
    through_cap: Callable[["Backward", Array], Array] = through_cap
    blanked: bool = True  # whether queries and keys that see nothing, or that nothing sees, count as 0
    unshare: Callable[[Array, int], Array] = unshare
    turn_back: Callable[["Backward", str, Array], Array] = turn_back
    through_norm: Callable[["Backward", str, Array], tuple[Array, Array]] = through_norm
    add: Callable[[Array], Array] = add  # of rows (N, n), as the gradients by biases, scales and sinks do
    computed: dict[tuple[Any, ...], Any] = dataclasses.field(default_factory=dict)  # by `once`, without mistakes

    @property
    def visible(self) -> Array:
        """Return which query sees which key, (B, H, Q, K)."""
        return self.plan.visible()

    @property
    def shares(self) -> Array:
        """Return the softmax of all scores, (B, H, Q, K): attention weights, and those of sinks as one more column."""
        return shares(self.plan, self.results["scores"], self.visible)

    @property
    def in_softmax(self) -> Array:
        """Return which scores enter the softmax, (B, H, Q, K), and sinks as one more column."""
        return beside_sinks(self.plan, self.visible, True)

    def parts_of_norm(self, role: str) -> tuple[Array, Array, Array]:
        """Return heads (B, H, T, d) after a norm but before its scale, their divisors, and the scale."""
        turned = self.plan.norms[role].after and self.plan.frequencies is not None
        return parts_of_norm(self.plan, role, self.steps[f"{'rotate' if turned else 'split'}_{role}"])

    @property
    def functions(self) -> tuple[Any, ...]:
        """Return the pieces that a mistake may replace, but for changes on the way."""
        return self.through_softmax, self.through_cap, self.blanked, self.unshare, self.turn_back, self.through_norm

    def once(self, make: Callable[..., Any], *given: Any) -> Any:
        """Return what a method gives, for names and arrays; without mistakes it is computed once."""
        key = make, self.functions, *(X if isinstance(X, str) else id(X) for X in given)
        if key in self.computed:
            return self.computed[key]
        made = getattr(self, make.__name__)(*given)  # a subclass may have its own
        if not self.on_the_way and self.functions == WITHOUT_MISTAKES:
            self.computed[key] = made
        return made

    def pass_on(self, name: str, by_X: Array) -> Array:
        """Return a gradient, changed if a mistake is at this place on its way."""
        return self.on_the_way.get(name, as_it_is)(by_X)

    def blank_unseen(self, X: Array, seen: Any) -> Array:
        """Blank the rows of X (..., T, features) that are not seen, (..., T)."""
        return np.where(np.asarray(seen)[..., None], X, np.zeros_like(X)) if self.blanked else X

    def gradients(self) -> Steps:
        """Compute all gradients, by the names of `attention.gradients`."""
        plan = self.plan
        by_pooled, found = self.once(Backward.through_output, self.pass_on("output", self.cotangent))
        by_weights, by_values = self.once(Backward.through_pooling, self.pass_on("pooled", by_pooled))
        by_weights = self.pass_on("weights", by_weights)
        by_biased, by_scores, by_sinks = self.once(Backward.through_weights, by_weights)
        found, by_gates = found | by_sinks, found.get("queries", 0)
        if plan.score_bias is not None:
            axes = tuple(axis for axis, size in enumerate(plan.score_bias.shape) if size == 1)
            found["score_bias"] = by_biased.sum(axes, keepdims=True)
        by_heads, by_pooling = self.through_scores(by_scores)
        by_heads["v"] = by_values
        found |= by_pooling
        for role in ROLES:
            found |= self.once(Backward.through_projection, role, self.pass_on(role, by_heads[role]))
        found["queries"] = found["queries"] + by_gates
        return {name: self.pass_on(name, X) for name, X in found.items()}

    def through_output(self, by_output: Array) -> tuple[Array, Steps]:
        """Return the gradients by pooled heads (B, H, Q, dv), and by W_o, gates, W_g and queries.

        The gradient by the queries is the output gate's part alone.
        """
        by_merged, found = through_dense(self, "W_o", merge(widen(self.steps["merged"])), by_output)
        by_pooled = split(self.pass_on("merged", by_merged), self.plan.heads)  # (B, H, Q, dv)
        if self.plan.opened is not None:
            X = self.blank_unseen(widen(self.plan.queries), self.visible.any((1, 3)))
            gates = sigmoid(project_gates(dataclasses.replace(self.plan, queries=X)))  # (B, H, Q, dv or 1)
            gates = self.pass_on("gates", gates)
            by_gates = by_pooled * widen(self.steps.get("head_gated", self.steps["pooled"])) * gates * (1 - gates)
            by_gates = by_gates if gates.shape[3] > 1 else by_gates.sum(3, keepdims=True)  # (B, H, Q, dv or 1)
            found["queries"], by_weights = through_dense(self, "W_g", X, merge(by_gates))
            found, by_pooled = found | by_weights, by_pooled * gates
        if self.plan.gates is not None:
            found["head_gates"] = (by_pooled * widen(self.steps["pooled"])).sum((2, 3))  # (B, H)
            by_pooled = by_pooled * widen(self.plan.gates)
        return by_pooled, found

    def heads_of(self, role: str) -> Array:
        """Return queries (role "q"), or the keys or values of each head of queries, (B, H, T, any)."""
        plan, seen = self.plan, self.visible
        if role == "q":
            return self.blank_unseen(widen(self.results["q"]), seen.any(3))
        return self.blank_unseen(widen(plan.share(self.results[role], plan.heads // plan.groups)), seen.any(2))

    def through_pooling(self, by_pooled: Array) -> tuple[Array, Array]:
        """Return the gradients by attention weights, (B, H, Q, K), and by heads of values, (B, G, K, dv)."""
        by_values = widen(self.results["weights"]).swapaxes(2, 3) @ by_pooled
        by_weights = by_pooled @ self.once(Backward.heads_of, "v").swapaxes(2, 3)
        return by_weights, self.unshare(by_values, self.plan.groups)

    def through_weights(self, by_weights: Array) -> tuple[Array, Array, Steps]:
        """Return the gradients by biased scores, by dot products or additive scores, (B, H, Q, K), and by sinks."""
        by_shares = self.through_softmax(self, beside_sinks(self.plan, by_weights, 0))
        by_biased, rest = np.split(by_shares, [by_weights.shape[3]], 3)
        by_scores = self.through_cap(self, by_biased) * (self.plan.scale if self.plan.config.pooling == "dot" else 1)
        if not rest.size:
            return by_biased, by_scores, {}
        return by_biased, by_scores, {"sinks": self.add(rest[..., 0].swapaxes(1, 2).reshape(-1, rest.shape[1]))}

    def by_queries(self, scaled: Array) -> Array:
        """Return the gradient by heads of queries, (B, H, Q, d)."""
        return scaled @ self.once(Backward.heads_of, "k")

    def by_keys(self, scaled: Array) -> Array:
        """Return the gradient by heads of keys, (B, G, K, d)."""
        return self.unshare(scaled.swapaxes(2, 3) @ self.once(Backward.heads_of, "q"), self.plan.groups)

    def through_scores(self, by_scores: Array) -> tuple[Steps, Steps]:
        """Return the gradients by heads of queries and keys, and by the weights of additive scores."""
        if self.plan.config.pooling == "dot":
            by_q = self.once(Backward.by_queries, self.pass_on("scaled_q", by_scores))
            return {"q": by_q, "k": self.once(Backward.by_keys, self.pass_on("scaled_k", by_scores))}, {}
        q, k = self.heads_of("q"), self.heads_of("k")
        W_q, W_k, w_v = (widen(self.plan.weights[f"attention.{name}.kernel"]) for name in ("W_q", "W_k", "w_v"))
        features = np.tanh((q @ W_q)[:, :, :, None] + (k @ W_k)[:, :, None])  # (B, H, Q, K, n)
        by_sums = by_scores[..., None] * w_v[:, 0] * (1 - features**2)
        by_queries, by_keys = by_sums.sum(3), by_sums.sum(2)  # (B, H, T, n)
        by_weights = {
            "attention.W_q.kernel": np.tensordot(q, by_queries, ((0, 1, 2), (0, 1, 2))),
            "attention.W_k.kernel": np.tensordot(k, by_keys, ((0, 1, 2), (0, 1, 2))),
            "attention.w_v.kernel": np.einsum("bhqkn,bhqk->n", features, by_scores)[:, None],  # (n, 1)
        }
        return {"q": by_queries @ W_q.T, "k": self.unshare(by_keys @ W_k.T, self.plan.groups)}, by_weights

    def through_projection(self, role: str, by_heads: Array) -> Steps:
        """Return the gradients by an input and by the weights of its projection; by_heads: (B, H, T, d)."""
        plan, name = self.plan, ROLES[role]
        found: Steps = {}
        if plan.temperature is not None and role in plan.tempered:
            by_heads = apply_temperature(plan, role, by_heads)
        own = plan.norms.get(role)
        if own and own.after:
            by_heads, found[f"{role}_norm.scale"] = self.through_norm(self, role, by_heads)
        if plan.frequencies is not None and role != "v":
            by_heads = self.turn_back(self, role, by_heads)
        if own and not own.after:
            by_heads, found[f"{role}_norm.scale"] = self.through_norm(self, role, by_heads)
        X = self.blank_unseen(widen(getattr(plan, name)), self.visible.any((1, 3) if role == "q" else (1, 2)))
        found[name], by_weights = through_dense(self, f"W_{role}", X, merge(by_heads))
        return found | by_weights


WITHOUT_MISTAKES = through_softmax, through_cap, True, unshare, turn_back, through_norm


def backward(plan: Plan, cotangent: Array | None) -> Backward:
    """Compute the steps of a plan, and return the `Backward` of its gradients; cotangent: None = ones."""
    steps, results = all_steps(plan)
    output = steps["output"]
    by_output = np.ones_like(output) if cotangent is None else cotangent.astype(output.dtype)
    return Backward(plan, steps, results, widen(by_output))
