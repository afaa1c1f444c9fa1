"""Chapter 2: attention poolings, in MXNet: scores of queries and keys, and values weighed by their softmax.

Letters: B batch, Q queries, K key-value pairs, d width of a query or key, dv width of a value. In the layer, which
pools all heads at once, B counts the heads of all samples.

Sources: Vaswani et al., Attention Is All You Need (2017), section 3.2.1; Bahdanau et al., Neural Machine Translation by
Jointly Learning to Align and Translate (2015), appendix A.1.2; Dive into Deep Learning, section "Attention Scoring
Functions".
"""

import math

from mxnet import autograd, np, npx
from mxnet.gluon import nn

from mha.core.call import record_step

from .hiding import over_axes, visible_softmax, where, widen, zero_unused
from .weights import dense


class AttentionPooling(nn.Block):
    """Weigh the values by a softmax of scores, which subclasses define."""

    def __init__(self, dropout, softcap=None):
        super().__init__()
        self.dropout, self.softcap = dropout, softcap

    def forward(self, queries, keys, values, visible=None, score_bias=None, training=None, sinks=None):
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
        pooled = npx.batch_dot(self.drop(weights, training), widen(values))  # (B, Q, dv)
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
        training = autograd.is_training() if training is None else training
        if not training:
            return weights
        # The backward pass of `dropout` overwrites what was kept, and another would be wrong: for ones there is none.
        return weights * npx.dropout(np.ones_like(weights), p=self.dropout, mode="always")  # (B, Q, K)


class DotProductAttention(AttentionPooling):
    """Scaled dot-product attention: softmax(scale * q k^T) v, with scale = 1 / sqrt(d) unless given."""

    def __init__(self, dropout, scale=None, softcap=None):
        super().__init__(dropout, softcap)
        self.scale = scale

    def scores(self, queries, keys):
        """Scaled dot products of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        scale = 1 / math.sqrt(queries.shape[-1]) if self.scale is None else self.scale
        return npx.batch_dot(widen(queries), widen(keys), transpose_b=True) * scale  # (B, Q, K)


class AdditiveAttention(AttentionPooling):
    """Additive attention: softmax(w_v^T tanh(W_q q + W_k k)) v."""

    def __init__(self, dropout, num_hiddens, query_size, key_size, dtype="float32", softcap=None):
        super().__init__(dropout, softcap)
        self.W_q = dense(query_size, num_hiddens, False, dtype)
        self.W_k = dense(key_size, num_hiddens, False, dtype)
        self.w_v = dense(num_hiddens, 1, False, dtype)

    def scores(self, queries, keys):
        """Additive scores of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        sizes = queries.shape[1], keys.shape[1]
        W_q, W_k = over_axes(self.W_q(queries), *sizes), over_axes(self.W_k(keys), *sizes)  # (B, Q, n), (B, K, n)
        features = np.tanh(W_q[:, :, None, :] + W_k[:, None, :, :])  # (B, Q, K, n)
        return widen(self.w_v(features)[:, :, :, 0])  # (B, Q, K)


def pooling(config, dot=DotProductAttention, additive=AdditiveAttention):
    """The attention pooling that a configuration asks for, one of two classes, acting on the split heads."""
    d = config.key_dim
    if config.pooling == "additive":
        return additive(config.dropout, d, d, d, config.dtype, config.softcap)
    return dot(config.dropout, config.scale, config.softcap)


def cap(scores, softcap, visible=None):
    """Scores (B, Q, K) bent so that none is beyond softcap either way; of hidden keys 0, as their own may be NaN."""
    scores = scores if visible is None else where(visible, scores, np.zeros_like(scores))
    return softcap * np.tanh(scores / softcap)  # (B, Q, K)
