"""Attention poolings that keep no weights: at once where the scores fit a cache, else in pieces.

Letters as in the chapters. A block is queries that are attended together.
"""

import functools

from mha.core.engine import blocks
from mha.core.engine.scores import InBlocks

from .. import pooling as lesson
from .operations import OPERATIONS
from .pieces import pool_pieces


class AttentionPooling(InBlocks, lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    operations = OPERATIONS

    def pool(self, queries, keys, values, num_heads, call):
        """The pooled values (B*H, Q, dv) alone, for queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv)."""
        inputs = queries, keys, values, num_heads, call
        fits = blocks.fits(self.scores_of_pair(queries) * queries.shape[1] * keys.shape[1])
        return self.pool_block(*inputs) if fits else pool_pieces(self, *inputs)  # (B*H, Q, dv)


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """Scaled dot-product attention that also pools without keeping weights."""


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """Additive attention, whose features count as scores, of which each takes several."""

    has_features = True


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)
