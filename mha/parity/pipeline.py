"""The attention pipeline in NumPy, in pieces that a mistake can replace; without mistakes it is the layer's trace.

Letters as in the lessons; steps of heads are (B, H, T, d), pairs of queries and keys (B, H, Q, K).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from mha.config import Config, numpy_dtype
from mha.parity.problem import Problem

Array = np.ndarray
Steps = dict[str, Array]
ROLES = {"q": "queries", "k": "keys", "v": "values"}
# The parts of the computation, each with those that it needs, and the part that each step belongs to.
PARTS: dict[str, tuple[str, ...]] = {
    "q": (), "k": (), "v": (), "scores": ("q", "k"), "weights": ("scores",), "pooled": ("weights", "v"),
    "output": ("pooled",),
}  # fmt: skip
PART_OF = {
    **{f"{step}_{role}": role for step in ("W", "split", "norm", "rotate") for role in ROLES},
    "scores": "scores", "capped": "scores", "biased": "scores", "weights": "weights", "pooled": "pooled",
    "head_gated": "pooled", "merged": "output", "output": "output",
}  # fmt: skip


def behind(part: str) -> frozenset[str]:
    """A part and all that it needs."""
    return frozenset({part}).union(*map(behind, PARTS[part]))


BEHIND = {part: behind(part) for part in PARTS}


def widen(X: Array) -> Array:
    """X in float32 at least."""
    return X.astype(np.promote_types(X.dtype, np.float32), copy=False)


def as_it_is(X: Array) -> Array:
    """X."""
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
    """Other heads as the features of all of them are compared: (B, any, T, any) -> (B, H, T, d)."""
    return X if X.shape[1] == heads else split(merge(X), heads)  # (B, H, T, d)


def share(X: Array, times: int) -> Array:
    """Each head of keys for as many heads of queries in a row: (B, G, K, d) -> (B, H, K, d)."""
    return X if times == 1 else np.repeat(X, times, 1)  # (B, H, K, d)


def norm(plan: "Plan", role: str, X: Array) -> Array:
    """The norm of the heads of queries or keys (B, H, T, d)."""
    X, dtype = widen(X), X.dtype
    if plan.norm == "layer":
        X = X - X.mean(-1, keepdims=True)
    roots = np.sqrt((X * X).mean(-1, keepdims=True) + plan.eps)  # (B, H, T, 1)
    return (X / roots * widen(plan.weights[f"{role}_norm.scale"])).astype(dtype)


def rotate(X: Array, places: Array, frequencies: Array, interleaved: bool) -> Array:
    """X (B, H, T, d), its pairs of components turned by positions (B or 1, T) times frequencies (n,)."""
    n, wide = len(frequencies), widen(X)
    angles = (places[..., None] * frequencies)[:, None]  # (B or 1, 1, T, n)
    cos, sin = np.cos(angles).astype(wide.dtype), np.sin(angles).astype(wide.dtype)
    first, second = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if interleaved else (slice(n), slice(n, 2 * n))
    a, b, turned = wide[..., first], wide[..., second], wide.copy()
    turned[..., first], turned[..., second] = a * cos - b * sin, b * cos + a * sin
    return turned.astype(X.dtype)


def softmax(plan: "Plan", scores: Array, visible: Array) -> Array:
    """Softmax over the visible keys; a row without keys is 0."""
    hidden = np.where(visible.any(-1, keepdims=True), -np.inf, 0).astype(scores.dtype)
    shares = normalized(np.where(visible, scores, hidden), -1)
    return np.where(visible, shares, 0).astype(scores.dtype)


def normalized(scores: Array, axis: int) -> Array:
    """Plain softmax over an axis."""
    shares = np.exp(scores - scores.max(axis, keepdims=True, initial=np.finfo(scores.dtype).min))
    return shares / shares.sum(axis, keepdims=True)


def scores(plan: "Plan", q: Array, k: Array) -> Array:
    """Scores (B, H, Q, K) of queries (B, H, Q, d) and keys (B, H, K, d), before the cap."""
    if plan.config.pooling == "dot":
        return plan.product(widen(q), widen(k).swapaxes(2, 3)) * widen(np.ones((), q.dtype)).dtype.type(plan.scale)
    W_q, W_k, w_v = (plan.weights[f"attention.{name}.kernel"] for name in ("W_q", "W_k", "w_v"))
    sums = plan.product(q, W_q)[:, :, :, None] + plan.product(k, W_k)[:, :, None]  # (B, H, Q, K, d)
    return widen(plan.product(np.tanh(sums), w_v)[..., 0])


def bend(plan: "Plan", X: Array) -> Steps:
    """What follows the scores (B, H, Q, K): the cap and the bias."""
    steps = {}
    if plan.softcap is not None:
        steps["capped"] = X = plan.softcap * np.tanh(X / plan.softcap)
    if plan.score_bias is not None:
        steps["biased"] = X = X + widen(plan.of_samples(plan.score_bias))
    return steps


# What hides: each gives booleans that broadcast against (B, H, Q, K)


def by_lengths(plan: "Plan") -> Array:
    """Key j is seen if j < length."""
    return plan.key_places < plan.lengths


def by_mask(plan: "Plan") -> Array:
    """As the mask says, True = may attend."""
    return plan.mask


def by_bias(plan: "Plan") -> Array:
    """A bias of minus infinity hides."""
    return plan.score_bias != -np.inf


def by_order(plan: "Plan") -> Array:
    """Causal order."""
    return plan.key_places <= plan.query_places


def by_window(plan: "Plan") -> Array:
    """The window around a query's position."""
    left, right = plan.config.window or (None, None)
    return within(plan, left, right)


