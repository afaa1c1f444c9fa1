"""The same numbers as the lesson's, in less time and memory, where nobody asks for attention weights.

Letters as in layer.py. A block is queries that are attended together; a group is samples that are.
"""

import functools

import numpy as np

from mha import blocks
from mha.config import shapes

from . import backward
from . import layer as lesson
from .backward import added, copied, through_dense
from .heads import widen
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
    limits = np.full((1, 1), K)  # (1, 1)
    if valid_lens is not None:
        limits = valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens  # (B, 1 or Q)
    if causal:
        limits = np.minimum(limits, np.arange(1, Q + 1))  # (B, Q)
    return limits > 0, np.arange(K) < limits.max(1)[:, None]


# 2. Attention poolings


class AttentionPooling(backward.AttentionPooling):
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
            pooled.append(self.pool_block(*inputs, num_heads, *hiding, training))  # (B*H, block, dv)
        return np.concatenate(pooled, 1)  # (B*H, Q, dv)

    def pool_block(self, queries, keys, values, num_heads, valid_lens, mask, causal, first, training):
        """As `pool`, for the queries of one block, of which the first is at place `first`."""
        visible = visible_keys(queries, keys, valid_lens, mask, causal=causal, offset=first)
        visible = repeat_heads(visible, queries.shape[0] // num_heads, num_heads)  # (B*H, Q, K)
        return self.weigh(queries, keys, values, visible, training=training)["pooled"]  # (B*H, Q, dv)

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take, over all heads (B*H) and keys."""
        return queries.shape[0] * keys.shape[1]

    def pool_backward(self, queries, keys, values, num_heads, valid_lens, mask, causal, training, by_pooled):
        """Gradients of `pool` by queries, keys, values and, by name, its weights, block by block."""
        Q, K = queries.shape[1], keys.shape[1]
        size = blocks.queries(Q, self.scores_of_query(queries, keys))
        by_queries, by_parameters = [], {}
        by_keys, by_values = np.zeros_like(widen(keys)), np.zeros_like(widen(values))
        for first in range(0, Q, size):
            block, last = slice(first, first + size), min(K, first + size) if causal else K
            hiding = blocks.part(valid_lens, mask, queries=block, keys=slice(last))
            inputs = queries[:, block], keys[:, :last], values[:, :last]
            visible = visible_keys(*inputs[:2], *hiding, causal=causal, offset=first)
            visible = repeat_heads(visible, len(queries) // num_heads, num_heads)  # (B*H, Q, K)
            by_block, *by_pairs, _, by_weights = self.backward(*inputs, visible, None, training, by_pooled[:, block])
            by_queries.append(by_block)  # (B*H, block, d)
            by_keys[:, :last] += by_pairs[0]
            by_values[:, :last] += by_pairs[1]
            by_parameters = added(by_parameters, by_weights)
        by_inputs = np.concatenate(by_queries, 1), by_keys, by_values  # (B*H, T, d)
        return *(X.astype(values.dtype, copy=False) for X in by_inputs), by_parameters


class DotProductAttention(AttentionPooling, backward.DotProductAttention):
    """As the lesson's."""


class AdditiveAttention(AttentionPooling, backward.AdditiveAttention):
    """As the lesson's; its features count as scores, of which each takes several."""

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take: n features for each head and key."""
        return super().scores_of_query(queries, keys) * keys.shape[2]


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)


# 3. The layer


class MultiHeadAttention(backward.MultiHeadAttention):
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
        groups = list(blocks.groups(B, H, Q, K, valid_lens, causal))
        if mask is not None or any(hides for _, _, hides in groups):
            queries, keys, values = blank(queries, keys, values, *used(queries, keys, valid_lens, mask, causal))
        size, merged = groups[0][0].stop, []
        each = (np.split(X, range(size, B, size)) for X in (self.W_q(queries), keys, values))  # (B, T, any)
        for (samples, longest, hides), W_q, keys, values in zip(groups, *each, strict=True):
            W_k, W_v = self.W_k(keys[:, :longest]), self.W_v(values[:, :longest])  # (B, K, H*d)
            split = transpose_qkv(W_q, H), transpose_qkv(W_k, H), transpose_qkv(W_v, H)  # (B*H, T, d)
            hiding = *blocks.part(valid_lens if hides else None, mask, samples, keys=slice(longest)), causal
            pooled = self.attention.pool(*split, H, *hiding, training)  # (B*H, Q, dv)
            merged.append(transpose_output(pooled, H))  # (B, Q, H*dv)
        return self.W_o(np.concatenate(merged) if len(merged) > 1 else merged[0])  # (B, Q, D)

    def vjp(self, queries, keys, values, hiding, head_gates, training):
        """As the derived layer's, group by group."""
        (B, Q, _), K, H, dv = queries.shape, keys.shape[1], self.config.num_heads, self.config.value_dim
        if self.needs_lesson(queries, keys, hiding, head_gates):
            return super().vjp(queries, keys, values, hiding, head_gates, training)
        valid_lens, mask, causal = hiding.valid_lens, hiding.mask, hiding.causal
        groups = list(blocks.groups(B, H, Q, K, valid_lens, causal))
        if mask is not None or any(hides for _, _, hides in groups):
            queries, keys, values = blank(queries, keys, values, *used(queries, keys, valid_lens, mask, causal))
        split_q = transpose_qkv(self.W_q(queries), H)  # (B*H, Q, d)
        pooled = np.zeros((B * H, Q, dv), values.dtype)  # (B*H, Q, dv)
        calls, again = [], copied(self.attention)
        for samples, longest, hides in groups:
            heads = slice(samples.start * H, samples.stop * H)
            W_k, W_v = self.W_k(keys[samples, :longest]), self.W_v(values[samples, :longest])  # (B, K, H*d)
            inputs = split_q[heads], transpose_qkv(W_k, H), transpose_qkv(W_v, H)  # (B*H, T, d)
            hiding = *blocks.part(valid_lens if hides else None, mask, samples, keys=slice(longest)), causal
            pooled[heads] = self.attention.pool(*inputs, H, *hiding, training)
            calls.append((heads, samples, longest, (*inputs, H, *hiding, training)))
        merged = transpose_output(pooled, H)  # (B, Q, H*dv)

        def backward(by_output):
            by_merged, by_weights = through_dense(self.W_o, "W_o", merged, by_output)  # (B, Q, H*dv)
            by_pooled, attention = transpose_qkv(by_merged, H), copied(again)  # (B*H, Q, dv)
            by_q, by_keys, by_values = map(np.zeros_like, (split_q, keys, values))
            for heads, samples, longest, call in calls:
                by_q[heads], by_k, by_v, by_pooling = attention.pool_backward(*call, by_pooled[heads])  # (B*H, T, d)
                k, v = keys[samples, :longest], values[samples, :longest]
                by_keys[samples, :longest], by_W_k = through_dense(self.W_k, "W_k", k, transpose_output(by_k, H))
                by_values[samples, :longest], by_W_v = through_dense(self.W_v, "W_v", v, transpose_output(by_v, H))
                by_weights = added(by_weights, by_W_k | by_W_v | by_pooling)
            by_queries, by_W_q = through_dense(self.W_q, "W_q", queries, transpose_output(by_q, H))
            by_weights |= by_W_q
            by_inputs = {"queries": by_queries, "keys": by_keys, "values": by_values}
            return by_inputs | {name: by_weights[name] for name in shapes(self.config)}

        return self.W_o(merged), backward


# 4. Calls

build = functools.partial(lesson.build, kind=MultiHeadAttention)
