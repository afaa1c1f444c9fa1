"""The same numbers as the lesson's, in less time and memory, where nobody asks for attention weights.

Letters as in layer.py. A block is queries that are attended together; a group is samples that are.
"""

import functools

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mha import blocks, calls

from . import layer as lesson
from .arrays import known
from .layer import blank, repeat_heads, transpose_output, transpose_qkv, visible_keys

# 1. Which queries and keys count


def used(queries, keys, valid_lens=None, mask=None, causal=False):
    """Which queries see a key, (B, Q), and which keys a query sees, (B, K), in any head; arguments as `visible_keys`.

    Without a mask it takes no array of all pairs: each query sees the keys up to a limit.
    """
    if mask is not None:
        in_any_head = blocks.part(None, mask)[1].any(1)  # (B, Q, K)
        visible = visible_keys(queries, keys, valid_lens, in_any_head, causal=causal)[:, 0]  # (B, Q, K)
        return visible.any(2), visible.any(1)
    Q, K = queries.shape[1], keys.shape[1]
    limits = torch.full((1, 1), K, device=queries.device)  # (1, 1)
    if valid_lens is not None:
        limits = lesson._signed(valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens, K)  # (B, 1 or Q)
    if causal:
        limits = torch.minimum(limits, torch.arange(1, Q + 1, device=queries.device))  # (B, Q)
    return limits > 0, torch.arange(K, device=keys.device) < limits.amax(1)[:, None]


# 2. Attention poolings


