"""The pieces of attention in NumPy that a mistake can replace.

Letters as in the lessons; steps of heads are (B, H, T, d), pairs of queries and keys (B, H, Q, K).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from mha.parity.rule.heads import log_sum_exp as sums_of_exponentials
from mha.parity.rule.heads import merge as merge
from mha.parity.rule.heads import split as split
from mha.parity.rule.rounding import Into, as_it_is, shares_of

Array = np.ndarray
Steps = dict[str, Array]


def widen(X: Array) -> Array:
    """Return X in float32 at least."""
    return X.astype(np.promote_types(X.dtype, np.float32), copy=False)


def regroup(X: Array, heads: int) -> Array:
    """Split the features of any number of heads into H heads, to compare them: (B, any, T, any) -> (B, H, T, d)."""
    return X if X.shape[1] == heads else split(merge(X), heads)  # (B, H, T, d)


def share(X: Array, times: int) -> Array:
    """Repeat each head of keys for the heads of queries that share it: (B, G, K, d) -> (B, H, K, d)."""
    return X if times == 1 else np.repeat(X, times, 1)  # (B, H, K, d)


def sigmoid(X: Array) -> Array:
    """Return 1 / (1 + exp(-X)) in float32 at least; no exponential of it overflows."""
    small = np.exp(-np.abs(widen(X)))
    return np.where(X < 0, small, 1) / (1 + small)


def norm(plan: Any, role: str, X: Array) -> Array:
    """Normalize the heads of queries, keys or values (B, H, T, d), and scale them."""
    normalized, _, scale = parts_of_norm(plan, role, X)
    return (normalized * scale).astype(X.dtype)


def parts_of_norm(plan: Any, role: str, X: Array) -> tuple[Array, Array, Array]:
    """Return heads (B, H, T, d) without their norm's scale, what divides them, and the scale (H or 1, 1, d)."""
    own, X = plan.norms[role], widen(X)
    axes = (1, 3) if own.over == "all" else 3
    if own.kind == "layer":
        X = X - X.mean(axes, keepdims=True)
    roots = plan.root((X * X).mean(axes, keepdims=True), own.eps)  # (B, H or 1, T, 1)
    return X / roots, roots, widen(plan.weights[f"{role}_norm.scale"]).reshape(-1, 1, X.shape[3])


def root(squares: Array, eps: float) -> Array:
    """Return the divisor of a norm."""
    return np.sqrt(squares + eps)


def rotate(plan: Any, role: str, X: Array, places: Array) -> Array:
    """Rotate heads of a role, (B, H, T, d), by positions (B or 1, T)."""
    frequencies = plan.frequencies.astype(plan.angles)
    return turn(
        X, places.astype(plan.angles), frequencies, plan.interleaved, lambda part: plan.table(plan.magnitude * part)
    )


def turn(
    X: Array, places: Array, frequencies: Array, interleaved: bool, table: Callable[[Array], Array] = as_it_is
) -> Array:
    """Rotate the pairs of components of X (B, H, T, d) by positions (B or 1, T) times frequencies (n,).

    table: applied to cosines and sines.
    """
    n, wide = len(frequencies), widen(X)
    angles = (places[..., None] * frequencies)[:, None]  # (B or 1, 1, T, n)
    cos, sin = (table(of_angles(angles).astype(wide.dtype)) for of_angles in (np.cos, np.sin))
    first, second = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if interleaved else (slice(n), slice(n, 2 * n))
    a, b, turned = wide[..., first], wide[..., second], wide.copy()
    turned[..., first], turned[..., second] = a * cos - b * sin, b * cos + a * sin
    return turned.astype(X.dtype)


def softmax(plan: Any, scores: Array, visible: Array) -> Array:
    """Return the softmax over the visible keys; a row without keys is 0."""
    return shares(plan, scores, visible)[..., : scores.shape[3]]


def shares(plan: Any, scores: Array, visible: Array) -> Array:
    """Return the softmax over the visible keys, (B, H, Q, K), with one more column for sinks, if there are any."""
    scores, visible = beside_sinks(plan, scores), beside_sinks(plan, visible, True)
    hidden = np.where(visible.any(plan.axis, keepdims=True), -np.inf, 0).astype(scores.dtype)
    return np.where(visible, plain_softmax(np.where(visible, scores, hidden), plan.axis), 0).astype(scores.dtype)


def half_softmax(into: Into, sums: Into, plan: Any, scores: Array, visible: Array) -> Array:
    """Return the softmax over the visible keys, each step rounded; a row without keys is 0."""
    return half_shares(into, sums, plan, scores, visible)[..., : scores.shape[3]]


