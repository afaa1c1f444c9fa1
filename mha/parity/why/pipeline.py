"""Attention in NumPy, in pieces that a mistake can replace; without mistakes its steps are those of `trace`.

Letters as in the lessons; steps of heads are (B, H, T, d), pairs of queries and keys (B, H, Q, K).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from mha.config import Config, numpy_dtype
from mha.parity.same.problem import Problem

Array = np.ndarray
Steps = dict[str, Array]
ROLES = {"q": "queries", "k": "keys", "v": "values"}
# The parts of the computation, each with the parts that it needs; and the part to which each step belongs.
PARTS: dict[str, tuple[str, ...]] = {
    "q": (), "k": (), "v": (), "scores": ("q", "k"), "weights": ("scores",), "pooled": ("weights", "v"),
    "output": ("pooled",),
}  # fmt: skip
PART_OF = {
    **{f"{step}_{role}": role for step in ("W", "split", "norm", "rotate") for role in ROLES},
    "scores": "scores", "capped": "scores", "biased": "scores", "weights": "weights", "pooled": "pooled",
    "head_gated": "pooled", "merged": "output", "output": "output",
}  # fmt: skip


def widen(X: Array) -> Array:
    """Return X in float32 at least."""
    return X.astype(np.promote_types(X.dtype, np.float32), copy=False)


def as_it_is(X: Array) -> Array:
    """Return X."""
    return X


# What a mistake can replace


def split(X: Array, heads: int) -> Array:
    """(B, T, H*d) -> (B, H, T, d)."""
    B, T, width = X.shape
    return X.reshape(B, T, heads, width // heads).transpose(0, 2, 1, 3)  # (B, H, T, d)


def merge(X: Array) -> Array:
    """(B, H, T, d) -> (B, T, H*d)."""
    B, H, T, d = X.shape
    return X.transpose(0, 2, 1, 3).reshape(B, T, H * d)  # (B, T, H*d)


def regrouped(X: Array, heads: int) -> Array:
    """Split the features of any number of heads into H heads, to compare them: (B, any, T, any) -> (B, H, T, d)."""
    return X if X.shape[1] == heads else split(merge(X), heads)  # (B, H, T, d)


def share(X: Array, times: int) -> Array:
    """Repeat each head of keys for the heads of queries that share it: (B, G, K, d) -> (B, H, K, d)."""
    return X if times == 1 else np.repeat(X, times, 1)  # (B, H, K, d)


def norm(plan: "Plan", role: str, X: Array) -> Array:
    """Norm the heads of queries or keys (B, H, T, d)."""
    X, dtype = widen(X), X.dtype
    if plan.norm == "layer":
        X = X - X.mean(-1, keepdims=True)
    roots = np.sqrt((X * X).mean(-1, keepdims=True) + plan.eps)  # (B, H, T, 1)
    return (X / roots * widen(plan.weights[f"{role}_norm.scale"])).astype(dtype)


def rotate(X: Array, places: Array, frequencies: Array, interleaved: bool) -> Array:
    """Turn the pairs of components of X (B, H, T, d) by positions (B or 1, T) times frequencies (n,)."""
    n, wide = len(frequencies), widen(X)
    angles = (places[..., None] * frequencies)[:, None]  # (B or 1, 1, T, n)
    cos, sin = np.cos(angles).astype(wide.dtype), np.sin(angles).astype(wide.dtype)
    first, second = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if interleaved else (slice(n), slice(n, 2 * n))
    a, b, turned = wide[..., first], wide[..., second], wide.copy()
    turned[..., first], turned[..., second] = a * cos - b * sin, b * cos + a * sin
    return turned.astype(X.dtype)


def softmax(plan: "Plan", scores: Array, visible: Array) -> Array:
    """Return the softmax over the visible keys; a row without keys is 0."""
    hidden = np.where(visible.any(-1, keepdims=True), -np.inf, 0).astype(scores.dtype)
    shares = normalized(np.where(visible, scores, hidden), -1)
    return np.where(visible, shares, 0).astype(scores.dtype)


def normalized(scores: Array, axis: int) -> Array:
    """Return the plain softmax over an axis."""
    shares = np.exp(scores - scores.max(axis, keepdims=True, initial=np.finfo(scores.dtype).min))
    return shares / shares.sum(axis, keepdims=True)


def scores(plan: "Plan", q: Array, k: Array) -> Array:
    """Return the scores (B, H, Q, K) of queries (B, H, Q, d) and keys (B, H, K, d), before the cap."""
    if plan.config.pooling == "dot":
        return plan.product(widen(q), widen(k).swapaxes(2, 3)) * widen(np.ones((), q.dtype)).dtype.type(plan.scale)
    W_q, W_k, w_v = (plan.weights[f"attention.{name}.kernel"] for name in ("W_q", "W_k", "w_v"))
    sums = plan.product(q, W_q)[:, :, :, None] + plan.product(k, W_k)[:, :, None]  # (B, H, Q, K, d)
    return widen(plan.product(np.tanh(sums), w_v)[..., 0])


def bend(plan: "Plan", X: Array) -> Steps:
    """Cap the scores (B, H, Q, K) and add the bias."""
    steps = {}
    if plan.softcap is not None:
        steps["capped"] = X = plan.softcap * np.tanh(X / plan.softcap)
    if plan.score_bias is not None:
        steps["biased"] = X = X + widen(plan.of_pairs(plan.score_bias))
    return steps


def within(plan: "Plan", left: int | None, right: int | None) -> Array:
    """Whether keys are at most so many positions before and after the query; None = any number."""
    seen = np.ones((1, 1, 1, 1), bool)
    if left is not None:
        seen = seen & (plan.key_places >= plan.query_places - left)
    return seen if right is None else seen & (plan.key_places <= plan.query_places + right)


# The conditions for a key to be seen: each returns booleans that broadcast against (B, H, Q, K).
CONDITIONS: dict[str, Callable[["Plan"], Array]] = {
    "lengths": lambda plan: plan.key_places < plan.lengths,
    "mask": lambda plan: plan.mask,
    "bias": lambda plan: plan.score_bias != -np.inf,
    "order": lambda plan: plan.key_places <= plan.query_places,
    "window": lambda plan: within(plan, *plan.config.window or (None, None)),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that a call is computed from; a mistake is a function from one plan to another.

    queries, keys, values: (B, T, any); lengths (B, 1, 1 or Q, 1), mask and score_bias (four axes) and gates
    (B, H, 1, 1): or None; offsets: (B or 1, 1), positions of the first query; samples: those to compute; rows: the
    queries to compute, from the scores on; a mistake that needs all of them sets it to all; hiding: the conditions for
    a key to be seen, by name; rotary_offsets: None, or a function from the plan, the role and the right positions to
    those of the rotation; norm_first: whether the norm comes before the rotation; normed: the roles that
    have one. split, merge, share, scores, bend, softmax: the functions of these names above; after: applied to the
    weights; blanked: whether values that no query sees become 0; into_product: applied to both sides of a matrix
    product; rounded: applied to every result.
    """

    config: Config
    weights: dict[str, Array]
    queries: Array
    keys: Array
    values: Array
    lengths: Any
    mask: Any
    score_bias: Any
    gates: Any
    offsets: Array
    scale: float
    softcap: float | None
    norm: str | None
    eps: float
    frequencies: Any
    interleaved: bool
    heads: int
    groups: int
    samples: Any  # a slice, or a list of integers
    rows: slice
    hiding: dict[str, Callable[..., Array]]
    rotary_offsets: Any = None
    norm_first: bool = True
    normed: tuple[str, ...] = ("q", "k")
    split: Callable[[Array, int], Array] = split
    merge: Callable[[Array], Array] = merge
    share: Callable[[Array, int], Array] = share
    scores: Callable[..., Array] = scores
    bend: Callable[..., Steps] = bend
    softmax: Callable[..., Array] = softmax
    after: Callable[[Array], Array] = as_it_is
    blanked: bool = True
    into_product: Callable[[Array], Array] = as_it_is
    rounded: Callable[[Array], Array] = as_it_is

    @property
    def key_places(self) -> Array:
        """Positions of keys, (1, 1, 1, K)."""
        return np.arange(self.keys.shape[1])[None, None, None]

    @property
    def query_places(self) -> Array:
        """Positions of queries, (B or 1, 1, Q, 1)."""
        return (self.offsets + np.arange(self.queries.shape[1]))[:, None, :, None]

    def of_samples(self, X: Array) -> Array:
        """Take the samples to compute from an array (B or 1, ...)."""
        return X[self.samples] if len(X) == len(self.queries) else X

    def of_pairs(self, X: Array) -> Array:
        """Take the samples and queries to compute from an array (B or 1, H or 1, Q or 1, K or 1)."""
        X = self.of_samples(X)
        return X[:, :, self.rows] if X.shape[2] == self.queries.shape[1] else X

    def product(self, A: Array, B: Array) -> Array:
        """Return A @ B in A's dtype, multiplied in float32 at least."""
        A, B, dtype = widen(A), widen(B), A.dtype
        return self.rounded(np.matmul(self.into_product(A), self.into_product(B)).astype(dtype, copy=False))

    def project(self, name: str, X: Array) -> Array:
        """Return X @ kernel + bias."""
        projected = self.product(X, self.weights[f"{name}.kernel"])
        bias = self.weights.get(f"{name}.bias")
        return projected if bias is None else self.rounded(projected + bias)

    def visible(self) -> Array:
        """Return which query sees which key, (B, H, Q, K), in the samples to compute."""
        seen = np.ones((1, 1, 1, 1), bool)
        for condition in self.hiding.values():
            seen = seen & condition(self)
        full = len(self.queries), self.heads, self.queries.shape[1], self.keys.shape[1]
        return self.of_pairs(np.broadcast_to(seen, full))


