"""Chapter 2: attention poolings, in MLX: scores of queries and keys, and values weighed by their softmax.

Letters: B batch, Q queries, K key-value pairs, d width of a query or key, dv width of a value. In the layer, which
pools all heads at once, B counts the heads of all samples.

Sources: Vaswani et al., Attention Is All You Need (2017), section 3.2.1; Bahdanau et al., Neural Machine Translation by
Jointly Learning to Align and Translate (2015), appendix A.1.2; Dive into Deep Learning, section "Attention Scoring
Functions".
"""

import contextlib
import math
import threading

import mlx.core as mx
from mlx import nn

from mha.core.call import record_step

from .arrays import evaluate
from .hiding import visible_softmax, where, widen, zero_unused
from .weights import dense


class AttentionPooling(nn.Module):
    """Weigh the values by a softmax of scores, which subclasses define."""

    def __init__(self, dropout, softcap=None):
        super().__init__()
        self.dropout, self.softcap = dropout, softcap

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
        pooled = self.drop(weights, training) @ widen(values)  # (B, Q, dv)
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
        training = self.training if training is None else training
        if not (training and self.dropout):
            return weights
        kept = mx.random.bernoulli(1 - self.dropout, weights.shape, next_key())  # (B, Q, K)
        return where(kept, weights / (1 - self.dropout), 0)


class DotProductAttention(AttentionPooling):
    """Scaled dot-product attention: softmax(scale * q k^T) v, with scale = 1 / sqrt(d) unless given."""

    def __init__(self, dropout, scale=None, softcap=None):
        super().__init__(dropout, softcap)
        self.scale = scale

    def scores(self, queries, keys):
        """Scaled dot products of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        scale = 1 / math.sqrt(queries.shape[-1]) if self.scale is None else self.scale
        return widen(queries) @ widen(keys).swapaxes(1, 2) * scale  # (B, Q, K)


class AdditiveAttention(AttentionPooling):
    """Additive attention: softmax(w_v^T tanh(W_q q + W_k k)) v."""

    def __init__(self, dropout, num_hiddens, query_size, key_size, dtype="float32", softcap=None):
        super().__init__(dropout, softcap)
        self.W_q = dense(query_size, num_hiddens, False, dtype)
        self.W_k = dense(key_size, num_hiddens, False, dtype)
        self.w_v = dense(num_hiddens, 1, False, dtype)

    def scores(self, queries, keys):
        """Additive scores of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        features = mx.tanh(self.W_q(queries)[:, :, None, :] + self.W_k(keys)[:, None, :, :])  # (B, Q, K, n)
        return widen(self.w_v(features)[:, :, :, 0])  # (B, Q, K)


class _Drawn(threading.local):
    key = None  # of the class, so that a thread that sets none has it too


_drawn = _Drawn()


def next_key():
    """The key of the next random numbers; None = of MLX's own state."""
    if _drawn.key is None:
        return None
    _drawn.key, key = mx.random.split(_drawn.key)
    return key


def draw_key():
    """A key that is drawn as random numbers are."""
    return evaluate(mx.random.randint(0, 2**31 - 1, (2,), key=next_key()).astype(mx.uint32))


@contextlib.contextmanager
def drawing(key):
    """Dropout inside draws from this key, in this thread; None = from MLX's own state, which nobody can set back."""
    before, _drawn.key = _drawn.key, key
    try:
        yield
    finally:
        _drawn.key = before


def pooling(config, dot=DotProductAttention, additive=AdditiveAttention):
    """The attention pooling that a configuration asks for, one of two classes, acting on the split heads."""
    d = config.key_dim
    if config.pooling == "additive":
        return additive(config.dropout, d, d, d, config.dtype, config.softcap)
    return dot(config.dropout, config.scale, config.softcap)


def cap(scores, softcap, visible=None):
    """Scores (B, Q, K) bent so that none is beyond softcap either way; of hidden keys 0, as their own may be NaN."""
    scores = scores if visible is None else where(visible, scores, 0)
    return softcap * mx.tanh(scores / softcap)  # (B, Q, K)
