"""Attention in steps of NumPy, with ml_dtypes: products are summed in float32, and each step is rounded."""

import numpy as np
from draws import ABILITIES


def steps(trial):
    """Attend, and round each step."""
    config, weights, dtype = trial.config, trial.layer.weights, trial.inputs[0].dtype

    def matmul(X, Y):
        return (X.astype("float32") @ Y.astype("float32")).astype(dtype)

    def linear(name, X):
        X = matmul(X, weights[f"{name}.kernel"])
        return X + weights[f"{name}.bias"] if config.bias else X

    def split(X):
        return X.reshape(*X.shape[:2], -1, config.key_dim).transpose(0, 2, 1, 3)  # (B, H, T, d)

    def norm(name, X):
        if config.qk_norm is None:
            return X
        wide = X.astype("float32")
        if config.qk_norm.kind == "layer":
            wide = wide - wide.mean(-1, keepdims=True)
        wide = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + np.float32(config.qk_norm.eps))
        return wide.astype(dtype) * weights[f"{name}.scale"]

    def turn(X, places):
        if config.rotary is None:
            return X
        n, angles, Y = config.rotary.dim // 2, trial.angles(places), X.copy()
        cos, sin = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)  # (T, n)
        pairs = (slice(0, n), slice(n, 2 * n))
        one, other = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if config.rotary.interleaved else pairs
        Y[..., one] = X[..., one] * cos - X[..., other] * sin
        Y[..., other] = X[..., other] * cos + X[..., one] * sin
        return Y

    x, y, z = trial.inputs
    q, k, v = split(linear("W_q", x)), split(linear("W_k", y)), split(linear("W_v", z))
    i, j = trial.positions
    q, k = turn(norm("q_norm", q), i), turn(norm("k_norm", k), j)
    k, v = k.repeat(trial.share, 1), v.repeat(trial.share, 1)  # (B, H, K, d)
    scores = matmul(q, k.swapaxes(2, 3)) * dtype.type(trial.scale)  # (B, H, Q, K)
    if config.softcap:
        cap = dtype.type(config.softcap)
        scores = np.tanh(scores / cap) * cap
    if trial.bias is not None:
        scores = scores + trial.bias
    if trial.seen is not None:
        scores = np.where(trial.seen, scores, dtype.type(-np.inf))
    largest = scores.astype("float32").max(-1, keepdims=True)
    sinks = weights["sinks"][:, None, None].astype("float32") if config.sinks else np.float32(-np.inf)
    largest = np.maximum(largest, sinks)
    shares = np.exp(scores - largest.astype(dtype))
    shares = shares / (shares.sum(-1, keepdims=True, dtype="float32") + np.exp(sinks - largest)).astype(dtype)
    pooled = matmul(shares, v)
    if config.output_gate:
        gates = linear("W_g", x)
        gates = gates.reshape(*x.shape[:2], config.num_heads, -1).transpose(0, 2, 1, 3)  # (B, H, Q, d or 1)
        pooled = pooled / (dtype.type(1) + np.exp(-gates))
    return linear("W_o", pooled.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))  # (B, Q, D)


PORTS = {"steps": (steps, ABILITIES)}
