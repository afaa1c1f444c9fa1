"""A cache whose slots are split over ranks: each writes and attends to its own, and the results are merged.

Letters as in layer.py; N ranks, S slots, of which each rank has n: slot s is on rank s % N, so that all have as many
tokens. Queries, new tokens and the bookkeeping of the slots are on all ranks. Of the new tokens, a rank attends to each
N-th, c of them. The merge is that of the ring: a maximum, a sum and pooled values of each query, as if the softmax were
over these keys alone.

Source: Dao et al., FlashAttention (2022), section 3.1, for the merge.
"""

import functools
import math

import torch
from torch import distributed, nn

from mha.backends.torch import layer as lesson
from mha.backends.torch import pooling as poolings
from mha.backends.torch.cache import recall
from mha.backends.torch.engine.layer import Decisions
from mha.backends.torch.engine.operations import OPERATIONS
from mha.backends.torch.engine.pooling import recompute
from mha.backends.torch.heads import repeat_heads
from mha.backends.torch.hiding import four_axes, signed, widen
from mha.backends.torch.slots import slots_after, take
from mha.core.engine import blocks
from mha.core.engine.visible_range import pairs_by_group

from .ranks import all_reduce, share, sum_ranks
from .twins import class_of, with_parameters


def over(part, mesh):
    """A layer for one call with a cache whose slots are split over the ranks of a mesh."""
    part.__class__, part.mesh = class_of(OfSlots, type(part)), mesh
    return part


