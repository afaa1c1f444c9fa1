"""A round of the ring that computes scores itself, a block at a time: for every pooling of the layer.

Letters as in layer.py; a block is queries that are attended together. A rank keeps a maximum, a sum and pooled values
for each query.

Source: Dao et al., FlashAttention (2022), section 3.1 and appendix B, for the merge and its gradients.
"""

import math

import torch

from mha.backends.torch import pooling as lesson
from mha.backends.torch.engine.operations import OPERATIONS
from mha.backends.torch.hiding import widen
from mha.core.call import ALL
from mha.core.engine import blocks
from mha.core.engine.visible_range import pairs_by_group

from ..twins import with_parameters
from .circle import Circle, later, zeros


class Scored(Circle):
    """Passes round the ranks in which scores are computed, a block at a time."""

    def __init__(self, attention, mesh, places, num_heads, call, names):
        if getattr(type(attention), "weigh", None) is not lesson.AttentionPooling.weigh:
            name = type(attention).__name__
            raise ValueError(f'how is "ring" for a pooling {name} of its own, expected one of the layer; use "gather"')
        super().__init__(attention, mesh, places, num_heads, call, names)
        self.rate = attention.dropout if call.training else 0.0
        self.seed = int(torch.randint(2**62, ())) if self.rate else 0

    def forward(self, q, own_k, own_v, score_bias, sinks, weights):
        """The pooled values (B*H, Q, dv), the largest scores and the sums of exponentials beside them (B*H, Q, 1)."""
        attention, dv = self.of(weights), own_v.shape[2]
        state = [
            widen(q).new_full((*q.shape[:2], width), value) for width, value in ((1, -math.inf), (1, 0), (dv, 0))
        ]  # the largest score, the sum and the pooled values
        if sinks is not None:
            state[:2] = widen(sinks).repeat(1, q.shape[1], 1), torch.ones_like(state[1])
        draw = self.generator(q.device)

        def merge(owner, k, v):
            for block, seen, _, call in self.pieces(q, k, owner, score_bias):
                rows = q[:, block].reshape(len(k), -1, q.shape[2])  # (B*G, H/G*block, d)
                scores, visible = self.scores(attention, rows, q[:, block], k[:, seen], call)
                scores = scores if visible is None else torch.where(visible, scores, -math.inf)
                parts = (X[:, block].reshape(len(k), -1, X.shape[2]) for X in state)  # (B*G, H/G*block, 1 or dv)
                largest, total, pooled = parts
                most = torch.maximum(largest, scores.amax(-1, keepdim=True))  # (B*G, H/G*block, 1)
                base = torch.where(most == -math.inf, 0, most)  # of a query that has seen no key
                weights, again = scores.sub_(base).exp_(), torch.exp(largest - base)
                total = total * again + weights.sum(-1, keepdim=True)
                (weights,) = self.drop(draw, weights)
                pooled = torch.baddbmm(pooled * again, weights, widen(v[:, seen]))  # (B*G, H/G*block, dv)
                for X, new in zip(state, (most, total, pooled), strict=True):
                    X[:, block] = new.reshape(len(q), -1, X.shape[2])  # (B*H, block, any)

        self.go_round((own_k, own_v), merge)
        largest, total, pooled = state
        sees = total != 0  # so that NaN stays
        largest, total = torch.where(sees, largest, 0), torch.where(sees, total, 1)
        return (pooled / total).to(own_v.dtype), largest, total

    def backward(self, gradient, trains_bias, q, own_k, own_v, score_bias, sinks, pooled, largest, total, *weights):
        """The gradients by q, k, v, the bias, if it is trained, sinks and the pooling's weights, of this rank alone."""
        leaves = [X.detach().requires_grad_() for X in weights]
        attention, gradient = self.of(leaves), widen(gradient)
        shares = (gradient * widen(pooled)).sum(-1, keepdim=True)  # (B*H, Q, 1): what the softmax takes from each
        by_q, *by_pairs = (zeros(X, gradient.dtype) for X in (q, own_k, own_v))
        by_bias, by_sinks = zeros(score_bias, gradient.dtype) if trains_bias else None, None
        if sinks is not None:
            by_sinks = -(shares * torch.exp(sinks - largest) / total).sum(1, keepdim=True)  # (B*H, 1, 1)
        by_weights = [zeros(X, gradient.dtype) for X in weights]
        draw = self.generator(q.device)

        def collect(owner, k, v):
            for block, seen, place, call in self.pieces(q, k, owner, score_bias):
                rows, own_gradient, own_shares, most, own_total = (
                    X[:, block].reshape(len(k), -1, X.shape[2]) for X in (q, gradient, shares, largest, total)
                )  # (B*G, H/G*block, any)
                with torch.enable_grad():
                    rows, keys = rows.detach().requires_grad_(), k[:, seen].detach().requires_grad_()
                    bias = call.score_bias.detach().requires_grad_() if trains_bias else None
                    call = call._replace(score_bias=bias) if trains_bias else call
                    scores, visible = self.scores(attention, rows, q[:, block], keys, call)
                with torch.no_grad():
                    chances = (scores - most).exp_().div_(own_total)  # (B*G, H/G*block, keys)
                    if visible is not None:
                        chances = torch.where(visible, chances, 0)
                    by_scores = torch.bmm(own_gradient, widen(v[:, seen]).swapaxes(1, 2))  # as chances
                    kept, by_scores = self.drop(draw, chances, by_scores)
                    by_pairs[1][:, seen] += torch.bmm(kept.swapaxes(1, 2), own_gradient)
                    by_scores = by_scores.sub_(own_shares).mul_(chances)
                given = [X for X in (rows, keys, bias, *leaves) if X is not None]
                by_rows, by_keys, *rest = torch.autograd.grad(scores, given, by_scores)
                by_q[:, block] += by_rows.reshape(len(q), -1, q.shape[2])  # (B*H, block, d)
                by_pairs[0][:, seen] += by_keys
                if bias is not None:
                    _add(by_bias, rest.pop(0), block, place)
                for summed, found in zip(by_weights, rest, strict=True):
                    summed += found

        self.go_round((own_k, own_v), collect, by_pairs)
        found = by_q, *by_pairs, by_bias, by_sinks, *by_weights
        return tuple(X if X is None else X.to(q.dtype) for X in found)

    def of(self, weights):
        """A copy of the pooling with these weights."""
        named = dict(zip(self.names, weights, strict=True))
        return with_parameters(self.attention, lambda name, X: named[name])

    def pieces(self, q, k, owner, score_bias):
        """Blocks of queries, the keys of the owner that each needs, their place in the whole, and their call."""
        of_pair = len(q) * (q.shape[2] if self.names else 1)  # additive scores have features
        for rows, columns, first, call in self.meetings(k, owner, score_bias):
            Q, K = rows.stop - rows.start, columns.stop - columns.start
            for block, seen in blocks.pieces(call, Q, K, of_pair):
                cut = call.part(queries=block, keys=seen)
                yield later(block, rows.start), later(seen, columns.start), later(seen, first), cut

    def scores(self, attention, rows, queries, keys, call):
        """The scores of a block (B*G, H/G*block, keys), capped and biased, and which of them are visible."""
        visible, bias, _ = pairs_by_group(OPERATIONS, queries, keys, self.num_heads, call)
        return attention.bend(attention.scores(rows, keys), visible, bias), visible

    def generator(self, place):
        """The random generator of dropout, the same in both passes; None without dropout."""
        return torch.Generator(place).manual_seed(self.seed) if self.rate else None

    def drop(self, draw, *alike):
        """Arrays of the same shape after dropout, with zeros at the same places; the other numbers grow to make up."""
        if draw is None:
            return alike
        drawn = torch.rand(alike[0].shape, generator=draw, dtype=alike[0].dtype, device=alike[0].device)
        kept = (drawn >= self.rate).to(drawn.dtype) / (1 - self.rate)
        return [X * kept for X in alike]


def _add(whole, part, queries, keys):
    """Add a part of a bias's gradient to the whole, of which any size may be 1."""
    axes = {2: queries, 3: keys}
    cut = tuple(axes.get(axis, ALL) if n > 1 else ALL for axis, n in enumerate(whole.shape))
    whole[cut] += part
