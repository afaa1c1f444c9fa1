"""A round of the ring by the framework's fused kernel, which keeps no scores, merged by the logarithms of its sums.

Letters as in layer.py; R heads of queries share a head of keys.

Source: Dao et al., FlashAttention (2022), section 3.1 and appendix B; Dao, FlashAttention-2 (2023), for the logarithms.
"""

import math

import torch

from mha.backends.torch.engine.pooling import DotProductAttention, by_heads, kernel_mask, needs_pairs, only_causal
from mha.backends.torch.hiding import widen
from mha.core.call import ALL
from mha.core.engine import blocks as cutting
from mha.core.engine.visible_range import narrow, reach

from .circle import Circle, later, zeros

NAME = "_scaled_dot_product_flash_attention_for_cpu"  # private: that it is there is seen once
FORWARD, BACKWARD = (getattr(torch.ops.aten, name, None) for name in (NAME, f"{NAME}_backward"))
FEW = 16  # keys, of fewer of which the kernel forgets NaN where a query sees one of them, unless a mask comes


class Fused(Circle):
    """Passes round the ranks in which the framework's kernel pools."""

    @staticmethod
    def takes(attention, q, v, call):
        """Whether the kernel can compute a call of these heads."""
        if None in (FORWARD, BACKWARD) or q.device.type != "cpu" or not isinstance(attention, DotProductAttention):
            return False
        return attention.has_kernel(q.shape[2], v.shape[2], call.with_plan(sinks=None))

    def forward(self, q, own_k, own_v, score_bias, sinks, weights):
        """The pooled values (B*H, Q, dv), and the logarithms of the sums of exponentials beside them (B*H, Q)."""
        pooled = zeros(q, widen(q).dtype)  # (B*H, Q, dv)
        logs = pooled.new_full(q.shape[:2], -math.inf)  # (B*H, Q)
        if sinks is not None:
            logs.copy_(sinks[:, :, 0])  # (B*H, 1), for each query

        def merge(owner, k, v):
            for rows, columns, call in self.pieces(q, k, owner, score_bias):
                heads, mask, ordered = self.as_kernel(q[:, rows], k[:, columns], v[:, columns], call)
                found, more = FORWARD(*heads, 0.0, ordered, attn_mask=mask, scale=self.attention.scale)
                if mask is not None:
                    sees = (mask != -math.inf).any(-1)  # (any, any, Q or 1)
                    found, more = torch.where(sees[..., None], found, 0), torch.where(sees, more, -math.inf)
                more, before = more.reshape(len(q), -1), logs[:, rows]  # (B*H, rows)
                share = torch.where(more == -math.inf, 0, torch.sigmoid(more - before))[:, :, None]
                pooled[:, rows].lerp_(widen(found.reshape(len(q), -1, found.shape[3])), share)  # (B*H, rows, dv)
                logs[:, rows] = torch.logaddexp(before, more)

        self.go_round((own_k, own_v), merge)
        return pooled.to(own_v.dtype), torch.where(logs == -math.inf, 0, logs)

    def backward(self, gradient, trains_bias, q, own_k, own_v, score_bias, sinks, pooled, logs):
        """The gradients by q, k, v, no bias, and sinks, of this rank alone."""
        wide, gradient, by_sinks = widen(gradient).dtype, gradient.contiguous(), None
        by_q, *by_pairs = (zeros(X, wide) for X in (q, own_k, own_v))
        if sinks is not None:
            shares = (widen(gradient) * widen(pooled)).sum(-1)  # (B*H, Q)
            by_sinks = -(shares * torch.exp(widen(sinks)[:, :, 0] - logs)).sum(1)[:, None, None]  # (B*H, 1, 1)

        def collect(owner, k, v):
            for rows, columns, call in self.pieces(q, k, owner, score_bias):
                heads, mask, ordered = self.as_kernel(q[:, rows], k[:, columns], v[:, columns], call)
                sizes, shared = heads[0].shape[:2], len(q) != len(k)
                own, found, sums, summed_q = (X[:, rows].unflatten(0, sizes) for X in (gradient, pooled, logs, by_q))
                summed = [X[:, columns].unflatten(0, (sizes[0], -1)) for X in by_pairs]  # (any, any or 1, columns, any)
                for some in parts(*heads):  # so that their gradients take little memory
                    hides = mask if mask is None else cut_heads(mask, some)
                    given = own[some], *(X[some] for X in heads), found[some], sums[some], 0.0, ordered
                    more_q, *more = BACKWARD(*given, attn_mask=hides, scale=self.attention.scale)
                    summed_q[some] += more_q
                    for total, each in zip(summed, more, strict=True):
                        total[some[:1] if shared else some] += each.sum(1, keepdim=True) if shared else each

        self.go_round((own_k, own_v), collect, by_pairs)
        found = by_q, *by_pairs, None, by_sinks
        return tuple(X if X is None else X.to(q.dtype) for X in found)

    def pieces(self, q, k, owner, score_bias):
        """Blocks of queries, the keys of the owner that each needs, and their calls: as few as the kernel takes.

        The kernel's causal order begins at the first key: keys that all queries see are a block of their own.
        """
        for rows, columns, _, call in self.meetings(k, owner, score_bias):
            Q = rows.stop - rows.start
            seen, call = narrow(call, Q, columns.stop - columns.start)
            for block, own, cut in blocks(call, Q, seen.stop - seen.start, len(q)):
                yield later(block, rows.start), later(own, columns.start + seen.start), cut

    def as_kernel(self, q, k, v, call):
        """Arrays as the kernel takes them, a bias that hides, or None, and whether it hides by its own order."""
        few = k.shape[1] < FEW
        order = only_causal(call) and not few
        mask = None if order else kernel_mask(q, k, call)  # (B or 1, H or 1, Q or 1, K)
        mask = mask if mask is not None or not few else torch.ones(1, 1, 1, 1, dtype=torch.bool)
        *heads, mask = by_heads(q, k, v, mask, self.num_heads)
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.where(mask, 0, -math.inf)
        return heads, None if mask is None else mask.to(q.dtype), order


