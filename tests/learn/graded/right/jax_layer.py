"""Flax Linen, as the skeleton has it: fields, setup, masks of booleans, heads in the batch."""

import jax
from flax import linen as nn
from jax import numpy as jnp


def masked_softmax(X, valid_lens=None):
    if valid_lens is not None:
        X = jnp.where(jnp.arange(X.shape[-1]) < valid_lens.reshape(len(X), -1, 1), X, -jnp.inf)
    return jax.nn.softmax(X)


class DotProductAttention(nn.Module):
    dropout: float = 0.0

    def setup(self):
        self.drop = nn.Dropout(self.dropout)

    def __call__(self, queries, keys, values, valid_lens=None, deterministic=True):
        scores = queries @ keys.swapaxes(1, 2) / queries.shape[-1] ** 0.5
        return self.drop(masked_softmax(scores, valid_lens), deterministic=deterministic) @ values


def transpose_qkv(X, num_heads):
    B, T, D = X.shape
    return X.reshape(B, T, num_heads, -1).swapaxes(1, 2).reshape(B * num_heads, T, -1)


def transpose_output(X, num_heads):
    BH, T, d = X.shape
    return X.reshape(-1, num_heads, T, d).swapaxes(1, 2).reshape(-1, T, num_heads * d)


class MultiHeadAttention(nn.Module):
    num_hiddens: int
    num_heads: int
    dropout: float = 0.0
    bias: bool = False

    def setup(self):
        self.W_q = nn.Dense(self.num_hiddens, use_bias=self.bias)
        self.W_k = nn.Dense(self.num_hiddens, use_bias=self.bias)
        self.W_v = nn.Dense(self.num_hiddens, use_bias=self.bias)
        self.W_o = nn.Dense(self.num_hiddens, use_bias=self.bias)
        self.drop = nn.Dropout(self.dropout)

    def __call__(self, queries, keys, values, valid_lens=None, mask=None, causal=False, deterministic=True):
        H = self.num_heads
        q = transpose_qkv(self.W_q(queries), H)
        k = transpose_qkv(self.W_k(keys), H)
        v = transpose_qkv(self.W_v(values), H)
        scores = q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5
        Q, K = scores.shape[1:]
        if valid_lens is not None:
            lens = valid_lens.reshape(len(queries), -1, 1)
            scores = jnp.where(jnp.repeat(jnp.arange(K) < lens, H, 0), scores, -1e9)
        if mask is not None:
            scores = jnp.where(mask if mask.ndim == 2 else jnp.repeat(mask, H, 0), scores, -1e9)
        if causal:
            scores = jnp.where(jnp.arange(K) <= jnp.arange(Q)[:, None], scores, -1e9)
        pooled = self.drop(jax.nn.softmax(scores), deterministic=deterministic) @ v
        return self.W_o(transpose_output(pooled, H))
