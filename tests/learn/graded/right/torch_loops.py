"""A loop over the heads, each with projections of its own, and names of its own."""

import numpy as np
import torch
from torch import nn

NAMES = {"W_q": "query", "W_k": "key", "W_v": "value", "W_o": "out"}


def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        return torch.softmax(X, 2)
    B, Q, K = X.shape
    X = X.clone()
    for b in range(B):
        for i in range(Q):
            n = valid_lens[b] if valid_lens.ndim == 1 else valid_lens[b, i]
            X[b, i, n:] = -1e6
    return torch.softmax(X, 2)


def dot_product_attention(queries, keys, values, valid_lens=None):
    scores = torch.einsum("bqd,bkd->bqk", queries, keys) / np.sqrt(keys.size(-1))
    weights = masked_softmax(scores, valid_lens)
    return torch.einsum("bqk,bkd->bqd", weights, values), weights


def transpose_qkv(X, num_heads):
    return torch.stack(X.chunk(num_heads, dim=-1), dim=1)


def transpose_output(X, num_heads):
    return torch.cat([X[:, h] for h in range(num_heads)], dim=-1)


class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads):
        super().__init__()
        d = num_hiddens // num_heads
        self.query = nn.ModuleList([nn.Linear(num_hiddens, d) for _ in range(num_heads)])
        self.key = nn.ModuleList([nn.Linear(num_hiddens, d) for _ in range(num_heads)])
        self.value = nn.ModuleList([nn.Linear(num_hiddens, d) for _ in range(num_heads)])
        self.out = nn.Linear(num_hiddens, num_hiddens)

    def forward(self, queries, keys, values, valid_lens=None):
        heads = []
        for W_q, W_k, W_v in zip(self.query, self.key, self.value, strict=True):
            head, _ = dot_product_attention(W_q(queries), W_k(keys), W_v(values), valid_lens)
            heads.append(head)
        return self.out(torch.cat(heads, -1))