class AttentionPooling(lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    def pool(self, queries, keys, values, num_heads, valid_lens=None, mask=None, causal=False, training=None):
        """The pooled values (B*H, Q, dv) alone, arguments as above and for `visible_keys`: no weights are kept.

        Blocks of queries follow each other, and are computed once more for their gradients: scores take the memory of
        one block. A block leaves out the keys after its last query in causal order.
        """
        Q, K = queries.shape[1], keys.shape[1]
        size = blocks.queries(Q, self.scores_of_query(queries, keys))
        if size >= Q:
            return self.pool_block(queries, keys, values, num_heads, valid_lens, mask, causal, 0, training)
        pooled = []
        for first in range(0, Q, size):
            block, last = slice(first, first + size), first + size if causal else K
            hiding = *blocks.part(valid_lens, mask, queries=block, keys=slice(last)), causal, first
            inputs = queries[:, block], keys[:, :last], values[:, :last]
            pooled.append(_recomputed(self.pool_block, *inputs, num_heads, *hiding, training))  # (B*H, block, dv)
        return torch.cat(pooled, 1)  # (B*H, Q, dv)

    def pool_block(self, queries, keys, values, num_heads, valid_lens, mask, causal, first, training):
        """As `pool`, for the queries of one block, of which the first is at place `first`."""
        visible = visible_keys(queries, keys, valid_lens, mask, causal=causal, offset=first)
        visible = repeat_heads(visible, queries.shape[0] // num_heads, num_heads)  # (B*H, Q, K)
        return self.weigh(queries, keys, values, visible, training=training)["pooled"]  # (B*H, Q, dv)

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take, over all heads (B*H) and keys."""
        return queries.shape[0] * keys.shape[1]


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """As the lesson's; `pool` takes the framework's own kernel where it can."""

    def pool(self, queries, keys, values, num_heads, valid_lens=None, mask=None, causal=False, training=None):
        """As every pooling's, in one piece where the framework has a kernel that keeps no scores."""
        options = num_heads, valid_lens, mask, causal
        per_query = (mask is not None and mask.shape[2] > 1) or (valid_lens is not None and len(valid_lens.shape) > 1)
        all_pairs = per_query or (causal and (valid_lens is not None or mask is not None))  # as its mask
        one_width = queries.shape[2] == values.shape[2]  # of two widths, it keeps the scores
        if one_width and not all_pairs and self.has_kernel(training):
            return self.pool_block(queries, keys, values, *options, 0, training)
        return super().pool(queries, keys, values, *options, training)

    def pool_block(self, queries, keys, values, num_heads, valid_lens, mask, causal, first, training):
        """As every pooling's, by the framework's own kernel where it has one that keeps no scores."""
        if not self.has_kernel(training):
            return super().pool_block(queries, keys, values, num_heads, valid_lens, mask, causal, first, training)
        ordered = causal and first == 0 and valid_lens is None and mask is None
        visible = None if ordered else visible_keys(queries, keys, valid_lens, mask, causal=causal, offset=first)
        inputs = [X.view(-1, num_heads, *X.shape[1:]) for X in (queries, keys, values)]  # (B, H, T, d)
        pooled = nn.functional.scaled_dot_product_attention(*inputs, visible, is_causal=ordered)  # (B, H, Q, dv)
        return pooled.reshape(*queries.shape[:2], -1)  # (B*H, Q, dv)

    def has_kernel(self, training):
        """Whether the framework's own kernel computes the same: without dropout, and scores of this very class."""
        training = self.training if training is None else training
        return type(self) is DotProductAttention and not (training and self.dropout)


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """As the lesson's; its features count as scores, of which each takes several."""

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take: n features for each head and key."""
        return super().scores_of_query(queries, keys) * keys.shape[2]


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)


# 3. The layer


class MultiHeadAttention(lesson.MultiHeadAttention):
    """As the lesson's; a call that asks for no attention weights keeps none."""

    pooling = staticmethod(pooling)

    def attend(self, queries, keys, values, hiding, head_gates, training, return_weights):
        """As the lesson's, by `output` where that is enough."""
        if return_weights or self.needs_lesson(queries, keys, hiding, head_gates):
            return super().attend(queries, keys, values, hiding, head_gates, training, return_weights)
        call = hiding.valid_lens, hiding.mask, hiding.causal, training
        return self.output(queries, keys, values, *call)  # (B, Q, D)

    def needs_lesson(self, queries, keys, hiding, head_gates):
        """Whether an array is empty, an option is known to the lesson alone, or the pooling has been replaced."""
        empty = 0 in (*queries.shape[:2], keys.shape[1])
        plain = blocks.is_plain(self.config, hiding, head_gates)
        return empty or not plain or not isinstance(self.attention, AttentionPooling)

    def output(self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None):
        """The output (B, Q, D) alone, arguments as for a call: no weights are kept, keys beyond the lengths left out.

        The steps are those of `steps`, and the pooling works on blocks; samples may need different numbers of keys.
        """
        B, Q, K, H = queries.shape[0], queries.shape[1], keys.shape[1], self.config.num_heads
        lengths = None if valid_lens is None else known(valid_lens)
        all_samples = slice(0, B), min(Q, K) if causal else K, valid_lens is not None
        groups = [all_samples] if lengths is None else list(blocks.groups(B, H, Q, K, lengths, causal))
        _, longest, hides = groups[0]
        alike = all(group[1:] == (longest, hides) for group in groups)
        if mask is None and alike and _splits(self, hides, lengths, causal, training):
            return self.split(queries, keys, values, longest, lengths if hides else None, causal)  # (B, Q, D)
        if mask is not None or any(hides for _, _, hides in groups):
            queries, keys, values = blank(queries, keys, values, *used(queries, keys, valid_lens, mask, causal))
        size, merged = groups[0][0].stop, []
        each = (X.split(size) for X in (self.W_q(queries), keys, values))  # (B, T, any)
        for (samples, longest, hides), W_q, keys, values in zip(groups, *each, strict=True):
            W_k, W_v = self.W_k(keys[:, :longest]), self.W_v(values[:, :longest])  # (B, K, H*d)
            calls.whole_heads(self.config, W_q, W_k, W_v)
            split = transpose_qkv(W_q, H), transpose_qkv(W_k, H), transpose_qkv(W_v, H)  # (B*H, T, d)
            hiding = *blocks.part(valid_lens if hides else None, mask, samples, keys=slice(longest)), causal
            pooled = self.attention.pool(*split, H, *hiding, training)  # (B*H, Q, dv)
            merged.append(transpose_output(pooled, H))  # (B, Q, H*dv)
        return self.W_o(torch.cat(merged) if len(merged) > 1 else merged[0])  # (B, Q, D)

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
        pooled = nn.functional.scaled_dot_product_attention(*heads, visible, is_causal=causal)  # (B, H, Q, dv)
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


def _splits(layer, hides, lengths, causal, training):
    """Whether `split` serves a call and computes what the pooling would, which may be another by now."""
    attention, config = layer.attention, layer.config
    if hides and (causal or lengths is None or lengths.ndim > 1 or not lengths.all()):
        return False
    same_width = config.key_dim == config.value_dim  # of two widths, the kernel keeps the scores
    return isinstance(attention, DotProductAttention) and same_width and attention.has_kernel(training)
