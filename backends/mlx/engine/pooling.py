"""Attention poolings that keep no weights: by MLX' own kernel where it computes the same, block by block.

Letters as in the chapters. A block is queries that are attended together.
"""

import copy
import functools
import math

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from mha.engine import cutting
from mha.engine.reach import by_group

from .. import pooling as lesson
from ..arrays import is_known
from ..hiding import four_axes, visible_keys, where, widen
from .operations import OPERATIONS
from .recomputing import in_pieces

ROWS = 32  # of a block inside a compiler, which makes room for many blocks at once


class AttentionPooling(lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    def pool(self, queries, keys, values, num_heads, call):
        """The pooled values (B*H, Q, dv) alone, for queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv).

        No weights are kept: blocks of queries follow each other, and are computed once more for their gradients, so
        that scores take the memory of one block. A block leaves out the keys that order and window hide from all of it.
        """
        Q, K, scores = queries.shape[1], keys.shape[1], self.scores_of_pair(queries)
        if not cutting.in_blocks(call, Q, K, scores):
            return self.pool_block(queries, keys, values, num_heads, call)
        if not is_known(queries):
            scores = max(scores, cutting.SCORES // (ROWS * K))
        training = self.training if call.training is None else call.training
        own = tree_flatten(self.trainable_parameters())

        def pool_block(queries, keys, values, call, weights):
            pooling = copy.deepcopy(self)  # which another thread may call
            for (name, _), X in zip(own, weights, strict=True):
                pooling.update(tree_unflatten([(name, X)]))
            return pooling.pool_block(queries, keys, values, num_heads, call)  # (B*H, block, dv)

        pieces, call = list(cutting.pieces(call, Q, K, scores)), call._replace(training=training)
        draws = training and self.dropout > 0
        return in_pieces(pool_block, pieces, draws, (queries, keys, values), call, [X for _, X in own])

    def pool_block(self, queries, keys, values, num_heads, call):
        """The pooled values of the queries of one block; arguments as of `pool`."""
        visible, score_bias, sinks = by_group(OPERATIONS, queries, keys, num_heads, call)
        (BH, Q, d), BG = queries.shape, keys.shape[0]
        folded = queries.reshape(BG, BH // BG * Q, d)  # (B*G, H/G*Q, d)
        pooled, _ = self.weigh(folded, keys, values, visible, score_bias, call.training, sinks)  # (B*G, H/G*Q, dv)
        return pooled.reshape(BH, Q, values.shape[2])  # (B*H, Q, dv)

    def scores_of_pair(self, queries):
        """How many numbers the scores of one query and one key take, over all heads (B*H)."""
        return queries.shape[0]


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """Scaled dot-product attention that takes the framework's own kernel where it can."""

    def pool_block(self, queries, keys, values, num_heads, call):
        """Pool one block by the framework's own kernel, where that computes the same."""
        if not self.has_kernel(queries.dtype, call):
            return super().pool_block(queries, keys, values, num_heads, call)
        B, G = queries.shape[0] // num_heads, keys.shape[0] * num_heads // queries.shape[0]
        each = zip((queries, keys, values), (num_heads, G, G), strict=True)
        q, k, v = (widen(X).reshape(B, heads, *X.shape[1:]) for X, heads in each)  # (B, H or G, T, d)
        sinks = None if call.sinks is None else widen(call.sinks).reshape(num_heads)  # (H,)
        pooled = self.pool_heads(q, k, v, visible_keys(queries, keys, call), call.score_bias, sinks)  # (B, H, Q, dv)
        return pooled.astype(values.dtype).reshape(*queries.shape[:2], values.shape[2])  # (B*H, Q, dv)

    def pool_heads(self, q, k, v, visible=None, score_bias=None, sinks=None):
        """The pooled heads (B, H, Q, dv) of q (B, H, Q, d), k (B, G, K, d) and v (B, G, K, dv) by the kernel.

        visible and score_bias broadcast against (B, H, Q, K), sinks are (H,); what is not used is blank already.
        """
        scale = 1 / math.sqrt(q.shape[3]) if self.scale is None else self.scale
        mask, sees = visible, None
        if visible is not None:  # a row without keys is the mean of all values there, or no number
            sees = visible.any(3, keepdims=True)  # (B or 1, H or 1, Q or 1, 1)
        if score_bias is not None:
            mask = where(
                visible, mx.broadcast_to(widen(four_axes(score_bias)), visible.shape), mx.where(sees, -math.inf, 0)
            )
        pooled = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=sinks)  # (B, H, Q, dv)
        return pooled if sees is None else where(sees, pooled, 0)

    def has_kernel(self, dtype, call):
        """Whether the framework's own kernel computes the same: it has no cap, drops no weights, and is in float32."""
        training = self.training if call.training is None else call.training
        differs = self.softcap is not None or (training and self.dropout)
        return type(self) is DotProductAttention and dtype != mx.float64 and not differs


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """Additive attention, whose features count as scores, of which each takes several."""

    def scores_of_pair(self, queries):
        """How many numbers the scores of one query and one key take: n features for each head."""
        return super().scores_of_pair(queries) * queries.shape[2]


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)
