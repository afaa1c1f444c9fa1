"""Attention poolings that keep no weights: at once where the scores fit, else in pieces; on a GPU by its kernel.

Letters as in the chapters. A block is queries that are attended together.
"""

import functools

from mha.core.engine import blocks
from mha.core.engine.scores import InBlocks

from .. import pooling as lesson
from .kernels import limits, pool_by_cudnn
from .operations import OPERATIONS
from .pieces import pool_pieces


class AttentionPooling(InBlocks, lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    operations = OPERATIONS

    def pool(self, queries, keys, values, num_heads, call):
        """The pooled values (B*H, Q, dv) alone, for queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv)."""
        inputs = queries, keys, values, num_heads, call
        if call.plan.engine is not None and not limits("products", self, queries, keys, values, call):
            return pool_by_cudnn(self, *inputs)  # (B*H, Q, dv)
        fits = blocks.fits(self.scores_of_pair(queries) * queries.shape[1] * keys.shape[1], call.plan.room)
        return self.pool_block(*inputs) if fits else pool_pieces(self, *inputs)  # (B*H, Q, dv)


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """Scaled dot-product attention that also pools without keeping weights."""


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """Additive attention, whose features count as scores, of which each takes several."""

    has_features = True


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)
