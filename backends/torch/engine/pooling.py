"""Attention poolings that keep no weights: by PyTorch's own kernel where it computes the same, else block by block.

Letters as in the chapters. A block is queries that are attended together.
"""

import functools
import math

import torch
from torch.utils.checkpoint import checkpoint

from mha.core.engine import blocks
from mha.core.engine.scores import InBlocks, needs_scores
from mha.core.engine.visible_range import reach

from .. import pooling as lesson
from ..hiding import four_axes, visible_keys
from .kernels import pool_by_kernel
from .operations import OPERATIONS


class AttentionPooling(InBlocks, lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    operations = OPERATIONS

    def pool(self, queries, keys, values, num_heads, call):
        """The pooled values (B*H, Q, dv) alone, for queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv)."""
        Q, K = queries.shape[1], keys.shape[1]
        # A loop over blocks is compiled anew for each number of queries.
        if not blocks.in_blocks(call, Q, K, self.scores_of_pair(queries)):
            return self.pool_block(queries, keys, values, num_heads, call)
        pieces, pooled = list(blocks.pieces(call, Q, K, self.scores_of_pair(queries))), []
        sizes = [block.stop - block.start for block, _ in pieces]
        # A slice's gradient is as large as what it is cut from: what no two blocks share is split at once.
        score_bias = None if call.score_bias is None else four_axes(call.score_bias)  # (B or 1, H or 1, Q or 1, K)
        shared = score_bias is None or score_bias.shape[2] == 1
        biases = [score_bias] * len(pieces) if shared else score_bias.split(sizes, 2)  # (B, H, block, K), or 1
        rest = call._replace(score_bias=None)
        for (block, seen), rows, score_bias in zip(pieces, queries.split(sizes, 1), biases, strict=True):
            cut = blocks.call_of_block(rest, block, seen)
            if score_bias is not None:
                cut = cut._replace(score_bias=score_bias if score_bias.shape[3] == 1 else score_bias[..., seen])
            inputs = rows, keys[:, seen], values[:, seen], num_heads, cut
            pooled.append(recompute(self.pool_block, *inputs))  # (B*H, block, dv)
        return torch.cat(pooled, 1)  # (B*H, Q, dv)


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """Scaled dot-product attention that takes the framework's own kernel where it can."""

    def pool(self, queries, keys, values, num_heads, call):
        """Pool in fewer pieces where the framework has a kernel that keeps no scores; arguments as of every pooling."""
        inputs = queries, keys, values, num_heads, call
        if not self.has_kernel(queries.shape[2], values.shape[2], call):
            return super().pool(*inputs)
        if queries.is_cuda or not needs_pairs(call):
            return self.pool_block(*inputs)
        alone = not call.by_tokens() and call.valid_lens is None and not call.pairs()
        if alone and isinstance(call.offset, int) and None not in reach(call):
            return self.pool_window(*inputs)
        return super().pool(*inputs)

    def pool_window(self, queries, keys, values, num_heads, call):
        """Pool where only a window hides: blocks that see as many keys each are as heads of one call.

        Their keys overlap, and are not copied.
        """
        (BH, Q, d), (BG, K, _), pooled = queries.shape, keys.shape, []
        for pieces in _group_runs(blocks.pieces(call, Q, K, 1, share=4)):
            (first, seen), (last, last_seen), n = pieces[0], pieces[-1], len(pieces)
            size, width = first.stop - first.start, seen.stop - seen.start
            rows = queries[:, first.start : last.stop]  # (B*H, n*block, d)
            rows = rows.reshape(BG, BH // BG, n, size, d).transpose(1, 2)  # (B*G, n, H/G, block, d)
            rows = rows.reshape(BG, n, -1, d)  # (B*G, n, H/G*block, d)
            k, v = (X[:, seen.start : last_seen.stop].unfold(1, width, size) for X in (keys, values))
            k, v = k.transpose(2, 3), v.transpose(2, 3)  # (B*G, n, width, d)
            cut = call.part(queries=first, keys=seen)
            visible = visible_keys(queries[:, first], keys[:, seen], cut).repeat(1, 1, BH // BG, 1)
            each = pool_by_kernel(rows, k, v, visible, scale=self.scale)
            each = each.unflatten(2, (-1, size)).transpose(1, 2)  # (B*G, H/G, n, block, dv)
            pooled.append(each.reshape(BH, n * size, -1))  # (B*H, n*block, dv)
        return torch.cat(pooled, 1) if len(pooled) > 1 else pooled[0]  # (B*H, Q, dv)

    def pool_block(self, queries, keys, values, num_heads, call):
        """Pool one block by the framework's own kernel, where it has one that keeps no scores."""
        if not self.has_kernel(queries.shape[2], values.shape[2], call):
            return super().pool_block(queries, keys, values, num_heads, call)
        B, times = queries.shape[0] // num_heads, queries.shape[0] // keys.shape[0]
        one = times > 1 and queries.shape[1] == 1
        ordered = only_causal(call) and not one
        visible = None if ordered else kernel_mask(queries, keys, call)  # (B or 1, H or 1, Q or 1, K)
        if one:
            return self.pool_one(queries, keys, values, visible, B)
        q, k, v, visible = by_heads(queries, keys, values, visible, num_heads)
        pooled = pool_by_kernel(q, k, v, visible, is_causal=ordered, scale=self.scale)
        return pooled.reshape(*queries.shape[:2], -1)  # (B*H, Q, dv)

    def pool_one(self, queries, keys, values, visible, batch_size):
        """Pool for one query of each head, where heads share keys: these heads are as queries of one head."""
        q, k, v = (X.view(batch_size, -1, *X.shape[1:]) for X in (queries, keys, values))  # (B, H or G, 1 or K, d)
        q = q.view(batch_size, k.shape[1], -1, q.shape[3])  # (B, G, H/G, d)
        if visible is not None and visible.shape[1] > 1:
            visible = visible.view(len(visible), k.shape[1], -1, visible.shape[3])  # (B or 1, G, H/G, K)
        pooled = pool_by_kernel(q, k, v, visible, scale=self.scale)  # (B, G, H/G, dv)
        return pooled.reshape(len(queries), 1, -1)  # (B*H, 1, dv)

    def has_kernel(self, width, value_width, call):
        """Whether the framework's own kernel computes the same and keeps no scores, for heads of these widths.

        It draws other numbers for dropout, may not be of this very class, and keeps the scores where widths differ or
        the bias needs a gradient.
        """
        training = self.training if call.training is None else call.training
        keeps = width != value_width or (call.score_bias is not None and call.score_bias.requires_grad)
        return type(self) is DotProductAttention and not keeps and not needs_scores(self, call, training)


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """Additive attention, whose features count as scores, of which each takes several."""

    has_features = True


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)


def by_heads(queries, keys, values, visible, num_heads):
    """The arrays of `pool` for the framework's kernel: (B, H, T, d), or (B*G, H/G, T, d) where heads share keys.

    On a GPU, heads of keys stay as few as they are: (B, G, K, d).
    visible: a mask or bias (B or 1, H or 1, Q or 1, K), or None; it comes back in the layout of the heads.
    """
    B, times = queries.shape[0] // num_heads, queries.shape[0] // keys.shape[0]
    if queries.is_cuda:
        return *(X.unflatten(0, (B, -1)) for X in (queries, keys, values)), visible  # (B, H or G, T, d)
    if times > 1 and visible is not None and visible.shape[:2] != (1, 1):
        heads = num_heads if visible.shape[1] > 1 else num_heads // times
        visible = visible.expand(B, heads, -1, -1)  # (B, H or G, Q or 1, K)
        visible = visible.reshape(keys.shape[0], -1, *visible.shape[2:])  # (B*G, H/G or 1, Q or 1, K)
    sizes = (B, num_heads) if times == 1 else (keys.shape[0], times)  # of keys too, whose strides may be 0
    each = (X.view(sizes[0], -1, *X.shape[1:]).expand(-1, sizes[1], -1, -1) for X in (queries, keys, values))
    return *each, visible


def recompute(function, *inputs):
    """Call function(*inputs) so that the backward pass keeps nothing but the inputs, and computes the rest again."""
    if torch.is_grad_enabled() and _may_recompute():
        return checkpoint(function, *inputs, use_reentrant=False)
    return function(*inputs)


def _may_recompute():
    """Whether a backward pass may compute results again: not inside the gradients of `torch.func`."""
    if torch.compiler.is_compiling():
        return True
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda X: X, lambda X: X):
            return True
    except RuntimeError:
        return False


def only_causal(call):
    """Whether nothing but the causal order from the first key on hides."""
    if not isinstance(call.offset, int) or call.offset != 0:
        return False  # as a value it may be a symbol inside a compiler, which the kernel does not take
    return not call.by_tokens() and reach(call) == (None, 0) and call.valid_lens is None and not call.pairs()


def kernel_mask(queries, keys, call):
    """Return the mask for the framework's kernel: booleans of the visible keys, or a bias that hides the others."""
    visible = visible_keys(queries, keys, call)  # (B or 1, H or 1, Q or 1, K)
    if call.score_bias is None:
        return visible
    return torch.where(visible, four_axes(call.score_bias), -math.inf)  # (B or 1, H or 1, Q or 1, K)


def needs_pairs(call):
    """Whether the framework's kernel needs an array of all pairs to know what hides, or is added."""
    lengths = call.valid_lens
    per_query = any(X.shape[-2] > 1 for X in call.pairs().values()) or (lengths is not None and lengths.ndim > 1)
    return per_query or call.by_tokens() or not (reach(call) == (None, None) or only_causal(call))


def _group_runs(pieces):
    """Group blocks into runs of as many queries and keys each, each so many keys further as it has queries."""
    runs = [[next(pieces)]]
    for queries, keys in pieces:
        (first, _), (_, before) = runs[-1][0], runs[-1][-1]
        size = queries.stop - queries.start
        if first.stop - first.start == size == keys.start - before.start == keys.stop - before.stop:
            runs[-1].append((queries, keys))
        else:
            runs.append([(queries, keys)])
    return runs