class OfSlots:
    """A layer for one call with the slots on this rank; it comes before the layer's own class in the bases."""

    def attend(self, queries, keys, values, call):
        """Take the steps of the lesson, so that all ranks exchange equally often."""
        bias = share(call.score_bias, self.mesh)  # of which each rank uses other columns
        call = call._replace(score_bias=bias).with_plan(lesson=True, engine=Decisions())
        return lesson.MultiHeadAttention.attend(self, queries, keys, values, call)

    def remember(self, k, v, call):
        """The heads in the slots here and of the new tokens here, the call for them, and a function that writes."""
        cache, N, rank = call.cache, self.mesh.size(), self.mesh.get_local_rank()
        (B, G, n, _), S = cache.keys.shape, cache.positions.shape[1]
        columns, slots, state = slots_after(cache.positions, cache.lengths, cache.lost, call)
        own = (X.detach().reshape(B * G, n, -1) for X in (cache.keys, cache.values))  # (B*G, n, any)
        new = (share(X, self.mesh)[:, rank::N] for X in (k, v))  # (B*G, c, any)
        keys, values = zip(own, new, strict=True)

        def here(X):
            """The part of X that belongs to this rank, along its last axis, of slots and new tokens."""
            return torch.cat([X[..., rank:S:N], X[..., S + rank :: N]], -1)

        pairs = {name: four_axes(X) for name, X in call.pairs().items() if X.shape[-1] > 1}
        pairs = {name: here(take(X, slots[:, None, None], 3)) for name, X in pairs.items()}  # (B, H, Q, n + c)
        lengths = call.valid_lens  # beside a frozen cache, which count its slots
        if lengths is not None:
            lengths = (signed(lengths, S) - rank + N - 1).div(N, rounding_mode="floor")  # (B,) or (B, Q): of those here
        places = here(torch.cat([cache.positions, call.key_positions], 1))  # (B, n + c)
        call = call._replace(key_positions=places, valid_lens=lengths, offset=0, **pairs)
        write = functools.partial(_write, cache, k, v, columns[:, rank::N], state)
        return keys, values, call, write

    def recall(self, output, weights, call, cache):
        """The results of a call with a cache, after its slots are written."""
        return recall(output, None, call, call.cache if call.cache.frozen else cache())

    def pool(self, q, k, v, call):
        """The pooled heads, (B*H, Q, dv): pooled from the keys here, in blocks of queries, then merged over ranks."""
        call, (BH, Q, d), H = self.beside_sinks(call), q.shape, self.config.num_heads
        if getattr(type(self.attention), "weigh", None) is not poolings.AttentionPooling.weigh:
            name = type(self.attention).__name__
            raise ValueError(f"cache is split by slots for a pooling {name} of its own, expected one of the layer")
        if 0 in q.shape:
            return v[1].new_zeros((BH, Q, v[1].shape[2])), None
        sinks = repeat_heads(call.plan.sinks, BH // H, H)  # (B*H, 1, 1)
        features = d if [*self.attention.parameters()] else 1
        attention = with_parameters(self.attention, lambda name, X: share(X, self.mesh))
        q, size = share(q, self.mesh), blocks.queries(Q, BH * features * (k[0].shape[1] + k[1].shape[1]))
        found = []
        for first in range(0, Q, size):
            rows = slice(first, min(first + size, Q))
            own = call.with_plan(sinks=None).part(queries=rows)
            found.append(recompute(_of_keys, attention, q[:, rows], k, v, H, own))
        each = (torch.cat(parts, 1) for parts in zip(*found, strict=True))  # (B*H, Q, any)
        return self.merge_ranks(*each, sinks).to(v[1].dtype), None  # (B*H, Q, dv)

    def merge_ranks(self, most, total, pooled, sinks):
        """Merge the maxima, sums and pooled values of all ranks: (B*H, Q, dv)."""
        largest = all_reduce(most.detach(), self.mesh, distributed.ReduceOp.MAX)  # (B*H, Q, 1)
        if sinks is not None:
            largest = torch.maximum(largest, widen(sinks.detach()))
        base = torch.where(largest == -math.inf, 0, largest)  # of a query that sees nothing
        sums = sum_ranks(torch.cat([total, pooled], 2) * torch.exp(most - base), self.mesh)  # (B*H, Q, 1 + dv)
        total, pooled = sums.split([1, sums.shape[2] - 1], 2)  # (B*H, Q, 1), (B*H, Q, dv)
        if sinks is not None:
            total = total + torch.exp(widen(sinks) - base)
        sees = total != 0  # so that NaN stays
        return torch.where(sees, pooled / torch.where(sees, total, 1), 0)  # (B*H, Q, dv)


def _of_keys(attention, q, k, v, num_heads, call):
    """Pool queries q (B*H, Q, d) over the keys here: maxima and sums (B*H, Q, 1), and pooled values (B*H, Q, dv)."""
    (BG, n, _), c = k[0].shape, k[1].shape[1]
    visible, bias, _ = pairs_by_group(OPERATIONS, q, q.new_empty((BG, n + c, 0)), num_heads, call)
    folded = q.reshape(BG, -1, q.shape[2])  # (B*G, H/G*Q, d)
    scores = torch.cat([attention.scores(folded, X) for X in k], 2)  # (B*G, H/G*Q, n + c)
    scores = torch.where(visible, widen(attention.bend(scores, visible, bias)), -math.inf)
    most = scores.detach().amax(-1, keepdim=True)  # (B*G, H/G*Q, 1)
    weights = torch.exp(scores - torch.where(most == -math.inf, 0, most))  # (B*G, H/G*Q, n + c)
    total = weights.sum(-1, keepdim=True)
    kept = nn.functional.dropout(weights, attention.dropout) if call.training else weights
    of_slots, of_new = kept.split([n, c], 2)
    pooled = torch.bmm(of_slots, widen(v[0])) + torch.bmm(of_new, widen(v[1]))  # (B*G, H/G*Q, dv)
    if pooled.isnan().any():  # a slot that nobody sees may hold no number, and seldom does
        slots = torch.where(visible.any(1)[:, :n, None], v[0], 0)  # (B*G, n, dv)
        pooled = torch.bmm(of_slots, widen(slots)) + torch.bmm(of_new, widen(v[1]))  # (B*G, H/G*Q, dv)
    return tuple(X.reshape(*q.shape[:2], -1) for X in (most, total, pooled))  # (B*H, Q, any)


def _write(cache, k, v, columns, state):
    """The next cache, with new tokens k (B*G, Q, d) and v (B*G, Q, dv) in its slots.

    columns: the index, among old slots and new tokens, of what each slot here holds now, (B, n). Slots are written in
    place, unless gradients may need their old contents.
    """
    S, heads = cache.positions.shape[1], []
    rows, slots = torch.nonzero(columns >= S, as_tuple=True)
    tokens = columns[rows, slots] - S
    for X, new in ((cache.keys, k), (cache.values, v)):
        if torch.is_grad_enabled() or (X.is_inference() and not torch.is_inference_mode_enabled()):
            X = X.clone()
        new = new.detach().reshape(*X.shape[:2], *new.shape[1:])  # (B, G, Q, any)
        X[rows, :, slots] = new[rows, :, tokens]
        heads.append(X)
    return cache.after(*heads, *state)
