"""Attention poolings that keep no weights, block by block.

Letters as in the chapters. A block is queries that are attended together.
"""

import functools

import numpy as onp
from mxnet import autograd, np, npx

from mha.core.engine import blocks
from mha.core.engine.scores import InBlocks

from .. import pooling as lesson
from ..hiding import four_axes, visible_softmax, widen
from .operations import OPERATIONS
from .recomputing import Recomputed, drawn


class AttentionPooling(InBlocks, lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    operations = OPERATIONS

    def pool(self, queries, keys, values, num_heads, call):
        """The pooled values (B*H, Q, dv) alone, for queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv)."""
        sizes = queries.shape[1], keys.shape[1], self.scores_of_pair(queries)
        if not blocks.in_blocks(call, *sizes):
            return self.pool_block(queries, keys, values, num_heads, call)
        training = autograd.is_training() if call.training is None else call.training
        # The graph counts for floats alone; that of the call is gone when a block is computed again.
        floats = {name: four_axes(X) for name, X in call.of_scores().items() if name != "mask"}
        rest = call._replace(training=training).with_arrays(dict.fromkeys(floats)).map_arrays(lambda X: X.detach())

        def pool_block(block, seen, queries, keys, values, *own):
            part = blocks.call_of_block(rest, block, seen).with_arrays(dict(zip(floats, own, strict=True)))
            return self.pool_block(queries, keys, values, num_heads, part)  # (B*H, block, dv)

        pieces = list(blocks.pieces(call, *sizes))
        return Recomputed.call(self, pool_block, pieces, training, queries, keys, values, *floats.values())

    def drop(self, weights, training):
        """Dropout as in the lesson; a block that is computed again drops the same weights."""
        training = autograd.is_training() if training is None else training
        if training and self.dropout and drawn.seed is not None:
            kept = onp.random.default_rng(drawn.seed).random(weights.shape, "float32") >= self.dropout
            return weights * np.array(kept / (1 - self.dropout), dtype=weights.dtype)
        return super().drop(weights, training)


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """Scaled dot-product attention that also pools without keeping weights."""

    def pool_first(self, queries, keys, values, used, call):
        """Pool as `weigh` does, of queries (B, Q, d), the keys that are used, a slice from 0: the others are zeros."""
        scores = self.bend(self.scores(queries, keys)[:, :, used])  # (B, Q, used)
        weights = self.drop(visible_softmax(scores, None, call.plan.sinks), call.training)  # (B, Q, used)
        rest = np.zeros((*weights.shape[:2], keys.shape[1] - used.stop), dtype=weights.dtype)
        return npx.batch_dot(np.concatenate([weights, rest], 2), widen(values)).astype(values.dtype)  # (B, Q, dv)


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """Additive attention, whose features count as scores, of which each takes several."""

    has_features = True


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)