def within(plan: "Plan", left: int | None, right: int | None) -> Array:
    """Keys at most so many before and after the query's position; None = all."""
    seen = np.ones((1, 1, 1, 1), bool)
    if left is not None:
        seen = seen & (plan.key_places >= plan.query_places - left)
    return seen if right is None else seen & (plan.key_places <= plan.query_places + right)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a call is computed; a mistake is a function from one plan to another.

    queries, keys, values: (B, T, any); lengths (B, 1, 1 or Q, 1), mask and score_bias (four axes) and gates
    (B, H, 1, 1): None = there are none; offsets: (B or 1, 1), positions of the first query; samples: those that are
    computed; hiding: what hides, by its name; rotary_offsets: None, or what gives the positions that turn, of the plan,
    the role and the right positions; norm_first: whether the norm comes before the rotation; normed: what has one.
    split, merge, share, scores, bend, softmax: the functions of these names above; after: what is done to the weights;
    blanked: whether values that no query sees are kept out; into_product: what is done to both sides of a matrix
    product; rounded: to every result.
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
    hiding: dict[str, Callable[..., Array]]
    rotary_offsets: Any = None  # (of queries, of keys), beside the positions themselves
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
        """Those of the samples that are computed, of an array (B or 1, ...)."""
        return X[self.samples] if len(X) == len(self.queries) else X

    def product(self, A: Array, B: Array) -> Array:
        """A @ B in A's dtype, multiplied in float32 at least."""
        A, B, dtype = widen(A), widen(B), A.dtype
        return self.rounded(np.matmul(self.into_product(A), self.into_product(B)).astype(dtype, copy=False))

    def project(self, name: str, X: Array) -> Array:
        """X @ kernel + bias."""
        projected = self.product(X, self.weights[f"{name}.kernel"])
        bias = self.weights.get(f"{name}.bias")
        return projected if bias is None else self.rounded(projected + bias)

    def visible(self) -> Array:
        """Which query sees which key, (B, H, Q, K), of the samples that are computed."""
        seen = np.ones((1, 1, 1, 1), bool)
        for condition in self.hiding.values():
            seen = seen & condition(self)
        full = len(self.queries), self.heads, self.queries.shape[1], self.keys.shape[1]
        return self.of_samples(np.broadcast_to(seen, full))


def plan_of(problem: Problem, dtype: Any, samples: Any = slice(None)) -> Plan:
    """The plan of a call, without mistakes, in a dtype."""
    config, hiding, kind = problem.config, problem.hiding, numpy_dtype(dtype)
    B = len(problem.queries)
    four = [X if X is None else four_axes(X) for X in (hiding.mask, hiding.score_bias)]
    lengths = None if hiding.valid_lens is None else hiding.valid_lens.reshape(B, 1, -1, 1)
    gates = problem.head_gates
    gates = gates if gates is None else np.broadcast_to(gates, (B, config.num_heads))[:, :, None, None].astype(kind)
    hides = {"lengths": by_lengths} if lengths is not None else {}
    hides |= {"mask": by_mask} if four[0] is not None else {}
    hides |= {"bias": by_bias} if four[1] is not None else {}
    hides |= {"order": by_order} if hiding.causal else {}
    hides |= {"window": by_window} if config.window is not None else {}
    return Plan(
        config=config,
        weights={name: X.astype(kind) for name, X in problem.layer.weights.items()},
        queries=problem.queries.astype(kind), keys=problem.keys.astype(kind), values=problem.values.astype(kind),
        lengths=lengths, mask=four[0], score_bias=None if four[1] is None else four[1].astype(kind), gates=gates,
        offsets=np.asarray(hiding.offset).reshape(-1, 1),
        scale=config.key_dim**-0.5 if config.scale is None else config.scale,
        softcap=config.softcap, norm=config.qk_norm, eps=config.qk_norm_eps,
        frequencies=None if config.rotary is None else np.array(config.rotary.angles()),
        interleaved=config.rotary is not None and config.rotary.interleaved,
        heads=config.num_heads, groups=config.num_key_value_heads, samples=samples, hiding=hides,
    )  # fmt: skip


def four_axes(pairs: Array) -> Array:
    """(Q, K), (B, Q, K) or (B, H, Q, K) with all four axes, of which any size may be 1."""
    pairs = pairs[None] if pairs.ndim == 2 else pairs
    return pairs[:, None] if pairs.ndim == 3 else pairs  # (B, 1 or H, Q, K)


# The parts


def compute(part: str, plan: Plan, before: dict[str, Array]) -> tuple[Steps, Array]:
    """The steps of one part, and what it hands on; before: what the parts that it needs handed on."""
    if part in ROLES:
        return prepared(plan, part)
    if part == "scores":
        first = plan.rounded(plan.scores(plan, before["q"], plan.share(before["k"], plan.heads // plan.groups)))
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
    """Queries, keys or values from the projection on, as they are scored or pooled."""
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
    """The rotation of queries or keys at their positions."""
    places = plan.query_places[:, 0, :, 0] if role == "q" else plan.key_places[0, 0]  # (B or 1, T)
    if plan.rotary_offsets is not None:
        places = plan.rotary_offsets(plan, role, places)
    return rotate(X, plan.of_samples(places), plan.frequencies, plan.interleaved)
