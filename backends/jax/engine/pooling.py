"""Attention poolings that keep no weights: at once where the scores fit a cache, else in pieces.

Letters as in the chapters. A block is queries that are attended together.
"""

import functools

from mha.core.engine import blocks
from mha.core.engine.visible_range import by_group

from .. import pooling as lesson
from .operations import OPERATIONS
from .pieces import pool_pieces


class AttentionPooling(lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    def pool(self, queries, keys, values, num_heads, call):
        """The pooled values (B*H, Q, dv) alone, for queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv).

        No weights are kept: blocks of queries follow each other, and are computed once more for their gradients, so
        that scores take the memory of one block. A block leaves out the keys that order and window hide from all of it.
        """
        inputs = queries, keys, values, num_heads, call
        fits = blocks.fits(self.scores_of_pair(queries) * queries.shape[1] * keys.shape[1])
        return self.pool_block(*inputs) if fits else pool_pieces(self, *inputs)  # (B*H, Q, dv)

    def pool_block(self, queries, keys, values, num_heads, call):
        """The pooled values of the queries of one block; arguments as of `pool`."""
        visible, score_bias, sinks = by_group(OPERATIONS, queries, keys, num_heads, call)
        folded = queries.reshape(len(keys), -1, queries.shape[2])  # (B*G, H/G*Q, d)
        pooled, _ = self.weigh(folded, keys, values, visible, score_bias, call.training, sinks)  # (B*G, H/G*Q, dv)
        return pooled.reshape(*queries.shape[:2], -1)  # (B*H, Q, dv)

    def scores_of_pair(self, queries):
        """How many numbers the scores of one query and one key take, over all heads (B*H)."""
        return queries.shape[0]


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """Scaled dot-product attention that also pools without keeping weights."""


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """Additive attention, whose features count as scores, of which each takes several."""

    def scores_of_pair(self, queries):
        """How many numbers the scores of one query and one key take: n features for each head."""
        return super().scores_of_pair(queries) * queries.shape[2]


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)
