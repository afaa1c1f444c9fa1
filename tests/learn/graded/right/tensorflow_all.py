"""Keras's operations, every level: a switch comes before the mask in a call, and a cache is a pair."""

import keras
from keras import ops


def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        return ops.softmax(X)
    lengths = ops.reshape(ops.cast(valid_lens, "int32"), (X.shape[0], -1, 1))
    return weigh(X, ops.arange(X.shape[-1]) < lengths)


def weigh(scores, seen):
    return ops.softmax(ops.where(seen, scores, -1e9))


class DotProductAttention(keras.layers.Layer):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.dropout = keras.layers.Dropout(dropout)

    def call(self, queries, keys, values, valid_lens=None, training=False):
        scores = ops.matmul(queries, ops.transpose(keys, (0, 2, 1))) / queries.shape[-1] ** 0.5
        weights = masked_softmax(scores, valid_lens)
        return ops.matmul(self.dropout(weights, training=training), values), weights


def transpose_qkv(X, num_heads):
    B, T, D = X.shape
    return ops.transpose(ops.reshape(X, (B, T, num_heads, D // num_heads)), (0, 2, 1, 3))


def transpose_output(X, num_heads):
    B, H, T, d = X.shape
    return ops.reshape(ops.transpose(X, (0, 2, 1, 3)), (B, T, H * d))


def rotate(X, base, start):
    half = X.shape[-1] // 2
    frequencies = base ** (-ops.arange(half, dtype="float32") / half)
    angles = ops.cast(start + ops.arange(X.shape[2]), "float32")[:, None] * frequencies
    one, two, sines, cosines = X[..., :half], X[..., half:], ops.sin(angles), ops.cos(angles)
    return ops.concatenate([one * cosines - two * sines, two * cosines + one * sines], -1)


class MultiHeadAttention(keras.layers.Layer):
    def __init__(self, num_hiddens, num_heads, dropout=0.0, bias=False, num_kv_heads=None, rope_base=None):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.rope_base = num_heads, num_kv_heads or num_heads, rope_base
        width = num_hiddens // num_heads * self.num_kv_heads
        self.dropout = keras.layers.Dropout(dropout)
        self.W_q, self.W_o = (keras.layers.Dense(num_hiddens, use_bias=bias) for _ in range(2))
        self.W_k, self.W_v = (keras.layers.Dense(width, use_bias=bias) for _ in range(2))

    def call(self, queries, keys, values, valid_lens=None, training=False, causal=False, mask=None, cache=None):
        start = cache[0].shape[2] if cache else 0
        q = transpose_qkv(self.W_q(queries), self.num_heads)
        k, v = (transpose_qkv(W(X), self.num_kv_heads) for W, X in ((self.W_k, keys), (self.W_v, values)))
        if self.rope_base:
            q, k = rotate(q, self.rope_base, start), rotate(k, self.rope_base, start)
        if cache:
            k, v = ops.concatenate([cache[0], k], 2), ops.concatenate([cache[1], v], 2)
        after = [k, v]
        k, v = (ops.repeat(X, self.num_heads // self.num_kv_heads, 1) for X in (k, v))
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / q.shape[-1] ** 0.5
        Q, K = scores.shape[-2:]
        seen = ops.ones((1, 1, Q, K), "bool")
        if valid_lens is not None:
            seen = seen & (ops.arange(K) < ops.reshape(ops.cast(valid_lens, "int32"), (q.shape[0], 1, -1, 1)))
        if mask is not None:
            seen = seen & (mask if len(mask.shape) == 2 else mask[:, None])
        if causal:
            seen = seen & (ops.arange(K) <= start + ops.arange(Q)[:, None])
        weights = weigh(scores, seen)
        pooled = ops.matmul(self.dropout(weights, training=training), v)
        output = self.W_o(transpose_output(pooled, self.num_heads))
        return (output, after) if cache is not None else (output, weights)
