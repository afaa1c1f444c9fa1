"""Right kernels in NumPy: in steps, and in tiles."""

import numpy as np

from kernel_zoo import Kernel
from kernel_zoo.calls import by_hand
from kernel_zoo.flash import Flash, Packed, ToBase2


def steps(q, k, v, attn_mask=None, scale=None):
    """Attend in steps; layout (B, T, H, d)."""
    q, k, v = (X.swapaxes(1, 2) for X in (q, k, v))  # (B, H, T, d)
    k, v = (np.repeat(X, q.shape[1] // X.shape[1], axis=1) for X in (k, v))  # (B, H, K, d)
    scores = (q @ k.swapaxes(2, 3)).astype(np.float32) * np.float32(q.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        scores = np.where(attn_mask, scores, np.float32(-1e30))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = (weights / weights.sum(-1, keepdims=True)).astype(q.dtype)
    return (weights @ v).swapaxes(1, 2)  # (B, Q, H, d)


def flash(kernel=Flash, **tiles):
    """Return a kernel in tiles of some sizes, with its backward pass."""
    made = kernel(**tiles)
    return Kernel(made, backward=made.backward, holds={"causal": "lower right"} if made.lower_right else {})


def packed(made):
    """Return a packed kernel, which takes what a tiled one does, with its backward pass."""
    takes = ("cu_seqlens_q", "cu_seqlens_k", "causal", "window", "softcap", "scale", "sinks")
    holds = {"causal": "lower right"} if made.flash.lower_right else {}
    return Kernel(made, "THD", holds, takes, backward=made.backward)


RIGHT = {
    "steps": Kernel(steps, "BTHD", empty_rows=False),
    "flash 32": flash(),
    "flash 64 x 32": flash(rows=64),
    "flash 32 x 64": flash(columns=64),
    "flash lower right": flash(columns=64, lower_right=True),
    "flash to base 2": flash(ToBase2),
    "packed": packed(Packed(Flash())),
    "packed lower right": packed(Packed(Flash(columns=64, lower_right=True))),
}


run = by_hand