def half_shares(into: Into, sums: Into, plan: Any, scores: Array, visible: Array) -> Array:
    """Return the same beside sinks; sums: adds up exponentials, (K or K + 1, B, H, Q), over keys."""
    scores, visible = beside_sinks(plan, scores), beside_sinks(plan, visible, True)
    low = np.where(visible, scores, -np.inf).astype(scores.dtype)
    exponentials = into(np.exp(into(low - low.max(-1, keepdims=True, initial=np.finfo(np.float32).min))))
    return into(shares_of(into, exponentials, sums(np.moveaxis(exponentials, -1, 0))[..., None]))  # (B, H, Q, K)


def softmax_of_all(plan: Any, scores: Array) -> Array:
    """Return the softmax over all keys, hidden ones too, and sinks."""
    return plain_softmax(beside_sinks(plan, scores), plan.axis)[..., : scores.shape[3]]


def plain_softmax(scores: Array, axis: int) -> Array:
    """Return the softmax over an axis, nothing hidden."""
    exponentials = np.exp(scores - scores.max(axis, keepdims=True, initial=np.finfo(scores.dtype).min))
    return exponentials / exponentials.sum(axis, keepdims=True)


def beside_sinks(plan: Any, X: Array, number: Any = None) -> Array:
    """Append a column to pairs (B, H, Q, K) if there are sinks: the sinks themselves, or a number."""
    if (sinks := plan.weights.get("sinks")) is None:
        return X
    column = widen(sinks)[:, None, None] if number is None else number
    return np.concatenate([X, np.broadcast_to(column, (*X.shape[:3], 1)).astype(X.dtype)], 3)  # (B, H, Q, K + 1)


def log_sum_exp(plan: Any, scores: Array, visible: Array) -> Array:
    """Return the logarithm of the sum of the exponentials of visible scores and of sinks, (B, H, Q, 1)."""
    return sums_of_exponentials(scores, visible, plan.weights.get("sinks"))


def scores(plan: Any, q: Array, k: Array) -> Array:
    """Return the scores (B, H, Q, K) of queries (B, H, Q, d) and keys (B, H, K, d), before the cap."""
    if plan.config.pooling == "dot":
        return plan.product(widen(q), widen(k).swapaxes(2, 3)) * widen(np.ones((), q.dtype)).dtype.type(plan.scale)
    W_q, W_k, w_v = (plan.weights[f"attention.{name}.kernel"] for name in ("W_q", "W_k", "w_v"))
    sums = plan.product(q, W_q)[:, :, :, None] + plan.product(k, W_k)[:, :, None]  # (B, H, Q, K, d)
    return widen(plan.product(np.tanh(sums), w_v)[..., 0])


def cap(plan: Any, X: Array) -> Array:
    """Cap scores smoothly, by tanh."""
    return plan.softcap * np.tanh(X / plan.softcap)


def bend(plan: Any, X: Array) -> Steps:
    """Cap the scores (B, H, Q, K) and add the bias; minus infinity in it hides a key, and adds nothing."""
    steps = {}
    if plan.softcap is not None:
        steps["capped"] = X = plan.cap(plan, X)
    if plan.score_bias is not None:
        steps["biased"] = X = X + finite_bias(plan)
    return steps


def finite_bias(plan: Any) -> Array:
    """Return the bias of scores where it is finite, 0 elsewhere, in the samples and queries to compute."""
    bias = widen(plan.once("finite", finite, plan.score_bias))
    return np.asarray(plan.of_pairs(bias))


def finite(X: Array) -> Array:
    """Return X with 0 in place of minus infinity."""
    hidden = np.isneginf(X)
    return np.where(hidden, 0, X).astype(X.dtype) if hidden.any() else X


def within(plan: Any) -> Array:
    """Return whether keys are in the window: at most so many positions before and after the query; None = any."""
    (left, right), places = plan.window, plan.query_places(plan.window_offsets)
    seen = np.ones((1, 1, 1, 1), bool)
    if left is not None:
        seen = seen & (plan.key_places >= places - left)
    return seen if right is None else seen & (plan.key_places <= places + right)


# The conditions for a key to be seen: each returns booleans that broadcast against (B, H, Q, K).
CONDITIONS: dict[str, Callable[[Any], Array]] = {
    "lengths": lambda plan: np.arange(plan.keys.shape[1]) < plan.lengths,
    "mask": lambda plan: plan.mask,
    "bias": lambda plan: plan.score_bias != -np.inf,
    "order": lambda plan: plan.key_places <= plan.query_places(plan.order_offsets),
    "window": within,
    "chunk": lambda plan: plan.key_places // plan.chunk == plan.query_places(plan.chunk_offsets) // plan.chunk,
    "positions": lambda plan: plan.positions[:, None, :, None] >= 0,
    "key_positions": lambda plan: plan.key_positions[:, None, None] >= 0,
    "segments": lambda plan: plan.segments[:, None, :, None] == plan.key_segments[:, None, None],
    "key_segments": lambda plan: plan.key_segments[:, None, None] >= 0,
}
