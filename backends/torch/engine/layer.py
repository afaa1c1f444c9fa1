"""The layer that a call runs: it leaves out the keys that nobody sees, and keeps no attention weights.

Letters as in the chapters. The steps and their order are the lesson's: here are `project`, `pool` and `merge`.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from mha.core.call import Plans, call_kind, check_widths
from mha.core.engine import blocks
from mha.core.engine.decoding import attend_token, in_place, is_token, place_inputs, remember_heads
from mha.core.engine.visible_range import (
    by_segments,
    lengths_hide,
    longest,
    narrow,
    needs_all,
    reach,
    usage,
    usage_if_known,
    uses_all,
    without_positions,
    zero_out,
)
from mha.core.options.config import OF_POOLING, score_options, turns_heads

from .. import layer as lesson
from . import flexible
from .decoding import remember_token
from .kernels import pool_by_kernel, room
from .operations import OPERATIONS
from .pooling import AttentionPooling, DotProductAttention, kernel_mask, needs_pairs, only_causal, pooling

TYPES = torch.Tensor, nn.Parameter


class Decisions(NamedTuple):
    """The decisions of a call that are made once.

    views: whether the kernel takes views of the heads.
    flexible: whether the kernel is `flex_attention`.
    ordered: whether the kernel hides by its own causal order; bare: whether that is all that hides.
    whole: whether every query sees a key, and every key is seen.
    alone: whether lengths of samples alone hide.
    parts: slices of the samples to compute together; None = as each call says.
    plain: whether the framework's kernel pools a token.
    """

    views: bool = False
    flexible: bool = False
    ordered: bool = False
    bare: bool = False
    whole: bool = False
    alone: bool = False
    parts: list[slice] | None = None
    plain: bool = False


class MultiHeadAttention(lesson.MultiHeadAttention):
    """The lesson's layer; a call that asks for no attention weights keeps none."""

    pooling = staticmethod(pooling)

    def __init__(self, config):
        super().__init__(config)
        self.plans = Plans()

    def kind(self, queries, keys, values, call):
        """The facts that decide the plan of a call; None where a compiler looks on, or a class is not ours."""
        pooling, bias = self.attention, call.score_bias
        if torch.compiler.is_compiling() or torch.jit.is_tracing() or not isinstance(pooling, AttentionPooling):
            return None
        state = id(self.config), self.training, type(pooling), *map(vars(pooling).get, OF_POOLING), blocks.SCORES
        state += bias is not None and getattr(bias, "requires_grad", None), torch._C._are_functorch_transforms_active()
        for X in (queries,) if keys is queries is values else (queries, keys, values):
            if type(X) not in TYPES or X.is_nested or X.layout != torch.strided:
                return None
        return call_kind(TYPES, (*state, self.W_q.weight.device), queries, keys, values, call)

    def plan_call(self, queries, keys, call):
        """A checked call with its plan; the lesson computes it if weights are kept, or its pooling was replaced."""
        call = call.with_plan(room=room(queries))
        if call.cache is not None:
            return call.with_plan(engine=Decisions(plain=self.is_plain(call)))
        Q, K = queries.shape[1], keys.shape[1]
        if call.return_weights or call.plan.traced or 0 in (queries.shape[0], Q, K):
            return call.with_plan(lesson=True, engine=Decisions())
        if not isinstance(self.attention, AttentionPooling):
            return call.with_plan(lesson=True, engine=Decisions())
        if torch.compiler.is_compiling():  # which would stop at NumPy's values
            call = call.with_plan(known=None, extremes=None)
        dots = type(self.attention) is DotProductAttention
        flexibly = dots and flexible.takes(self.attention, self.config, call, queries, keys)
        if not flexibly:
            call = by_segments(OPERATIONS, queries, keys, call)
        views, parts = self.takes_views(call, flexibly), None
        if call.plan.room:  # on a GPU a loop over samples is slow
            parts = [slice(0, queries.shape[0])]
        if type(call.offset) is not int or call.offset != 0:
            return call.with_plan(engine=Decisions(views, flexibly, parts=parts))
        if torch.compiler.is_compiling():  # what is compared here would be compiled for these sizes alone
            return call.with_plan(engine=Decisions(views, flexibly, only_causal(call), parts=parts))
        ordered = only_causal(call)
        bare = views and not flexibly and (ordered or not call.hides())
        whole = needs_all(call, Q, K)
        alone = call.valid_lens is not None and call.valid_lens.ndim == 1 and not call.pairs() and not call.by_tokens()
        alone = alone and reach(call) == (None, None) and not flexibly
        parts = parts or blocks.samples(call, (queries.shape[0], self.config.num_heads, Q, K))
        return call.with_plan(engine=Decisions(views, flexibly, ordered, bare, whole, alone, parts))

    def attend(self, queries, keys, values, call):
        """Take the steps for some samples after others, as many as fit a cache at once."""
        if call.plan.engine is None or call.plan.traced:
            call = self.plan_call(queries, keys, call)
        if call.cache is not None:
            if not self.in_place(queries, keys, values, call):
                return super().attend(queries, keys, values, call.with_plan(lesson=True))
            if call.plan.engine.plain and is_token(queries, call):
                return attend_token(OPERATIONS, self, queries, keys, values, call)
            return super().attend(queries, keys, values, call)
        if call.plan.lesson or call.plan.engine.whole:
            return super().attend(queries, keys, values, call)
        parts = call.plan.engine.parts
        if parts is None or len(parts) > 1:
            parts = self.parts(queries, keys, call)
        if len(parts) == 1:
            return super().attend(queries, keys, values, call)
        each = zip(parts, *(X.split(parts[0].stop) for X in (queries, keys, values)), strict=True)
        outputs = [super(MultiHeadAttention, self).attend(*inputs, call.part(some)) for some, *inputs in each]
        return torch.cat(outputs)  # (B, Q, D)

    def parts(self, queries, keys, call):
        """Slices of the samples to compute together: those of all, unless some need fewer keys than others."""
        B, Q, K = queries.shape[0], queries.shape[1], keys.shape[1]
        if not call.plan.known:
            return [slice(0, B)]
        parts = blocks.samples(call, (B, self.config.num_heads, Q, K))
        if len(parts) > 1 and call.plan.engine.views:
            needs = {(longest(own, K), lengths_hide(own, K)) for own in map(call.part, parts)}
            return parts if len(needs) > 1 else [slice(0, B)]
        return parts

    def project(self, queries, keys, values, call):
        """Heads as the lesson has them; or views (B, H, T, d): to copy heads costs a small call much of its time."""
        if not call.plan.engine.views:
            return super().project(queries, keys, values, call)
        queries, keys, values, call = self.zero_unused(queries, keys, values, call)
        W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        check_widths(self.config, W_q, W_k, W_v)
        (B, Q, _), K, H, G = W_q.shape, W_k.shape[1], self.config.num_heads, self.config.num_key_value_heads
        q, k, v = W_q.view(B, Q, H, -1), W_k.view(B, K, G, -1), W_v.view(B, K, G, -1)  # (B, T, H or G, d)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), call  # (B, H or G, T, d)

    def zero_unused(self, queries, keys, values, call):
        """The queries, and the keys and values in reach, with zeros where they are not used; and the call of these."""
        if call.plan.lesson or (call.cache is not None and call.plan.step is None):
            return super().zero_unused(queries, keys, values, call)
        if call.cache is not None:
            return place_inputs(OPERATIONS, queries, keys, values, call)
        if call.plan.engine.whole:
            return queries, keys, values, call
        if call.plan.engine.alone and call.plan.extremes is not None:
            return self.cut_short(queries, keys, values, call)
        seen, call = narrow(call, queries.shape[1], keys.shape[1], self.config.temperature is None)
        same, keys = keys is values, keys[:, seen]
        values = keys if same else values[:, seen]
        if uses_all(call, queries.shape[1], keys.shape[1]):
            return queries, keys, values, call
        found = usage_if_known(call, queries.shape[1], keys.shape[1])
        flags = usage(OPERATIONS, queries, keys, call) if found is None else (own(X, keys) for X in found)
        return *zero_out(OPERATIONS, queries, keys, values, *flags), call

    def cut_short(self, queries, keys, values, call):
        """Put zeros as `zero_unused` where known lengths of samples alone hide; a mask (B, 1, 1, K) replaces them."""
        (shortest, longest), lengths, same = call.plan.extremes, call.plan.known["valid_lens"], keys is values
        K = max(1, min(longest, keys.shape[1]))
        keys = keys[:, :K]
        values = keys if same else values[:, :K]
        if shortest >= K:
            return queries, keys, values, call._replace(valid_lens=None)
        if shortest == 0:
            queries = torch.where(own(lengths > 0, keys)[:, None, None], queries, 0)  # (B, Q, any)
        seen = own(np.arange(K) < lengths[:, None], keys)  # (B, K)
        keys = torch.where(seen[:, :, None], keys, 0)  # (B, K, any)
        values = keys if same else torch.where(seen[:, :, None], values, 0)
        return queries, keys, values, call._replace(valid_lens=None, mask=seen[:, None, None])

    def takes_views(self, call, flexibly):
        """Whether the framework's kernel pools views of the heads; on a processor, each with its own keys.

        flexibly: whether it is `flex_attention`, which knows windows, caps and sinks.
        """
        config = self.config
        if turns_heads(config) or call.head_gates is not None:
            return False
        if call.plan.room:  # on a GPU
            return flexibly or self.is_plain(call)
        return config.num_key_value_heads == config.num_heads and self.is_plain(call) and not needs_pairs(call)

    def is_plain(self, call):
        """Whether the framework's kernel pools for the call, and what it pools is left as it is."""
        config, attention = self.config, self.attention
        if call.head_gates is not None or not isinstance(attention, DotProductAttention):
            return False
        return not score_options(config) and attention.has_kernel(config.key_dim, config.value_dim, call)

    def pool(self, q, k, v, call):
        """The pooled heads alone, in the layout of the projected ones."""
        if call.plan.lesson:
            return super().pool(q, k, v, call)
        if call.plan.engine.bare:  # as most are: small calls take as long as what is decided for them
            pooled = pool_by_kernel(q, k, v, is_causal=call.plan.engine.ordered, scale=self.attention.scale)
            return pooled, None  # (B, H, Q, dv)
        if call.plan.engine.flexible and (pooled := self.pool_flexibly(q, k, v, call)) is not None:
            return pooled, None  # (B, H, Q, dv) or (B*H, Q, dv)
        if call.plan.engine.flexible:
            q, k, v = (X.flatten(0, -3) for X in (q, k, v))  # (B*H, Q, d), (B*G, K, d), (B*G, K, dv)
            call = by_segments(OPERATIONS, q, k, call)
        call = self.beside_sinks(without_positions(call))
        if q.ndim == 3:
            return self.attention.pool(q, k, v, self.config.num_heads, call), None  # (B*H, Q, dv)
        ordered = call.plan.engine.ordered
        visible = None if ordered else kernel_mask(q[:, 0], k[:, 0], call)  # (B or 1, 1 or H, 1, K)
        scale = self.attention.scale
        pooled = pool_by_kernel(q, k, v, visible, is_causal=ordered, scale=scale)
        return pooled, None  # (B, H, Q, dv)

    def pool_flexibly(self, q, k, v, call):
        """The pooled heads by `flex_attention`, in the layout of the projected ones; None if it cannot be compiled."""
        if not flexible.is_there():  # any more
            return None
        pooling, one = self.attention, q.ndim == 3
        if one:
            B = q.shape[0] // self.config.num_heads
            q, k, v = (X.unflatten(0, (B, -1)) for X in (q, k, v))  # (B, H or G, T, d)
        pooled = flexible.pool_flexibly(q, k, v, self.beside_sinks(call), pooling.scale, pooling.softcap)
        return pooled.flatten(0, 1) if one and pooled is not None else pooled  # (B*H, Q, dv) or (B, H, Q, dv)

    def pool_token(self, q, k, v, call):
        """The pooled heads (B, G, H/G, dv) of a token, q (B, G, H/G, d), in slots k (B, G, S, d), v (B, G, S, dv)."""
        k, v = k[:, :, call.plan.step.used], v[:, :, call.plan.step.used]  # (B, G, used, any)
        return pool_by_kernel(q, k, v, scale=self.attention.scale)  # (B, G, H/G, dv)

    def in_place(self, queries, keys, values, call):
        """Whether the slots of a cache may be written before they are attended to."""
        if torch.compiler.is_compiling():  # where one token is written at a place that is known later
            may = queries.shape[1] == 1 and not call.return_weights and isinstance(self.attention, AttentionPooling)
        else:  # slots that were made in inference mode are written to in it alone
            may = in_place(queries, call) and (torch.is_inference_mode_enabled() or not call.cache.keys.is_inference())
        if not (may and torch.is_grad_enabled()):
            return may
        own = queries, keys, values, *call.differentiable().values(), *self.parameters()
        return not any(X is not None and X.requires_grad for X in own)

    def remember(self, k, v, call):
        """Put new tokens into the slots: in place, or as the lesson does."""
        if call.plan.lesson:
            return super().remember(k, v, call)
        return remember_heads(OPERATIONS, k, v, call) if call.plan.step else remember_token(k, v, call)

    def recall(self, output, weights, call, cache):
        """The results of a call with a cache; in place, no sample has lost what it needs, as far as that is known."""
        if call.plan.lesson:
            return super().recall(output, weights, call, cache)
        if call.plan.step is None:
            output, cache = super().recall(output, weights, call, cache)
        call.cache.use_up(written=True)
        return output, cache

    def merge(self, pooled):
        """The heads side by side, (B, Q, H*dv), of either layout."""
        return super().merge(pooled) if pooled.ndim == 3 else pooled.transpose(1, 2).flatten(2)


def own(flags, beside):
    """NumPy's booleans as this framework's, where another array lies; no device is waited for."""
    return torch.from_numpy(flags).to(beside.device, non_blocking=True)
