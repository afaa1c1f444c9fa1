"""Attention poolings that keep no weights, block by block, forward and backward.

Letters as in the chapters. A block is queries that are attended together.
"""

import functools

import numpy as np

from mha.core.call import Call
from mha.core.engine import blocks
from mha.core.engine.scores import InBlocks
from mha.core.engine.visible_range import pairs_by_group

from .. import pooling as lesson
from ..gradients import add_by_name, sum_to_shape, through_weights
from ..hiding import four_axes, widen
from .operations import OPERATIONS


class AttentionPooling(InBlocks, lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    operations = OPERATIONS

    def pool(self, queries, keys, values, num_heads, call):
        """The pooled values (B*H, Q, dv) alone, for queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv)."""
        pooled = []
        for block, seen in self.pieces(queries, keys, call):
            inputs = queries[:, block], keys[:, seen], values[:, seen]
            pooled.append(self.pool_block(*inputs, num_heads, blocks.call_of_block(call, block, seen)))
        return np.concatenate(pooled, 1) if len(pooled) > 1 else pooled[0]  # (B*H, Q, dv)

    def pieces(self, queries, keys, call):
        """The blocks of queries of a call, and the keys that each needs."""
        return blocks.pieces(call, queries.shape[1], keys.shape[1], self.scores_of_pair(queries))

    def pool_backward(self, queries, keys, values, num_heads, call, by_pooled):
        """Gradients of `pool` by queries, keys, values, score_bias (or None) and, by name, its weights, in blocks."""
        by_queries, by_parameters, by_bias = [], {}, Call()
        by_keys, by_values = np.zeros_like(widen(keys)), np.zeros_like(widen(values))
        if call.score_bias is not None:
            by_bias = by_bias._replace(score_bias=np.zeros_like(widen(four_axes(call.score_bias))))  # four axes
        for block, seen in self.pieces(queries, keys, call):
            inputs = queries[:, block], keys[:, seen]
            pairs = pairs_by_group(OPERATIONS, *inputs, num_heads, blocks.call_of_block(call, block, seen))
            cuts = (X[:, block] for X in (queries, by_pooled))  # (B*H, block, any)
            folded, by_block = (X.reshape(len(keys), -1, X.shape[2]) for X in cuts)  # (B*G, H/G*block, any)
            inputs = folded, inputs[1], values[:, seen], *pairs, call.training
            by_folded, by_k, by_v, by_biased, by_sinks, by_weights = through_weights(self, *inputs, by_block)
            if call.plan.sinks is not None:
                rows = by_sinks.reshape(-1, num_heads, block.stop - block.start)  # (B, H, block)
                by_weights["sinks"] = rows.sum((0, 2))  # (H,)
            by_queries.append(by_folded.reshape(len(queries), -1, queries.shape[2]))  # (B*H, block, d)
            by_keys[:, seen] += by_k
            by_values[:, seen] += by_v
            by_parameters = add_by_name(by_parameters, by_weights)
            for of_block in by_bias.part(queries=block, keys=seen).arrays().values():  # a view
                by_biased = by_biased.reshape(-1, num_heads, block.stop - block.start, by_k.shape[1])  # (B, H, Q, K)
                of_block += sum_to_shape(by_biased, of_block.shape)
        by_inputs = np.concatenate(by_queries, 1), by_keys, by_values  # (B*H, T, d)
        return *(X.astype(values.dtype, copy=False) for X in by_inputs), by_bias.score_bias, by_parameters


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """Scaled dot-product attention that also pools without keeping weights."""


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """Additive attention, whose features count as scores, of which each takes several."""

    has_features = True


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)
