"""A right kernel in plain steps of NumPy, with log-sum-exp and every option, and mistakes that can be made in it."""

import functools

import numpy as np


def attend(
    q, k, v, causal=False, window=None, scale=None, softcap=None, mask=None, bias=None, lengths=None, sinks=None, *,
    wrong="",
):  # fmt: skip
    """The output (B, H, Q, dv) and the log-sum-exp (B, H, Q); wrong: the name of a mistake."""
    dtype, wide = q.dtype, np.promote_types(q.dtype, np.float32)
    repeat = np.tile if wrong == "tiled heads" else lambda X, n: np.repeat(X, n[1], 1)
    k, v = (repeat(X.astype(wide), (1, q.shape[1] // k.shape[1], 1, 1)) for X in (k, v))  # (B, H, K, d)
    scale = (1 if wrong == "no scale" else q.shape[3] ** -0.5) if scale is None else scale
    seen = visible(q.shape[2], k.shape[2], causal, window, mask, lengths, wrong)  # (B or 1, H or 1, Q, K)
    k, v = (np.where(seen.any((1, 2))[:, None, :, None], X, 0) for X in (k, v))  # NaN where nobody looks stays there
    scores = q.astype(wide) @ k.swapaxes(2, 3) * wide.type(scale)  # (B, H, Q, K)
    if softcap is not None and wrong != "no cap":
        scores = wide.type(softcap) * np.tanh(scores / wide.type(softcap))
    if bias is not None:
        scores = scores + bias.astype(wide)
    scores = np.where(seen, scores, -np.inf)
    if sinks is not None:
        column = np.broadcast_to(sinks.astype(wide)[:, None, None], (*scores.shape[:3], 1))  # (B, H, Q, 1)
        scores = np.concatenate([scores, column], -1)  # (B, H, Q, K + 1)
    largest = scores.max(-1, keepdims=True, initial=np.finfo(wide).min)  # (B, H, Q, 1)
    shares = np.exp(scores - (0 if wrong == "no maximum" else largest))
    total = shares.sum(-1, keepdims=True)  # (B, H, Q, 1)
    lse = np.log(total) + (0 if wrong in ("no maximum", "log-sum-exp without the maximum") else largest)
    weights = shares[..., : k.shape[2]] / np.where(total == 0, 1, total)
    output = (weights @ v).astype(dtype)  # (B, H, Q, dv)
    if wrong == "row 31 of 32":
        output[:, :, 31::32] = 0
    return output, np.where(seen.any(3), lse[..., 0], -np.inf)


def visible(Q, K, causal, window, mask, lengths, wrong):
    """Which query sees which key, booleans that broadcast to (B, H, Q, K)."""
    i, j = np.arange(Q)[:, None], np.arange(K)
    i = i + (K - Q if wrong == "lower right" else 0)
    seen = (j <= i + (wrong == "a key more")) if causal else np.ones((Q, K), bool)
    left, right = window or (None, None)
    if left is not None:
        seen &= j >= i - left
    if right is not None:
        seen &= j <= i + right + (wrong == "a wider window")
    seen = seen[None, None]  # (1, 1, Q, K)
    if mask is not None:
        seen = seen & (mask[:, :1] if wrong == "mask of the first head" else mask)
    if lengths is not None:
        seen = seen & (j <= lengths[:, None, None, None] - (wrong != "lengths are one too long"))
    return seen


WRONG = (
    "tiled heads", "no scale", "no cap", "no maximum", "log-sum-exp without the maximum", "row 31 of 32", "lower right",
    "a key more", "a wider window", "mask of the first head", "lengths are one too long",
)  # fmt: skip


def gradients(q, k, v, output, lse, cotangent, causal=False):
    """The gradients of a kernel with as many heads of keys as of queries, from what its forward pass returned."""
    scale = q.dtype.type(q.shape[3] ** -0.5)
    seen = visible(q.shape[2], k.shape[2], causal, None, None, None, "")
    weights = np.where(seen, np.exp(q @ k.swapaxes(2, 3) * scale - lse[..., None]), 0)  # (B, H, Q, K)
    by_weights = cotangent @ v.swapaxes(2, 3)  # (B, H, Q, K)
    by_scores = weights * (by_weights - (cotangent * output).sum(-1, keepdims=True)) * scale
    return by_scores @ k, by_scores.swapaxes(2, 3) @ q, weights.swapaxes(2, 3) @ cotangent


def kernel_with(mistake):
    """The plain kernel with a mistake, as somebody may write it."""
    made = functools.partial(attend, wrong=mistake)
    made.__name__ = "kernel"
    return made
