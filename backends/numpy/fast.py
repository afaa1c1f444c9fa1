"""The same numbers as the lesson's, in less time and memory, where nobody asks for attention weights.

Letters as in layer.py. A block is queries that are attended together; a group is samples that are.
"""

import functools

import numpy as np

from mha import blocks
from mha.config import shapes

from . import backward
from . import layer as lesson
from .backward import added, copied, summed
from .heads import positions, widen
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
    first, last = np.zeros_like(each_query), np.full_like(each_query, K)  # (B or 1, Q)
    if left is not None:
        first = np.maximum(first, each_query - left)
    if right is not None:
        last = np.minimum(last, each_query + right + 1)
    if valid_lens is not None:
        last = np.minimum(last, valid_lens if per_query else valid_lens[:, None])  # (B, Q)
    sees = first < last  # (B or 1, Q)
    first, last = np.where(sees, first, K), np.where(sees, last, 0)
    return sees, (first.min(1)[:, None] <= each_key) & (each_key < last.max(1)[:, None])


# 2. Attention poolings


class AttentionPooling(backward.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    def pool(self, queries, keys, values, num_heads, hiding, training=None):
        """The pooled values (B*H, Q, dv) alone, for queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv).

        hiding: of the call. No weights are kept: blocks of queries follow each other, and are computed once more for
        their gradients, so that scores take the memory of one block. A block leaves out the keys that order and window
        hide from all of it.
        """
        pooled = []
        for block, seen in self.pieces(queries, keys, hiding):
            inputs = queries[:, block], keys[:, seen], values[:, seen]
            pooled.append(self.pool_block(*inputs, num_heads, blocks.part(hiding, queries=block, keys=seen), training))
        return np.concatenate(pooled, 1) if len(pooled) > 1 else pooled[0]  # (B*H, Q, dv)

    def pool_block(self, queries, keys, values, num_heads, hiding, training):
        """As `pool`, for the queries of one block."""
        visible, score_bias = by_group(queries, keys, num_heads, hiding)
        folded = queries.reshape(len(keys), -1, queries.shape[2])  # (B*G, H/G*Q, d)
        pooled = self.weigh(folded, keys, values, visible, score_bias, training)["pooled"]  # (B*G, H/G*Q, dv)
        return pooled.reshape(*queries.shape[:2], -1)  # (B*H, Q, dv)

    def pieces(self, queries, keys, hiding):
        """The blocks of queries of a call, and the keys that each needs."""
        return blocks.pieces(hiding, queries.shape[1], keys.shape[1], self.scores_of_pair(queries))

    def scores_of_pair(self, queries):
        """How many numbers the scores of one query and one key take, over all heads (B*H)."""
        return queries.shape[0]

    def pool_backward(self, queries, keys, values, num_heads, hiding, training, by_pooled):
        """Gradients of `pool` by queries, keys, values, score_bias (or None) and, by name, its weights, in blocks."""
        by_queries, by_parameters, by_bias = [], {}, None
        by_keys, by_values = np.zeros_like(widen(keys)), np.zeros_like(widen(values))
        if hiding.score_bias is not None:
            by_bias = np.zeros_like(widen(four_axes(hiding.score_bias)))  # (B or 1, H or 1, Q or 1, K or 1)
        for block, seen in self.pieces(queries, keys, hiding):
            cut, inputs = blocks.part(hiding, queries=block, keys=seen), (queries[:, block], keys[:, seen])
            visible, score_bias = by_group(*inputs, num_heads, cut)
            folded, by_block = (X[:, block].reshape(len(keys), -1, X.shape[2]) for X in (queries, by_pooled))
            by_all = self.backward(folded, inputs[1], values[:, seen], visible, score_bias, training, by_block)
            by_folded, by_k, by_v, by_biased, by_weights = by_all
            by_queries.append(by_folded.reshape(inputs[0].shape))  # (B*H, block, d)
            by_keys[:, seen] += by_k
            by_values[:, seen] += by_v
            by_parameters = added(by_parameters, by_weights)
            if by_bias is not None:
                by_biased = by_biased.reshape(-1, num_heads, block.stop - block.start, by_k.shape[1])  # (B, H, Q, K)
                of_block = blocks.of_pairs(by_bias, queries=block, keys=seen)  # a view
                of_block += summed(by_biased, of_block.shape)
        by_inputs = np.concatenate(by_queries, 1), by_keys, by_values  # (B*H, T, d)
        return *(X.astype(values.dtype, copy=False) for X in by_inputs), by_bias, by_parameters


class DotProductAttention(AttentionPooling, backward.DotProductAttention):
    """As the lesson's."""


class AdditiveAttention(AttentionPooling, backward.AdditiveAttention):
    """As the lesson's; its features count as scores, of which each takes several."""

    def scores_of_pair(self, queries):
        """How many numbers the scores of one query and one key take: n features for each head."""
        return super().scores_of_pair(queries) * queries.shape[2]


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)


