"""Attention poolings that keep no weights: by MLX's own kernel where it computes the same, block by block.

Letters as in the chapters. A block is queries that are attended together.
"""

import functools
import math

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from mha.core.call import note_kernel
from mha.core.engine import blocks
from mha.core.engine.scores import InBlocks, needs_scores

from .. import pooling as lesson
from ..hiding import exponential, four_axes, visible_keys, where, widen
from ..weights import twin
from .operations import OPERATIONS
from .recomputing import in_pieces

FEW = 2**12  # scores: for more, the lesson's steps are faster on a CPU than the kernel, whose `exp` is slow there


class AttentionPooling(InBlocks, lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    operations = OPERATIONS

    def pool(self, queries, keys, values, num_heads, call):
        """The pooled values (B*H, Q, dv) alone, for queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv)."""
        Q, K, scores = queries.shape[1], keys.shape[1], self.scores_of_pair(queries)
        if not blocks.in_blocks(call, Q, K, scores):
            return self.pool_block(queries, keys, values, num_heads, call)
        training = self.training if call.training is None else call.training
        own = tree_flatten(self.trainable_parameters())

        def pool_block(queries, keys, values, call, weights):
            pooling = twin(self)  # which another thread may call
            for (name, _), X in zip(own, weights, strict=True):
                pooling.update(tree_unflatten([(name, X)]))
            return pooling.pool_block(queries, keys, values, num_heads, call)  # (B*H, block, dv)

        pieces, call = list(blocks.pieces(call, Q, K, scores)), call._replace(training=training)
        weights, draws = [X for _, X in own], training and self.dropout > 0
        return in_pieces(pool_block, pieces, (queries, keys, values), call, weights, draws)


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """Scaled dot-product attention that takes the framework's own kernel where it can."""

    def pool_block(self, queries, keys, values, num_heads, call):
        """Pool one block by the framework's own kernel, where that computes the same and is fast."""
        (BH, Q, _), BG = queries.shape, keys.shape[0]
        if not self.is_quick(BH, queries, keys, call):
            return super().pool_block(queries, keys, values, num_heads, call)
        B = BH // num_heads
        each = zip((queries, keys, values), (num_heads, BG // B, BG // B), strict=True)
        q, k, v = (X.reshape(B, heads, *X.shape[1:]) for X, heads in each)  # (B, H or G, T, d)
        return self.pool_heads(q, k, v, visible_keys(queries, keys, call), call).reshape(BH, Q, -1)  # (B*H, Q, dv)

    def pool_heads(self, q, k, v, visible, call):
        """The pooled heads (B, H, Q, dv) of q (B, H, Q, d), k (B, G, K, d) and v (B, G, K, dv) by the kernel.

        visible: broadcasts against (B, H, Q, K), None = all; what is not used is zero already.
        """
        scale = 1 / math.sqrt(q.shape[3]) if self.scale is None else self.scale
        sinks = None if call.plan.sinks is None else call.plan.sinks.reshape(-1)  # (H,)
        mask = visible
        if visible is not None:  # of a row without keys the kernel makes the mean of all values, or no number
            sees = visible.any(3, keepdims=True)  # (B or 1, H or 1, Q or 1, 1)
        if call.score_bias is not None:
            bias = mx.broadcast_to(four_axes(call.score_bias), visible.shape)  # (B or 1, H or 1, Q, K)
            mask = where(visible, bias, mx.where(sees, -math.inf, 0))
        q, k, v = widen(q), widen(k), widen(v)
        note_kernel("mx.fast")
        pooled = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=sinks)  # (B, H, Q, dv)
        return pooled if visible is None else where(sees, pooled, 0)

    def pool_token(self, q, k, v):
        """The pooled heads (B, G, H/G, dv) of one query of each head, q (B, G, H/G, d), which sees all of its keys."""
        scale = 1 / math.sqrt(q.shape[3]) if self.scale is None else self.scale
        scores = widen(q) * scale @ widen(k).swapaxes(2, 3)  # (B, G, H/G, K)
        powers = exponential(scores - scores.max(3, keepdims=True))  # (B, G, H/G, K)
        return (powers @ widen(v) / powers.sum(3, keepdims=True)).astype(v.dtype)  # (B, G, H/G, dv)

    def is_plain(self, call):
        """Whether the scores become weights by a softmax alone, with sinks or without."""
        training = self.training if call.training is None else call.training
        return type(self) is DotProductAttention and not needs_scores(self, call, training, known=("sinks",))

    def is_quick(self, num_heads, queries, keys, call):
        """Whether the framework's own kernel computes the same, and is fast, for so many heads of all samples.

        It is in float32, and slow on a CPU, since `exp` is.
        """
        few = num_heads * queries.shape[1] * keys.shape[1] <= FEW or mx.default_device() != mx.cpu
        return self.is_plain(call) and queries.dtype == mx.float32 and few


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """Additive attention, whose features count as scores, of which each takes several."""

    has_features = True


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)
