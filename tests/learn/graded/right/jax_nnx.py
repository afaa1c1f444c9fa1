"""Flax NNX, with einsum, and masks of booleans."""

import jax
import jax.numpy as jnp
from flax import nnx


def masked_softmax(X, valid_lens=None):
    if valid_lens is not None:
        lens = valid_lens.reshape(X.shape[0], -1, 1)
        X = jnp.where(jnp.arange(X.shape[-1]) < lens, X, jnp.finfo(X.dtype).min)
    return jax.nn.softmax(X, axis=-1)


def dot_product_attention(queries, keys, values, valid_lens=None):
    scores = jnp.einsum("bqd,bkd->bqk", queries, keys) * queries.shape[-1] ** -0.5
    return jnp.einsum("bqk,bkv->bqv", masked_softmax(scores, valid_lens), values)


def transpose_qkv(X, num_heads):
    B, T, D = X.shape
    return X.reshape(B, T, num_heads, D // num_heads).transpose(0, 2, 1, 3)


def transpose_output(X, num_heads):
    B, H, T, d = X.shape
    return X.transpose(0, 2, 1, 3).reshape(B, T, H * d)


class MultiHeadAttention(nnx.Module):
    def __init__(self, num_hiddens, num_heads, dropout=0.0, bias=False, *, rngs):
        self.num_heads = num_heads
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.W_q = nnx.Linear(num_hiddens, num_hiddens, use_bias=bias, rngs=rngs)
        self.W_k = nnx.Linear(num_hiddens, num_hiddens, use_bias=bias, rngs=rngs)
        self.W_v = nnx.Linear(num_hiddens, num_hiddens, use_bias=bias, rngs=rngs)
        self.W_o = nnx.Linear(num_hiddens, num_hiddens, use_bias=bias, rngs=rngs)

    def __call__(self, queries, keys, values, valid_lens=None, mask=None, causal=False, deterministic=True):
        q = transpose_qkv(self.W_q(queries), self.num_heads)
        k = transpose_qkv(self.W_k(keys), self.num_heads)
        v = transpose_qkv(self.W_v(values), self.num_heads)
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
        Q, K = scores.shape[-2:]
        seen = jnp.ones((1, 1, Q, K), bool)
        if valid_lens is not None:
            seen = seen & (jnp.arange(K) < valid_lens.reshape(len(queries), 1, -1, 1))
        if mask is not None:
            seen = seen & (mask if mask.ndim == 2 else mask[:, None])
        if causal:
            seen = seen & jnp.tril(jnp.ones((Q, K), bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
        pooled = jnp.einsum("bhqk,bhkd->bhqd", self.dropout(weights, deterministic=deterministic), v)
        return self.W_o(transpose_output(pooled, self.num_heads)), weights
