"""All levels in one layer of PyTorch: masks, groups, rotation and a cache, heads kept on an axis of their own."""

import torch
import torch.nn as nn
from torch.nn import functional


def masked_softmax(X, valid_lens=None):
    if valid_lens is not None:
        lens = valid_lens[:, None, None] if valid_lens.dim() == 1 else valid_lens[:, :, None]
        hidden = torch.arange(X.shape[-1]) >= lens
        X = X.masked_fill(hidden, float("-inf"))
    return functional.softmax(X, dim=-1)


class DotProductAttention(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.p = dropout

    def forward(self, queries, keys, values, valid_lens=None):
        scores = queries @ keys.transpose(-2, -1) / queries.shape[-1] ** 0.5
        weights = masked_softmax(scores, valid_lens)
        return functional.dropout(weights, self.p, self.training) @ values


def transpose_qkv(X, num_heads):
    B, T, D = X.shape
    return X.view(B, T, num_heads, D // num_heads).transpose(1, 2).reshape(B * num_heads, T, D // num_heads)


def transpose_output(X, num_heads):
    BH, T, d = X.shape
    return X.view(BH // num_heads, num_heads, T, d).transpose(1, 2).reshape(BH // num_heads, T, num_heads * d)


def rotate(X, positions, base):
    half = X.shape[-1] // 2
    frequencies = base ** (-torch.arange(half) / half)
    angles = positions[:, None] * frequencies
    a, b = X[..., :half], X[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout=0.0, bias=False, num_key_value_heads=None, rotary=None):
        super().__init__()
        self.num_heads = num_heads
        self.groups = num_key_value_heads or num_heads
        self.rotary = rotary
        self.dropout = nn.Dropout(dropout)
        self.d = num_hiddens // num_heads
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_k = nn.Linear(num_hiddens, self.groups * self.d, bias=bias)
        self.W_v = nn.Linear(num_hiddens, self.groups * self.d, bias=bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)

    def split(self, X, heads):
        return X.view(X.shape[0], X.shape[1], heads, self.d).transpose(1, 2)

    def forward(self, queries, keys, values, valid_lens=None, mask=None, causal=False, cache=None):
        B, Q, _ = queries.shape
        q = self.split(self.W_q(queries), self.num_heads)
        k = self.split(self.W_k(keys), self.groups)
        v = self.split(self.W_v(values), self.groups)
        start = cache["k"].shape[2] if cache else 0
        if self.rotary is not None:
            q = rotate(q, start + torch.arange(Q), self.rotary)
            k = rotate(k, start + torch.arange(k.shape[2]), self.rotary)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
            cache = {"k": k, "v": v}
        times = self.num_heads // self.groups
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        scores = q @ k.transpose(-2, -1) / self.d**0.5
        K = k.shape[2]
        seen = torch.ones(B, 1, Q, K, dtype=torch.bool)
        if valid_lens is not None:
            lens = valid_lens.view(B, 1, -1, 1)
            seen = seen & (torch.arange(K) < lens)
        if mask is not None:
            seen = seen & (mask if mask.dim() == 2 else mask[:, None])
        if causal or cache is not None:
            seen = seen & (torch.arange(K) <= start + torch.arange(Q)[:, None])
        weights = torch.softmax(scores.masked_fill(~seen, -1e9), -1)
        pooled = self.dropout(weights) @ v
        merged = pooled.transpose(1, 2).reshape(B, Q, self.num_heads * self.d)
        output = self.W_o(merged)
        return output if cache is None else (output, cache)
