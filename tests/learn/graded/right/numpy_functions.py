"""Functions alone, with einsum; the weights are arguments."""

import numpy as np


def masked_softmax(X, valid_lens=None):
    X = X - X.max(-1, keepdims=True)
    e = np.exp(X)
    if valid_lens is not None:
        lens = np.asarray(valid_lens).reshape(len(X), -1, 1)
        e = e * (np.arange(X.shape[-1]) < lens)
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-30)


def dot_product_attention(queries, keys, values, valid_lens=None):
    scores = np.einsum("bqd,bkd->bqk", queries, keys) / np.sqrt(queries.shape[-1])
    weights = masked_softmax(scores, valid_lens)
    return np.einsum("bqk,bkd->bqd", weights, values), weights


def transpose_qkv(X, num_heads):
    return np.concatenate(np.split(X[:, None], num_heads, axis=-1), axis=1)


def transpose_output(X, num_heads):
    return np.concatenate([X[:, h] for h in range(num_heads)], axis=-1)


def multi_head_attention(queries, keys, values, W_q, W_k, W_v, W_o, num_heads, valid_lens=None):
    q = transpose_qkv(queries @ W_q, num_heads)
    k = transpose_qkv(keys @ W_k, num_heads)
    v = transpose_qkv(values @ W_v, num_heads)
    heads = [dot_product_attention(q[:, h], k[:, h], v[:, h], valid_lens)[0] for h in range(num_heads)]
    return np.concatenate(heads, axis=-1) @ W_o