def plan_of(problem: Problem, dtype: Any, samples: Any = slice(None), rows: slice = slice(None)) -> Plan:
    """Make the plan of a call, without mistakes, in a dtype; samples, rows: those to compute."""
    config, hiding, kind = problem.config, problem.call, numpy_dtype(dtype)
    B = len(problem.queries)
    mask, bias = (X if X is None else four_axes(X) for X in (hiding.mask, hiding.score_bias))
    lengths = None if hiding.valid_lens is None else hiding.valid_lens.reshape(B, 1, -1, 1)
    gates = problem.call.head_gates
    gates = gates if gates is None else np.broadcast_to(gates, (B, config.num_heads))[:, :, None, None].astype(kind)
    given = {"lengths": lengths, "mask": mask, "bias": bias, "order": hiding.causal or None, "window": config.window}
    return Plan(
        config=config,
        weights={name: X.astype(kind) for name, X in problem.layer.weights.items()},
        queries=problem.queries.astype(kind), keys=problem.keys.astype(kind), values=problem.values.astype(kind),
        lengths=lengths, mask=mask, score_bias=None if bias is None else bias.astype(kind), gates=gates,
        offsets=np.asarray(hiding.offset).reshape(-1, 1),
        scale=config.key_dim**-0.5 if config.scale is None else config.scale,
        softcap=config.softcap, norm=config.qk_norm, eps=config.qk_norm_eps,
        frequencies=None if config.rotary is None else np.array(config.rotary.angles()),
        interleaved=config.rotary is not None and config.rotary.interleaved,
        heads=config.num_heads, groups=config.num_key_value_heads, samples=samples, rows=rows,
        hiding={name: CONDITIONS[name] for name, X in given.items() if X is not None},
    )  # fmt: skip