def cut_heads(pairs, heads):
    """Cut an array of pairs to some heads, slices of its first two axes; an axis of size 1 stays."""
    return pairs[tuple(own if n > 1 else ALL for own, n in zip(heads, pairs.shape[:2], strict=True))]


def parts(q, k, v):
    """Heads to take together, as slices of the first two axes of q, k and v, (any, any, rows or columns, d)."""
    count, each = q.shape[:2]
    size = cutting.heads(count * each, each, sum(X[0, 0].numel() for X in (q, k, v)))
    rows, columns = max(1, size // each), min(size, each)
    for first in range(0, count, rows):
        for start in range(0, each, columns):
            yield slice(first, first + rows), slice(start, start + columns)


def blocks(call, num_queries, num_keys, heads):
    """Blocks of queries, their keys and their calls: few where the kernel needs no array of all pairs."""
    left, right = reach(call)
    if (
        left is not None
        or type(call.offset) is not int
        or needs_pairs(call._replace(causal=False).with_plan(window=None))
    ):
        yield from in_pieces(call, slice(0, num_queries), slice(0, num_keys), heads)
        return
    seen = num_keys if right is None else call.offset + right  # keys that all queries see, if there are so many
    all_see, blind = min(max(seen, 0), num_keys), min(max(-seen, 0), num_queries)
    plain = call._replace(causal=False).with_plan(window=None)
    if all_see:
        columns = slice(0, all_see)
        yield slice(0, num_queries), columns, plain.part(keys=columns)._replace(offset=0)
    rows, columns = slice(blind, num_queries), slice(all_see, min(num_keys, all_see + num_queries - blind))
    if rows.start < rows.stop and columns.start < columns.stop:
        triangle = plain.part(queries=rows, keys=columns)._replace(causal=True, offset=0)
        yield from [(rows, columns, triangle)] if only_causal(triangle) else in_pieces(triangle, rows, columns, heads)


def in_pieces(call, rows, columns, heads):
    """Blocks as of `blocks`, for a call of these rows and columns, each as large as the memory for pairs allows."""
    Q, K = rows.stop - rows.start, columns.stop - columns.start
    for block, seen in cutting.pieces(call, Q, K, heads):
        yield later(block, rows.start), later(seen, columns.start), cutting.call_of_block(call, block, seen)
