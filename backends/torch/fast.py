"""The same numbers as the lesson's, in less time and memory, where nobody asks for attention weights.

Letters as in layer.py. A block is queries that are attended together; a group is samples that are.
"""

import functools
import math

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mha import blocks, calls

from . import layer as lesson
from .arrays import known
from .heads import positions
from .layer import blank, four_axes, repeat_heads, transpose_output, transpose_qkv, visible_keys

# 1. Which queries and keys count


def used(queries, keys, hiding):
    """Which queries see a key, (B, Q), and which keys a query sees, (B, K), in any head; hiding: of the call.

    It takes no array of all pairs where each query sees the keys from a first to a last one, and no key between those
    of all queries is left out.
    """
    valid_lens, (left, right) = hiding.valid_lens, blocks.reach(hiding)
    per_query = valid_lens is not None and len(valid_lens.shape) == 2
    if hiding.mask is not None or hiding.score_bias is not None or (per_query and left is not None):
        visible = visible_keys(queries, keys, *hiding).any(1)  # (B, Q, K)
        return visible.any(2), visible.any(1)
    each_query, each_key = positions(queries, hiding.offset), positions(keys)  # (B or 1, Q), (1, K)
    K = keys.shape[1]
    last = torch.full_like(each_query, K)  # (B or 1, Q)
    if right is not None:
        last = torch.minimum(last, each_query + right + 1)
    if valid_lens is not None:
        last = torch.minimum(last, lesson._signed(valid_lens if per_query else valid_lens[:, None], K))  # (B, Q)
    if left is None:
        return last > 0, each_key < last.amax(1)[:, None]
    first = (each_query - left).clamp(min=0)  # (B or 1, Q)
    sees = first < last  # (B, Q)
    first, last = torch.where(sees, first, K), torch.where(sees, last, 0)
    return sees, (first.amin(1)[:, None] <= each_key) & (each_key < last.amax(1)[:, None])


# 2. Attention poolings