def same(one: Plan, other: Plan) -> bool:
    """Whether two plans are the same, field by field: then the change between them is no mistake here."""
    return all(_equal(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(Plan))


def _equal(X: Any, Y: Any) -> bool:
    """Whether two fields are the same: arrays by their numbers, mappings of arrays too, the rest by itself."""
    if isinstance(X, dict) and isinstance(Y, dict):
        return X.keys() == Y.keys() and all(_equal(X[name], Y[name]) for name in X)
    if isinstance(X, Array) and isinstance(Y, Array):
        return X is Y or np.array_equal(X, Y, equal_nan=True)
    return X is Y or (not isinstance(X, Array) and not isinstance(Y, Array) and bool(X == Y))


def four_axes(pairs: Array) -> Array:
    """Give (Q, K), (B, Q, K) or (B, H, Q, K) all four axes; any size may be 1."""
    pairs = pairs[None] if pairs.ndim == 2 else pairs
    return pairs[:, None] if pairs.ndim == 3 else pairs  # (B, 1 or H, Q, K)


# The parts


def compute(part: str, plan: Plan, before: dict[str, Array]) -> tuple[Steps, Array]:
    """Compute the steps of one part, and its result; before: the results of the parts that it needs."""
    if part in ROLES:
        return prepared(plan, part)
    if part == "scores":
        q, k = before["q"][:, :, plan.rows], plan.share(before["k"], plan.heads // plan.groups)
        first = plan.rounded(plan.scores(plan, q, k))
        steps = {"scores": first} | plan.bend(plan, first)
        return steps, list(steps.values())[-1]
    if part == "weights":
        weights = plan.after(plan.softmax(plan, before["scores"], plan.visible()))
        return {"weights": weights.astype(plan.queries.dtype)}, weights
    if part == "pooled":
        weights, values = before["weights"], plan.share(before["v"], plan.heads // plan.groups)
        if plan.blanked:
            values = np.where((weights != 0).any(2)[..., None], values, 0)  # (B, H, K, dv)
        pooled = plan.product(weights, widen(values)).astype(plan.queries.dtype)  # (B, H, Q, dv)
        steps = {"pooled": regrouped(pooled, plan.config.num_heads)}
        if plan.gates is not None:
            steps["head_gated"] = pooled = plan.rounded(pooled * plan.of_samples(plan.gates))
        return steps, pooled
    merged = plan.merge(before["pooled"])  # (B, Q, H*dv)
    output = plan.project("W_o", merged)
    return {"merged": split(merged, plan.config.num_heads), "output": output}, output


def prepared(plan: Plan, role: str) -> tuple[Steps, Array]:
    """Compute queries, keys or values from the projection up to the heads that are scored or pooled."""
    X = plan.of_samples(getattr(plan, ROLES[role]))
    heads = plan.heads if role == "q" else plan.groups
    projected = plan.project(f"W_{role}", X)  # (B, T, H*d)
    X = plan.split(projected, heads)  # (B, H, T, d)
    whole = plan.config.num_heads if role == "q" else plan.config.num_key_value_heads
    steps = {f"W_{role}": split(projected, whole), f"split_{role}": regrouped(X, whole)}
    changes: dict[str, Callable[[Array], Array]] = {}
    if plan.norm is not None and role in plan.normed:
        changes[f"norm_{role}"] = lambda X: plan.rounded(norm(plan, role, X))
    if plan.frequencies is not None and role != "v":
        changes[f"rotate_{role}"] = lambda X: plan.rounded(turned(plan, role, X))
    for name in changes if plan.norm_first else reversed(changes):
        steps[name] = X = changes[name](X)
    return steps, X


def turned(plan: Plan, role: str, X: Array) -> Array:
    """Turn queries or keys by their positions."""
    places = plan.query_places[:, 0, :, 0] if role == "q" else plan.key_places[0, 0]  # (B or 1, T)
    if plan.rotary_offsets is not None:
        places = plan.rotary_offsets(plan, role, places)
    return rotate(X, plan.of_samples(places), plan.frequencies, plan.interleaved)
