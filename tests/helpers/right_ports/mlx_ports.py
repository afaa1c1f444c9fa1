"""Attention as people write it in MLX: by its kernels, by its layer, and in steps."""

import mlx.core as mx
import numpy as np
from draws import ABILITIES

import mha
from mha.parity.rule.layouts import OF_INPUTS

FUSED = ABILITIES - {"softcap"}


def own(X):
    """A NumPy array as MLX's own."""
    return mha.tensor(X, backend="mlx")


def hiding(trial):
    """A mask for MLX's kernel: a word, booleans, what is added to the scores, or None."""
    if trial.only_causal:
        return "causal"
    if trial.bias is None:
        return None if trial.seen is None else own(trial.seen)
    seen = True if trial.seen is None else trial.seen
    return own(np.where(seen, trial.bias, -np.inf).astype(trial.bias.dtype))


def attend(trial, pool):
    """The layer as the models of mlx-lm have it, around a pooling of q (B, H, Q, d), k and v (B, G, K, d)."""
    config, weights, (i, j) = trial.config, trial.arrays(own), trial.positions
    x, y, z = (weights[name] for name in OF_INPUTS)

    def linear(name, X):
        kernel = weights[f"{name}.kernel"]
        return mx.addmm(weights[f"{name}.bias"], X, kernel) if config.bias else X @ kernel

    def heads(name, X):
        return mx.unflatten(linear(name, X), -1, (-1, config.key_dim)).transpose(0, 2, 1, 3)  # (B, H, T, d)

    def norm(name, X):
        if config.qk_norm is None:
            return X
        weight, eps = weights[f"{name}.scale"], config.qk_norm.eps
        if config.qk_norm.kind == "rms":
            return mx.fast.rms_norm(X, weight, eps)
        return mx.fast.layer_norm(X, weight, None, eps)

    def turn(X, places):
        if (rotary := config.rotary) is None:
            return X
        how = {"traditional": rotary.interleaved, "base": rotary.base, "scale": 1.0, "offset": int(places[0])}
        return mx.fast.rope(X, rotary.dim, **how)

    q, k, v = heads("W_q", x), heads("W_k", y), heads("W_v", z)
    pooled = pool(trial, weights, turn(norm("q_norm", q), i), turn(norm("k_norm", k), j), v)
    pooled = pooled.transpose(0, 2, 1, 3)  # (B, Q, H, d)
    if config.output_gate:
        pooled = pooled * mx.sigmoid(mx.unflatten(linear("W_g", x), -1, (config.num_heads, -1)))  # (B, Q, H, d)
    return linear("W_o", pooled.flatten(-2))  # (B, Q, D)


def pool_by_kernel(trial, weights, q, k, v):
    """Pool by MLX's kernel."""
    how = {"scale": trial.scale, "mask": hiding(trial), "sinks": weights.get("sinks")}
    return mx.fast.scaled_dot_product_attention(q, k, v, **how)


def pool_in_steps(trial, weights, q, k, v, precise=False):
    """Pool in steps; precise: whether the softmax is in float32."""
    k, v = (mx.repeat(X, trial.share, 1) for X in (k, v))  # (B, H, K, d)
    scores = (q * trial.scale) @ k.transpose(0, 1, 3, 2)  # (B, H, Q, K)
    if cap := trial.config.softcap:
        scores = mx.tanh(scores / cap) * cap
    if trial.bias is not None:
        scores = scores + own(trial.bias)
    if trial.seen is not None:
        scores = mx.where(own(trial.seen), scores, mx.finfo(scores.dtype).min)
    K = scores.shape[-1]
    if trial.config.sinks:
        sinks = mx.broadcast_to(weights["sinks"][:, None, None], (*scores.shape[:3], 1))  # (B, H, Q, 1)
        scores = mx.concatenate([scores, sinks], -1)
    return mx.softmax(scores, axis=-1, precise=precise)[..., :K] @ v


def pool_precisely(*arguments):
    """Pool in steps, with the softmax in float32."""
    return pool_in_steps(*arguments, precise=True)


def layer(trial):
    """MLX's own layer; `to_native` leaves its weights in the dtype of the trial."""
    native, arrays = trial.layer.to_native("mlx.nn.MultiHeadAttention"), trial.arrays(own)
    if trial.given is not None:
        for role, module in {"q": "query", "k": "key", "v": "value", "o": "out"}.items():
            parts = {"weight": arrays[f"W_{role}.kernel"].T, "bias": arrays.get(f"W_{role}.bias")}
            native.update({f"{module}_proj": {name: X for name, X in parts.items() if X is not None}})
    return native(*(arrays[name] for name in OF_INPUTS), hiding(trial))


def gradients(port, trial, cotangent):
    """The gradients of sum(output * cotangent) by all inputs and weights of a port."""
    leaves = trial.leaves(own)

    def whole(*arrays):
        return port(trial.with_leaves(dict(zip(leaves, arrays, strict=True))))

    _, found = mx.vjp(whole, [*leaves.values()], [own(cotangent)])
    return dict(zip(leaves, found, strict=True))


PORTS = {
    "fast": (lambda trial: attend(trial, pool_by_kernel), FUSED),
    "steps": (lambda trial: attend(trial, pool_in_steps), ABILITIES),
    "precise": (lambda trial: attend(trial, pool_precisely), ABILITIES),
    "layer": (layer, {"bias", "score_bias"}),
}
