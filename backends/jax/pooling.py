"""Chapter 2: attention poolings, in JAX: scores of queries and keys, and values weighed by their softmax.

Letters: B batch, Q queries, K key-value pairs, d width of a query or key, dv width of a value. In the layer, which
pools all heads at once, B counts the heads of all samples.

Sources: Vaswani et al., Attention Is All You Need (2017), section 3.2.1; Bahdanau et al., Neural Machine Translation by
Jointly Learning to Align and Translate (2015), appendix A.1.2; Dive into Deep Learning, section "Attention Scoring
Functions".
"""

import math

from flax import linen as nn
from jax import numpy as jnp

from mha.core.call import record_step

from .hiding import visible_softmax, widen, zero_unused
from .weights import dense


class AttentionPooling(nn.Module):
    """Weigh the values by a softmax of scores, which subclasses define."""

    dropout: float
    softcap = None  # type: float | None  # a field of the subclasses, where it comes after theirs

    def setup(self):
        self.dropping = nn.Dropout(self.dropout)

    def __call__(self, queries, keys, values, visible=None, score_bias=None, training=None, sinks=None):
        """Pool values (B, K, dv) for queries (B, Q, d) over keys (B, K, d).

        visible broadcasts against (B, Q, K). score_bias, which is added to the scores, does, too. sinks, (B or 1, Q or
        1, 1), are one more score of each query, which takes its share of the softmax and pools nothing.
        Returns the pooled values (B, Q, dv) and the weights (B, Q, K) before dropout.
        """
        return self.weigh(*zero_unused(queries, keys, values, visible), visible, score_bias, training, sinks)

    def weigh(self, queries, keys, values, visible=None, score_bias=None, training=None, sinks=None):
        """Pool queries, keys and values that are zero already where they are not used; arguments as of a call."""
        scores = self.bend(record_step("scores", self.scores(queries, keys)), visible, score_bias)  # (B, Q, K)
        weights = visible_softmax(scores, visible, sinks)  # (B, Q, K)
        kept = record_step("weights", weights.astype(values.dtype))  # (B, Q, K)
        pooled = jnp.matmul(self.drop(weights, training), widen(values))  # (B, Q, dv)
        return pooled.astype(values.dtype), kept

    def bend(self, scores, visible=None, score_bias=None):
        """Scores (B, Q, K) as the softmax takes them: capped, if there is a cap, and with the bias that is added."""
        if self.softcap is not None:
            scores = record_step("capped", cap(scores, self.softcap, visible))  # (B, Q, K)
        if score_bias is not None:
            scores = record_step("biased", scores + widen(score_bias))  # (B, Q, K)
        return scores

    def drop(self, weights, training):
        """Dropout of attention weights when training, None = as the framework says; the kept ones grow to make up."""
        return self.dropping(weights, deterministic=not training)


class DotProductAttention(AttentionPooling):
    """Scaled dot-product attention: softmax(scale * q k^T) v, with scale = 1 / sqrt(d) unless given."""

    scale: float | None = None
    softcap: float | None = None

    def scores(self, queries, keys):
        """Scaled dot products of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        scale = 1 / math.sqrt(queries.shape[-1]) if self.scale is None else self.scale
        return jnp.matmul(widen(queries), widen(keys).swapaxes(1, 2)) * scale  # (B, Q, K)


class AdditiveAttention(AttentionPooling):
    """Additive attention: softmax(w_v^T tanh(W_q q + W_k k)) v."""

    num_hiddens: int
    query_size: int | None
    key_size: int | None
    dtype: str = "float32"
    softcap: float | None = None

    def setup(self):
        super().setup()
        self.W_q = dense(self.query_size, self.num_hiddens, False, self.dtype)
        self.W_k = dense(self.key_size, self.num_hiddens, False, self.dtype)
        self.w_v = dense(self.num_hiddens, 1, False, self.dtype)

    def scores(self, queries, keys):
        """Additive scores of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        features = jnp.tanh(self.W_q(queries)[:, :, None, :] + self.W_k(keys)[:, None, :, :])  # (B, Q, K, n)
        return widen(self.w_v(features)[:, :, :, 0])  # (B, Q, K)


def pooling(config, dot=DotProductAttention, additive=AdditiveAttention):
    """The attention pooling that a configuration asks for, one of two classes, acting on the split heads."""
    d = config.key_dim
    if config.pooling == "additive":
        return additive(config.dropout, d, d, d, config.dtype, config.softcap)
    return dot(config.dropout, config.scale, config.softcap)


def cap(scores, softcap, visible=None):
    """Scores (B, Q, K) bent so that none is beyond softcap either way; of hidden keys 0, as their own may be NaN."""
    scores = scores if visible is None else jnp.where(visible, scores, jnp.zeros_like(scores))
    return softcap * jnp.tanh(scores / softcap)  # (B, Q, K)
