"""Keras with einsum: heads on an axis of their own, masks of booleans."""

import keras
import tensorflow as tf


def masked_softmax(X, valid_lens=None):
    if valid_lens is not None:
        lens = valid_lens[:, None, None] if valid_lens.shape.rank == 1 else valid_lens[:, :, None]
        seen = tf.range(tf.shape(X)[-1]) < lens
        X += (1.0 - tf.cast(seen, X.dtype)) * -1e9
    return tf.nn.softmax(X)


def dot_product_attention(queries, keys, values, valid_lens=None):
    scores = tf.einsum("bqd,bkd->bqk", queries, keys) / float(queries.shape[-1]) ** 0.5
    weights = masked_softmax(scores, valid_lens)
    return tf.einsum("bqk,bkv->bqv", weights, values), weights


def transpose_qkv(X, num_heads):
    B, T, D = X.shape
    return tf.transpose(tf.reshape(X, (B, T, num_heads, D // num_heads)), (0, 2, 1, 3))


def transpose_output(X, num_heads):
    B, H, T, d = X.shape
    return tf.reshape(tf.transpose(X, (0, 2, 1, 3)), (B, T, H * d))


class MultiHeadAttention(keras.layers.Layer):
    def __init__(self, num_hiddens, num_heads, dropout=0.0, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = keras.layers.Dropout(dropout)
        self.W_q = keras.layers.Dense(num_hiddens, use_bias=bias)
        self.W_k = keras.layers.Dense(num_hiddens, use_bias=bias)
        self.W_v = keras.layers.Dense(num_hiddens, use_bias=bias)
        self.W_o = keras.layers.Dense(num_hiddens, use_bias=bias)

    def call(self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=False):
        q = transpose_qkv(self.W_q(queries), self.num_heads)
        k = transpose_qkv(self.W_k(keys), self.num_heads)
        v = transpose_qkv(self.W_v(values), self.num_heads)
        scores = tf.einsum("bhqd,bhkd->bhqk", q, k) / tf.sqrt(float(q.shape[-1]))
        Q, K = scores.shape[-2:]
        seen = tf.ones((1, 1, Q, K), tf.bool)
        if valid_lens is not None:
            seen = seen & (tf.range(K) < tf.reshape(valid_lens, (len(queries), 1, -1, 1)))
        if mask is not None:
            seen = seen & (mask if mask.shape.rank == 2 else mask[:, None])
        if causal:
            seen = seen & (tf.range(K) <= tf.range(Q)[:, None])
        weights = tf.nn.softmax(tf.where(seen, scores, -1e9))
        pooled = tf.einsum("bhqk,bhkd->bhqd", self.dropout(weights, training=training), v)
        return self.W_o(transpose_output(pooled, self.num_heads))
