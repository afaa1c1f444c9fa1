"""Latent attention as in DeepSeek-V2 and -V3: a layer of `mha` that computes the same from the compressed numbers."""

import numpy as np

import mha


def latent(
    weights: dict[str, np.ndarray], H: int, turned: int, rotary: mha.Rotary, scale: float | None = None
) -> mha.MultiHeadAttention:
    """A layer for DeepSeek's weights by name, of queries (B, T, r), of keys [latents | what turns], and of latents.

    turned: how many components of a head turn: here they are the first, in the file the last ones.
    """
    W_q, W_kv, W_o = (weights[f"{name}_proj.weight"].T for name in ("q_b", "kv_b", "o"))  # (in, out)
    r, wide = len(W_kv), len(W_o) // H  # the width of a latent, and of a head of values
    W_q = W_q.reshape(len(W_q), H, -1)  # (r of queries, H, d)
    still = W_q.shape[2] - turned  # components of a head that do not turn
    W_kv = W_kv.reshape(r, H, still + wide)  # (r, H, still + dv)
    W_k = np.zeros((r + turned, H, turned + still), W_o.dtype)
    W_k[r:, :, :turned], W_k[:r, :, turned:] = np.eye(turned)[:, None], W_kv[:, :, :still]
    layer = mha.MultiHeadAttention(
        W_o.shape[1],
        H,
        query_size=len(W_q),
        key_size=len(W_k),
        value_size=r,
        key_dim=turned + still,
        value_dim=wide,
        rotary=rotary,
        scale=scale,
    )
    kernels = np.roll(W_q, turned, 2), W_k, W_kv[:, :, still:], W_o
    layer.weights = {f"W_{name}.kernel": X.reshape(len(X), -1) for name, X in zip("qkvo", kernels, strict=True)}
    return layer
