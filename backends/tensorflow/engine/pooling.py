"""Attention poolings that keep no weights, piece by piece.

Letters as in the chapters. Here arrays have four axes, heads (B, H, T, d). A block is queries that are attended
together; a piece is a block of some heads, or of all heads of some samples.
"""

import functools
import math

import tensorflow as tf

from mha.core.engine.scores import InBlocks
from mha.core.engine.visible_range import in_rows, reach

from .. import pooling as lesson
from ..arrays import shape_of
from ..hiding import four_axes, visible_keys, widen
from .compiled import is_untouched, tracing
from .operations import OPERATIONS
from .pieces import fits, pool_pieces


class AttentionPooling(InBlocks, lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    def drop(self, weights, training):
        """Dropout by the seed of the call, if it has one: a piece that is computed again has to drop the same."""
        if training and self.dropout and tracing.seed is not None:
            return tf.nn.experimental.stateless_dropout(weights, self.dropout, seed=tracing.seed)
        return super().drop(weights, training)

    def pool(self, queries, keys, values, num_heads, call):
        """The pooled values (B, H, Q, dv), of queries (B, H, Q, d), keys (B, G, K, d) and values (B, G, K, dv)."""
        (B, _, Q, _), K, times = shape_of(queries), shape_of(keys)[2], num_heads // keys.shape[1]
        if fits(B * self.scores_of_pair(queries) * Q * K):
            return self.pool_block(queries, keys, values, times, call)
        return pool_pieces(self, queries, keys, values, call)

    def pool_block(self, queries, keys, values, times, call):
        """The pooled values of the queries of one block; times: H/G; other arguments as of `pool`."""
        (B, H, Q, d), (_, G, K, _), sees, sinks = shape_of(queries), shape_of(keys), None, call.plan.sinks
        if call.valid_lens is not None and call.plan.engine is not None:
            sees, visible, score_bias = call.valid_lens > 0, None, outside(call, K, queries.dtype)  # (B, 1, 1, K)
        else:
            visible = visible_keys(queries[:, 0], keys[:, 0], call)  # (B or 1, H or 1, Q or 1, K)
            score_bias = None if call.score_bias is None else four_axes(call.score_bias)  # (B or 1, H or 1, Q or 1, K)
        if times > 1:
            queries = tf.reshape(queries, (B, G, times * Q, d))  # (B, G, H/G*Q, d)
            visible, score_bias, sinks = (in_rows(OPERATIONS, X, (B, H, G, Q)) for X in (visible, score_bias, sinks))
        pooled = self.weigh_heads(queries, keys, values, (visible, score_bias, sinks), call.training)
        if sees is not None and call.plan.engine != "some":
            pooled = tf.where(sees[:, None, None, None], pooled, tf.zeros((), pooled.dtype))
        return pooled if times == 1 else tf.reshape(pooled, (B, H, Q, values.shape[3]))  # (B, H, Q, dv)

    def weigh_heads(self, queries, keys, values, pairs, training):
        """Pool heads of four axes, as `weigh` pools those of three; pairs: what is visible, a bias and sinks."""
        if type(self) is DotProductAttention and is_untouched(self):  # whose scores are of any axes
            visible, score_bias, sinks = pairs
            return self.weigh(queries, keys, values, visible, score_bias, training, sinks)[0]
        (B, G, Q, d), (_, _, K, _), dv = shape_of(queries), shape_of(keys), values.shape[3]
        sizes = (queries, Q, d), (keys, K, d), (values, K, dv)
        flat = [tf.reshape(X, (B * G, T, width)) for X, T, width in sizes]  # (B*G, T, d)
        visible, score_bias, sinks = (OPERATIONS.repeat_heads(X, B, G) for X in pairs)  # (B*G, Q or 1, K or 1)
        pooled, _ = self.weigh(*flat, visible, score_bias, training, sinks)  # (B*G, Q, dv)
        return tf.reshape(pooled, (B, G, Q, dv))  # (B, G, Q, dv)


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """Scaled dot-product attention that also pools without keeping weights."""

    def scores(self, queries, keys):
        """Scaled dot products, as of the lesson; the queries are scaled, which are fewer numbers than the scores."""
        scale = 1 / math.sqrt(queries.shape[-1]) if self.scale is None else self.scale
        return tf.matmul(widen(queries) * scale, widen(keys), transpose_b=True)  # (B, H, Q, K)


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """Additive attention, whose features count as scores, of which each takes several."""

    has_features = True


POOLINGS = {"dot": DotProductAttention, "additive": AdditiveAttention}
pooling = functools.partial(lesson.pooling, **POOLINGS)


def hide_alone(layer, call):
    """Whether lengths of samples alone hide keys in a checked call, and the scores of hidden keys are finite."""
    if call.valid_lens is None or call.pairs() or call.by_tokens() or reach(call) != (None, None):
        return False
    pooling = layer.attention
    finite = type(pooling) in POOLINGS.values() and is_untouched(pooling) and not layer.config.qk_norm
    return finite and len(call.valid_lens.shape) == 1


def outside(call, num_keys, dtype):
    """The bias for the scores of a call in which lengths `hide_alone`: -inf where they do, (B, 1, 1, K)."""
    seen = tf.range(num_keys)[None] < call.valid_lens[:, None]  # (B, K)
    if call.plan.engine != "some":  # a row without keys stays finite
        seen |= call.valid_lens[:, None] == 0
    return tf.where(seen, tf.zeros((), dtype), tf.constant(-math.inf, dtype))[:, None, None]  # (B, 1, 1, K)