class AttentionPooling(lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    def pool(self, queries, keys, values, num_heads, hiding, training):
        """The pooled values (B*H, Q, dv) alone, for queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv).

        hiding: of the call. No weights are kept: blocks of queries follow each other, and are computed once more for
        their gradients, so that scores take the memory of one block. A block leaves out the keys that order and window
        hide from all of it.
        """
        Q, K = queries.shape[1], keys.shape[1]
        # A loop over blocks is compiled anew for each number of queries.
        if blocks.block(hiding, Q, K, self.scores_of_pair(queries)) >= Q:
            return self.pool_block(queries, keys, values, num_heads, hiding, training)
        pieces, pooled = list(self.pieces(queries, keys, hiding)), []
        (first, _), score_bias = pieces[0], blocks.of_pairs(hiding.score_bias)
        # A slice's gradient is as large as what it is cut from: what no two blocks share is split at once.
        shared = score_bias is None or score_bias.shape[2] == 1
        biases = [score_bias] * len(pieces) if shared else score_bias.split(first.stop, 2)  # (B, H, block, K), or 1
        for (block, seen), rows, score_bias in zip(pieces, queries.split(first.stop, 1), biases, strict=True):
            cut = blocks.part(hiding._replace(score_bias=None), queries=block, keys=seen)
            cut = cut._replace(score_bias=blocks.of_pairs(score_bias, keys=seen))
            inputs = rows, keys[:, seen], values[:, seen]
            pooled.append(_recomputed(self.pool_block, *inputs, num_heads, cut, training))  # (B*H, block, dv)
        return torch.cat(pooled, 1)  # (B*H, Q, dv)

    def pool_block(self, queries, keys, values, num_heads, hiding, training):
        """As `pool`, for the queries of one block."""
        visible, score_bias = by_group(queries, keys, num_heads, hiding)
        folded = queries.reshape(keys.shape[0], -1, queries.shape[2])  # (B*G, H/G*Q, d)
        pooled = self.weigh(folded, keys, values, visible, score_bias, training)["pooled"]  # (B*G, H/G*Q, dv)
        return pooled.reshape(*queries.shape[:2], -1)  # (B*H, Q, dv)

    def pieces(self, queries, keys, hiding):
        """The blocks of queries of a call, and the keys that each needs."""
        sizes = queries.shape[1], keys.shape[1], self.scores_of_pair(queries)
        return blocks.pieces(hiding, *sizes, _known_offset(hiding))

    def scores_of_pair(self, queries):
        """How many numbers the scores of one query and one key take, over all heads (B*H)."""
        return queries.shape[0]


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """As the lesson's; `pool` takes the framework's own kernel where it can."""

    def pool(self, queries, keys, values, num_heads, hiding, training):
        """As every pooling's, in fewer pieces where the framework has a kernel that keeps no scores."""
        inputs = queries, keys, values, num_heads, hiding
        if not self.has_kernel(queries.shape[2], values.shape[2], hiding.score_bias, training):
            return super().pool(*inputs, training)
        if not _all_pairs(hiding):
            return self.pool_block(*inputs, training)
        alone = all(X is None for X in (hiding.valid_lens, hiding.mask, hiding.score_bias))
        if alone and isinstance(hiding.offset, int) and None not in blocks.reach(hiding):
            return self.pool_window(*inputs)
        return super().pool(*inputs, training)

    def pool_window(self, queries, keys, values, num_heads, hiding):
        """As `pool`, where only a window hides: blocks that see as many keys each are as heads of one call.

        Their keys overlap, and are not copied.
        """
        (BH, Q, d), (BG, K, _), pooled = queries.shape, keys.shape, []
        for pieces in _runs(blocks.pieces(hiding, Q, K, 1, share=4)):
            (first, seen), (last, last_seen), n = pieces[0], pieces[-1], len(pieces)
            size, width = first.stop - first.start, seen.stop - seen.start
            rows = queries[:, first.start : last.stop]  # (B*H, n*block, d)
            rows = rows.reshape(BG, BH // BG, n, size, d).transpose(1, 2)  # (B*G, n, H/G, block, d)
            rows = rows.reshape(BG, n, -1, d)  # (B*G, n, H/G*block, d)
            k, v = (X[:, seen.start : last_seen.stop].unfold(1, width, size) for X in (keys, values))
            k, v = k.transpose(2, 3), v.transpose(2, 3)  # (B*G, n, width, d)
            cut = blocks.part(hiding, queries=first, keys=seen)
            visible = visible_keys(queries[:, first], keys[:, seen], *cut).repeat(1, 1, BH // BG, 1)
            each = nn.functional.scaled_dot_product_attention(rows, k, v, visible, scale=self.scale)
            each = each.unflatten(2, (-1, size)).transpose(1, 2)  # (B*G, H/G, n, block, dv)
            pooled.append(each.reshape(BH, n * size, -1))  # (B*H, n*block, dv)
        return torch.cat(pooled, 1) if len(pooled) > 1 else pooled[0]  # (B*H, Q, dv)

    def pool_block(self, queries, keys, values, num_heads, hiding, training):
        """As every pooling's, by the framework's own kernel where it has one that keeps no scores."""
        if not self.has_kernel(queries.shape[2], values.shape[2], hiding.score_bias, training):
            return super().pool_block(queries, keys, values, num_heads, hiding, training)
        ordered, B, times = _only_ordered(hiding), queries.shape[0] // num_heads, queries.shape[0] // keys.shape[0]
        visible = None if ordered else visible_keys(queries, keys, *hiding)  # (B or 1, H or 1, Q or 1, K)
        if hiding.score_bias is not None:
            visible = torch.where(visible, four_axes(hiding.score_bias), -math.inf)  # (B or 1, H or 1, Q, K)
        if times > 1 and visible is not None and visible.shape[:2] != (1, 1):
            heads = num_heads if visible.shape[1] > 1 else num_heads // times
            visible = visible.expand(B, heads, -1, -1)  # (B, H or G, Q or 1, K)
            visible = visible.reshape(keys.shape[0], -1, *visible.shape[2:])  # (B*G, H/G or 1, Q or 1, K)
        sizes = (B, num_heads) if times == 1 else (keys.shape[0], times)  # of keys too, whose strides may be 0
        q, k, v = (X.view(sizes[0], -1, *X.shape[1:]).expand(-1, sizes[1], -1, -1) for X in (queries, keys, values))
        pooled = nn.functional.scaled_dot_product_attention(q, k, v, visible, is_causal=ordered, scale=self.scale)
        return pooled.reshape(*queries.shape[:2], -1)  # (B*H, Q, dv)

    def has_kernel(self, width, value_width, score_bias, training):
        """Whether the framework's own kernel computes the same and keeps no scores, for heads of these widths.

        It knows no cap, draws other numbers for dropout, may not be of this very class, and keeps the scores where
        widths differ or the bias needs a gradient.
        """
        training = self.training if training is None else training
        differs = self.softcap is not None or (training and self.dropout)
        keeps = width != value_width or (score_bias is not None and score_bias.requires_grad)
        return type(self) is DotProductAttention and not differs and not keeps


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """As the lesson's; its features count as scores, of which each takes several."""

    def scores_of_pair(self, queries):
        """How many numbers the scores of one query and one key take: n features for each head."""
        return super().scores_of_pair(queries) * queries.shape[2]


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)


def by_group(queries, keys, num_heads, hiding):
    """What is visible and the bias for heads of keys (B*G, K, d), with the queries (B*H, Q, d) that share one in a row.

    Both broadcast against (B*G, H/G*Q, K), or are None.
    """
    (BH, Q, _), (BG, _, _), B = queries.shape, keys.shape, queries.shape[0] // num_heads

    def folded(pairs):
        if pairs is None or BG == BH or pairs.shape[1] == pairs.shape[2] == 1:
            return repeat_heads(pairs, B, num_heads * BG // BH)  # (B*G, Q or 1, K)
        pairs = torch.broadcast_to(pairs, (B, num_heads, Q, pairs.shape[3]))  # (B, H, Q, K or 1)
        return pairs.reshape(BG, BH // BG * Q, -1)  # (B*G, H/G*Q, K or 1)

    score_bias = None if hiding.score_bias is None else four_axes(hiding.score_bias)
    return folded(visible_keys(queries, keys, *hiding)), folded(score_bias)


# 3. The layer


class MultiHeadAttention(lesson.MultiHeadAttention):
    """As the lesson's; a call that asks for no attention weights keeps none."""

    pooling = staticmethod(pooling)

    def attend(self, queries, keys, values, hiding, head_gates, training, return_weights):
        """As the lesson's, by `output` where that is enough."""
        if return_weights or self.needs_lesson(queries, keys):
            return super().attend(queries, keys, values, hiding, head_gates, training, return_weights)
        return self.output(queries, keys, values, hiding, head_gates, training)  # (B, Q, D)

    def needs_lesson(self, queries, keys):
        """Whether an array is empty or the pooling has been replaced."""
        return 0 in (*queries.shape[:2], keys.shape[1]) or not isinstance(self.attention, AttentionPooling)

    def output(self, queries, keys, values, hiding, head_gates, training):
        """The output (B, Q, D) alone, arguments as of `attend`: no weights are kept, keys that nobody sees left out.

        The steps are those of `steps`, and the pooling works on blocks; samples may need different numbers of keys.
        """
        groups, lengths = self.groups(queries, keys, hiding)
        samples, seen, hides = groups[0]
        alike = all(group[1].stop == seen.stop and group[2] == hides for group in groups)
        if alike and _splits(self, hiding, hides, lengths, head_gates, training):
            return self.split(queries, keys, values, seen.stop, lengths if hides else None, hiding.causal)  # (B, Q, D)
        if not blocks.all_used(hiding, queries.shape[1], groups):
            queries, keys, values = blank(queries, keys, values, *used(queries, keys, hiding))
        each = (X.split(samples.stop) for X in (queries, keys, values))  # (B, T, any)
        merged = [
            self.merged(*self.part(group, *inputs, hiding, head_gates), training)
            for group, *inputs in zip(groups, *each, strict=True)
        ]
        return self.W_o(torch.cat(merged) if len(merged) > 1 else merged[0])  # (B, Q, D)

    def groups(self, queries, keys, hiding):
        """The groups of samples, as `blocks.groups`, and the lengths as NumPy integers, if these are known."""
        (B, Q, _), K = queries.shape, keys.shape[1]
        lengths = None if hiding.valid_lens is None else known(hiding.valid_lens)
        offset = _known_offset(hiding)
        if lengths is None:
            return [(slice(0, B), blocks.span(hiding, Q, K, offset), hiding.valid_lens is not None)], None
        return blocks.groups(hiding, (B, self.config.num_heads, Q, K), lengths, offset), lengths

    def part(self, group, queries, keys, values, hiding, head_gates):
        """The arguments of a call for one group, of which queries, keys and values are given."""
        samples, seen, hides = group
        hiding = blocks.part(hiding if hides else hiding._replace(valid_lens=None), samples, keys=seen)
        gates = head_gates[samples] if head_gates is not None and head_gates.ndim == 2 else head_gates  # (B, H)
        return queries, keys[:, seen], values[:, seen], hiding, gates

    def merged(self, queries, keys, values, hiding, head_gates, training):
        """The steps of one group, up to the merged heads (B, Q, H*dv), of which scores and weights are not kept."""
        H, G = self.config.num_heads, self.config.num_key_value_heads
        W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        calls.whole_heads(self.config, W_q, W_k, W_v)
        split_q, split_k, split_v = transpose_qkv(W_q, H), transpose_qkv(W_k, G), transpose_qkv(W_v, G)  # (B*H, T, d)
        q, k, _ = self.turn(split_q, split_k, hiding.offset)
        pooled = self.attention.pool(q, k, split_v, H, hiding, training)  # (B*H, Q, dv)
        if head_gates is not None:
            pooled = pooled * torch.broadcast_to(head_gates, (queries.shape[0], H)).reshape(-1, 1, 1)  # (B*H, Q, dv)
        return transpose_output(pooled, H)  # (B, Q, H*dv)

    def split(self, queries, keys, values, num_keys, lengths, causal):
        """As `output`, where the framework's kernel takes views of the heads: to copy these costs a small call much.

        Each query sees the first num_keys keys; of them those before its sample's length, NumPy integers (B,) of 1 and
        more, if these are not None; in the causal order, if that is asked for and lengths are None.
        """
        (B, Q, _), H, visible = queries.shape, self.config.num_heads, None
        pairs = [keys] if keys is values else [keys, values]
        if num_keys < keys.shape[1]:
            pairs = [X[:, :num_keys] for X in pairs]  # (B, K, any)
        if lengths is not None:
            seen = torch.from_numpy(np.arange(num_keys) < lengths[:, None]).to(keys.device)  # (B, K)
            visible = seen[:, None, None]  # (B, 1, 1, K)
            pairs = [torch.where(seen[:, :, None], X, 0) for X in pairs]
        keys, values = pairs[0], pairs[-1]
        W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        calls.whole_heads(self.config, W_q, W_k, W_v)
        split_q, split_k, split_v = (X.unflatten(2, (H, -1)).transpose(1, 2) for X in (W_q, W_k, W_v))  # (B, H, T, d)
        heads = split_q, split_k, split_v
        scale = self.attention.scale
        pooled = nn.functional.scaled_dot_product_attention(*heads, visible, is_causal=causal, scale=scale)
        return self.W_o(pooled.transpose(1, 2).reshape(B, Q, -1))  # (B, Q, D)


# 4. Calls

build = functools.partial(lesson.build, kind=MultiHeadAttention)


def _recomputed(function, *inputs):
    """function(*inputs), of which the backward pass keeps nothing but the inputs, and computes the rest again."""
    if torch.is_grad_enabled() and _may_recompute():
        return checkpoint(function, *inputs, use_reentrant=False)
    return function(*inputs)


def _may_recompute():
    """Whether a backward pass may compute anew what it needs: not the gradients of `torch.func`."""
    if torch.compiler.is_compiling():
        return True
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda X: X, lambda X: X):
            return True
    except RuntimeError:
        return False


def _splits(layer, hiding, hides, lengths, head_gates, training):
    """Whether `split` serves a call and computes what the pooling would, which may be another by now."""
    attention, config = layer.attention, layer.config
    turned = config.num_key_value_heads != config.num_heads or config.qk_norm or config.rotary
    given = hiding.mask, hiding.score_bias, hiding.window, head_gates
    if turned or any(X is not None for X in given) or not _from_first(hiding):
        return False
    if hides and (hiding.causal or lengths is None or lengths.ndim > 1 or not lengths.all()):
        return False
    widths = config.key_dim, config.value_dim
    return isinstance(attention, DotProductAttention) and attention.has_kernel(*widths, None, training)


def _from_first(hiding):
    """Whether the first query is at the place of the first key, as far as is known."""
    return isinstance(hiding.offset, int) and hiding.offset == 0


def _only_ordered(hiding):
    """Whether nothing but the causal order from the first key on hides."""
    given = hiding.valid_lens, hiding.mask, hiding.score_bias
    if not _from_first(hiding):
        return False  # as a value it may be a symbol inside a compiler, which the kernel does not take
    return blocks.reach(hiding) == (None, 0) and all(X is None for X in given)


def _all_pairs(hiding):
    """Whether the framework's kernel needs an array of all pairs to know what hides, or is added."""
    pairs, lengths = (hiding.mask, hiding.score_bias), hiding.valid_lens
    per_query = any(X is not None and X.shape[-2] > 1 for X in pairs) or (lengths is not None and lengths.ndim > 1)
    return per_query or not (blocks.reach(hiding) == (None, None) or _only_ordered(hiding))


def _runs(pieces):
    """Runs of blocks that have as many queries and keys each, each so many keys further as it has queries."""
    runs = [[next(pieces)]]
    for queries, keys in pieces:
        (first, _), (_, before) = runs[-1][0], runs[-1][-1]
        size = queries.stop - queries.start
        if first.stop - first.start == size == keys.start - before.start == keys.stop - before.stop:
            runs[-1].append((queries, keys))
        else:
            runs.append([(queries, keys)])
    return runs


def _known_offset(hiding):
    """The offset of a call as NumPy integers; None if it is an int, or known only to a compiler."""
    return None if isinstance(hiding.offset, int) else known(hiding.offset)
