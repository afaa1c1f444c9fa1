"""All levels in NumPy, with a backward pass by hand."""

import numpy as np


def masked_softmax(X, valid_lens=None):
    if valid_lens is not None:
        lens = valid_lens if valid_lens.ndim == 2 else valid_lens[:, None]
        X = np.where(np.arange(X.shape[-1]) < lens[..., None], X, -1e6)
    e = np.exp(X - X.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class DotProductAttention:
    def __init__(self, dropout=0.0):
        self.attention_weights = None

    def __call__(self, queries, keys, values, valid_lens=None):
        scores = queries @ keys.transpose(0, 2, 1) / np.sqrt(queries.shape[-1])
        self.attention_weights = masked_softmax(scores, valid_lens)
        return self.attention_weights @ values


def transpose_qkv(X, num_heads):
    B, T, D = X.shape
    return X.reshape(B, T, num_heads, -1).transpose(0, 2, 1, 3).reshape(B * num_heads, T, -1)


def transpose_output(X, num_heads):
    BH, T, d = X.shape
    return X.reshape(-1, num_heads, T, d).transpose(0, 2, 1, 3).reshape(-1, T, num_heads * d)


def rotate(X, positions, base):
    half = X.shape[-1] // 2
    angles = positions[:, None] * base ** (-np.arange(half) / half)
    a, b = X[..., :half], X[..., half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)


class MultiHeadAttention:
    def __init__(self, num_hiddens, num_heads, dropout=0.0, bias=False, num_key_value_heads=None, rotary=None, seed=0):
        rng = np.random.default_rng(seed)
        self.num_heads, self.rotary = num_heads, rotary
        self.groups = num_key_value_heads or num_heads
        d = num_hiddens // num_heads
        self.W_q = rng.normal(size=(num_hiddens, num_hiddens))
        self.W_k = rng.normal(size=(num_hiddens, self.groups * d))
        self.W_v = rng.normal(size=(num_hiddens, self.groups * d))
        self.W_o = rng.normal(size=(num_hiddens, num_hiddens))
        if bias:
            self.b_q, self.b_o = np.zeros(num_hiddens), np.zeros(num_hiddens)
            self.b_k, self.b_v = np.zeros(self.groups * d), np.zeros(self.groups * d)

    def dense(self, X, letter):
        X = X @ getattr(self, f"W_{letter}")
        return X + getattr(self, f"b_{letter}") if hasattr(self, f"b_{letter}") else X

    def __call__(self, queries, keys, values, valid_lens=None, mask=None, causal=False, cache=None):
        H, G = self.num_heads, self.groups
        self.inputs = queries, keys, values
        q = transpose_qkv(self.dense(queries, "q"), H)
        k = transpose_qkv(self.dense(keys, "k"), G)
        v = transpose_qkv(self.dense(values, "v"), G)
        start = cache["k"].shape[1] if cache else 0
        if self.rotary:
            q = rotate(q, start + np.arange(q.shape[1]), self.rotary)
            k = rotate(k, start + np.arange(k.shape[1]), self.rotary)
        if cache is not None:
            if cache:
                k = np.concatenate([cache["k"], k], 1)
                v = np.concatenate([cache["v"], v], 1)
            cache = {"k": k, "v": v}
        k, v = np.repeat(k, H // G, 0), np.repeat(v, H // G, 0)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        Q, K = scores.shape[1:]
        seen = np.ones((1, Q, K), bool)
        if valid_lens is not None:
            lens = valid_lens if valid_lens.ndim == 2 else valid_lens[:, None]
            seen = seen & np.repeat(np.arange(K) < lens[..., None], H, 0)
        if mask is not None:
            seen = seen & (mask if mask.ndim == 2 else np.repeat(mask, H, 0))
        if causal:
            seen = seen & (np.arange(K) <= start + np.arange(Q)[:, None])
        scores = np.where(seen, scores, -1e9)
        weights = masked_softmax(scores)
        pooled = weights @ v
        merged = transpose_output(pooled, H)
        self.saved = q, k, v, weights, merged
        output = self.dense(merged, "o")
        return output if cache is None else (output, cache)

    def backward(self, cotangent):
        H = self.num_heads
        queries, keys, values = self.inputs
        q, k, v, weights, merged = self.saved
        by_merged = cotangent @ self.W_o.T
        by_pooled = transpose_qkv(by_merged, H)
        by_weights = by_pooled @ v.transpose(0, 2, 1)
        by_v = weights.transpose(0, 2, 1) @ by_pooled
        by_scores = weights * (by_weights - (by_weights * weights).sum(-1, keepdims=True))
        by_scores = by_scores / np.sqrt(q.shape[-1])
        by_q = transpose_output(by_scores @ k, H)
        by_k = transpose_output(by_scores.transpose(0, 2, 1) @ q, H)
        by_v = transpose_output(by_v, H)
        return {
            "queries": by_q @ self.W_q.T,
            "keys": by_k @ self.W_k.T,
            "values": by_v @ self.W_v.T,
            "W_q": np.einsum("bti,bto->io", queries, by_q),
            "W_k": np.einsum("bti,bto->io", keys, by_k),
            "W_v": np.einsum("bti,bto->io", values, by_v),
            "W_o": np.einsum("bti,bto->io", merged, cotangent),
        }