def by_group(queries, keys, num_heads, hiding):
    """What is visible and the bias for heads of keys (B*G, K, d), with the queries (B*H, Q, d) that share one in a row.

    Both broadcast against (B*G, H/G*Q, K), or are None.
    """
    (BH, Q, _), (BG, _, _), B = queries.shape, keys.shape, len(queries) // num_heads

    def folded(pairs):
        if pairs is None or BG == BH or pairs.shape[1] == pairs.shape[2] == 1:
            return repeat_heads(pairs, B, num_heads * BG // BH)  # (B*G, Q or 1, K)
        pairs = np.broadcast_to(pairs, (B, num_heads, Q, pairs.shape[3]))  # (B, H, Q, K or 1)
        return pairs.reshape(BG, BH // BG * Q, -1)  # (B*G, H/G*Q, K or 1)

    score_bias = None if hiding.score_bias is None else four_axes(hiding.score_bias)
    return folded(visible_keys(queries, keys, *hiding)), folded(score_bias)


# 3. The layer


class MultiHeadAttention(backward.MultiHeadAttention):
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
        inputs, groups = self.groups(queries, keys, values, hiding)
        merged = [self.merged(*self.part(group, *inputs, hiding, head_gates), training)["merged"] for group in groups]
        return self.W_o(np.concatenate(merged) if len(merged) > 1 else merged[0])  # (B, Q, D)

    def groups(self, queries, keys, values, hiding):
        """Queries, keys and values, blank where they are not used, and the groups of samples, as `blocks.groups`."""
        sizes = queries.shape[0], self.config.num_heads, queries.shape[1], keys.shape[1]
        offset = None if isinstance(hiding.offset, int) else hiding.offset
        groups = blocks.groups(hiding, sizes, hiding.valid_lens, offset)
        if not blocks.all_used(hiding, queries.shape[1], groups):
            queries, keys, values = blank(queries, keys, values, *used(queries, keys, hiding))
        return (queries, keys, values), groups

    def part(self, group, queries, keys, values, hiding, head_gates):
        """The arguments of a call for one group."""
        samples, seen, hides = group
        hiding = blocks.part(hiding if hides else hiding._replace(valid_lens=None), samples, keys=seen)
        gates = head_gates[samples] if head_gates is not None and head_gates.ndim == 2 else head_gates  # (B, H)
        return queries[samples], keys[samples, seen], values[samples, seen], hiding, gates

    def merged(self, queries, keys, values, hiding, head_gates, training):
        """The steps of one group, up to the merged heads (B, Q, H*dv), of which scores and weights are not kept."""
        H, G = self.config.num_heads, self.config.num_key_value_heads
        W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        split_q, split_k, split_v = transpose_qkv(W_q, H), transpose_qkv(W_k, G), transpose_qkv(W_v, G)  # (B*H, T, d)
        q, k, turned = self.turn(split_q, split_k, hiding.offset)
        pooled = gated = self.attention.pool(q, k, split_v, H, hiding, training)  # (B*H, Q, dv)
        if head_gates is not None:
            gated = pooled * np.broadcast_to(head_gates, (len(queries), H)).reshape(-1, 1, 1)  # (B*H, Q, dv)
        merged = transpose_output(gated, H)  # (B, Q, H*dv)
        steps = {"split_q": split_q, "split_k": split_k, "split_v": split_v, "pooled": pooled, "merged": merged}
        return steps | turned

    def vjp(self, queries, keys, values, hiding, head_gates, training):
        """As the derived layer's, group by group."""
        if self.needs_lesson(queries, keys):
            return super().vjp(queries, keys, values, hiding, head_gates, training)
        inputs, groups = self.groups(queries, keys, values, hiding)
        calls, again = [], copied(self.attention)
        for group in groups:
            call = self.part(group, *inputs, hiding, head_gates)
            calls.append((group, call, self.merged(*call, training)))
        output = self.W_o(np.concatenate([steps["merged"] for *_, steps in calls]))  # (B, Q, D)

        def backward(by_output):
            attention, found = copied(again), {}
            given = dict(zip(("queries", "keys", "values"), inputs, strict=True))
            given |= {"score_bias": hiding.score_bias, "head_gates": head_gates}
            by_inputs = {name: np.zeros_like(widen(X)) for name, X in given.items() if X is not None}
            for (samples, seen, _), (*pairs, cut, gates), steps in calls:

                def pool_backward(q, k, v, by_pooled, cut=cut):
                    return attention.pool_backward(q, k, v, self.config.num_heads, cut, training, by_pooled)

                by_group = self.pull_back(pairs, cut, gates, steps, pool_backward, by_output[samples])
                by_inputs["queries"][samples] += by_group.pop("queries")
                by_inputs["keys"][samples, seen] += by_group.pop("keys")
                by_inputs["values"][samples, seen] += by_group.pop("values")
                if head_gates is not None:
                    by_inputs["head_gates"][samples if head_gates.ndim == 2 else ...] += by_group.pop("head_gates")
                if hiding.score_bias is not None:
                    of_group = blocks.of_pairs(by_inputs["score_bias"], samples, keys=seen)  # a view
                    of_group += by_group.pop("score_bias")
                found = added(found, by_group)
            return by_inputs | {name: found[name] for name in shapes(self.config)}

        return output, backward


# 4. Calls

build = functools.partial(lesson.build, kind=MultiHeadAttention)
