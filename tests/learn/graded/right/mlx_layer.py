"""MLX, with heads on an axis of their own."""

import mlx.core as mx
from mlx import nn


def masked_softmax(X, valid_lens=None):
    if valid_lens is not None:
        seen = mx.arange(X.shape[-1]) < valid_lens.reshape(X.shape[0], -1, 1)
        X = mx.where(seen, X, mx.array(-1e9))
    return mx.softmax(X, axis=-1)


class DotProductAttention(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def __call__(self, queries, keys, values, valid_lens=None):
        scores = queries @ keys.swapaxes(-1, -2) / queries.shape[-1] ** 0.5
        return self.dropout(masked_softmax(scores, valid_lens)) @ values


def transpose_qkv(X, num_heads):
    B, T, D = X.shape
    X = X.reshape(B, T, num_heads, D // num_heads).transpose(0, 2, 1, 3)
    return X.reshape(B * num_heads, T, D // num_heads)


def transpose_output(X, num_heads):
    BH, T, d = X.shape
    X = X.reshape(BH // num_heads, num_heads, T, d).transpose(0, 2, 1, 3)
    return X.reshape(BH // num_heads, T, num_heads * d)


class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout=0.0, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.attention = DotProductAttention(dropout)
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_v = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)

    def __call__(self, queries, keys, values, valid_lens=None):
        q = transpose_qkv(self.W_q(queries), self.num_heads)
        k = transpose_qkv(self.W_k(keys), self.num_heads)
        v = transpose_qkv(self.W_v(values), self.num_heads)
        if valid_lens is not None:
            valid_lens = mx.repeat(valid_lens, self.num_heads, axis=0)
        return self.W_o(transpose_output(self.attention(q, k, v, valid_lens), self.num_heads))
