"""The layer that a call runs: it leaves out the keys that nobody sees, and keeps no attention weights.

Letters as in the chapters. The steps and their order are the lesson's.
"""

from typing import NamedTuple

import mlx.core as mx

from mha.core.call import Plans, call_kind, check_widths
from mha.core.engine import blocks
from mha.core.engine.decoding import attend_token, in_place, is_token, place_inputs, remember_heads
from mha.core.engine.visible_range import by_segments, needs_all, within_reach, without_positions
from mha.core.options.config import OF_POOLING, turns_heads

from .. import layer as lesson
from ..arrays import evaluate
from ..hiding import blank, visible_keys
from .operations import OPERATIONS
from .pooling import AttentionPooling, DotProductAttention, pooling
from .recomputing import behind


class Decisions(NamedTuple):
    """The decisions of a call that are made once.

    whole: whether every query sees a key, and every key is seen; parts: slices of the samples to compute together, None
    = as each call says; views: whether the framework's kernel takes views of the heads.
    """

    whole: bool = False
    parts: list[slice] | None = None
    views: bool = False


class MultiHeadAttention(lesson.MultiHeadAttention):
    """The lesson's layer; a call that asks for no attention weights keeps none."""

    pooling = staticmethod(pooling)

    def __init__(self, config):
        super().__init__(config)
        object.__setattr__(self, "plans", Plans())  # a dict, which a module would take for parameters

    def kind(self, queries, keys, values, call):
        """The facts that decide the plan of a call; None if an array is of an unusual class, or a pooling not ours."""
        pooling = self.attention
        if not isinstance(pooling, AttentionPooling):
            return None
        state = id(self.config), self.training, type(pooling), *map(vars(pooling).get, OF_POOLING), blocks.SCORES
        return call_kind((mx.array,), state, queries, keys, values, call)

    def plan_call(self, queries, keys, call):
        """A checked call with its plan; the lesson computes it if weights are kept, or its pooling was replaced."""
        if call.cache is not None:
            return call
        (B, Q, _), K = queries.shape, keys.shape[1]
        if (
            call.return_weights
            or call.plan.traced
            or 0 in (B, Q, K)
            or not isinstance(self.attention, AttentionPooling)
        ):
            return call.with_plan(lesson=True, engine=Decisions())
        call = by_segments(OPERATIONS, queries, keys, call)
        if type(call.offset) is not int or call.offset != 0:
            return call.with_plan(engine=Decisions())
        parts = blocks.samples(call, (B, self.config.num_heads, Q, K))
        return call.with_plan(engine=Decisions(needs_all(call, Q, K), parts, self.may_view(queries, keys, call)))

    def may_view(self, queries, keys, call):
        """Whether the framework's kernel pools views of the heads, at once and as they are projected."""
        config, pooling = self.config, self.attention
        if turns_heads(config) or call.head_gates is not None or not isinstance(pooling, DotProductAttention):
            return False
        return pooling.is_quick(len(queries) * config.num_heads, queries, keys, call)

    def attend(self, queries, keys, values, call):
        """Take the steps for some samples after others, as many as fit a cache at once."""
        if call.cache is not None:
            if not in_place(queries, call):
                return super().attend(queries, keys, values, call.with_plan(lesson=True))
            if is_token(queries, call) and isinstance(self.attention, AttentionPooling):
                return evaluate_results(*attend_token(OPERATIONS, self, queries, keys, values, call))
            return super().attend(queries, keys, values, call.with_plan(engine=Decisions()))
        if call.plan.engine is None or call.plan.traced:
            call = self.plan_call(queries, keys, call)
        if call.plan.lesson:
            return super().attend(queries, keys, values, call)
        sizes = queries.shape[0], self.config.num_heads, queries.shape[1], keys.shape[1]
        parts = call.plan.engine.parts or blocks.samples(call, sizes)
        if len(parts) == 1:
            return super().attend(queries, keys, values, call)
        each = zip(parts, *([X[some] for some in parts] for X in (queries, keys, values)), strict=True)
        outputs = []
        for some, queries, *others in each:
            inputs = behind(outputs[-1:], queries), *others
            outputs.append(super().attend(*inputs, call.part(some)))
        return mx.concatenate(outputs)  # (B, Q, D)

    def project(self, queries, keys, values, call):
        """Heads as the lesson has them; or views (B, H, T, d): to copy heads costs a small call much of its time."""
        if call.plan.engine is None or not call.plan.engine.views:
            return super().project(queries, keys, values, call)
        config = self.config
        queries, keys, values, call = self.zero_unused(queries, keys, values, call)
        W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        check_widths(config, W_q, W_k, W_v)
        return *(split(X, config.num_heads if X is W_q else config.num_key_value_heads) for X in (W_q, W_k, W_v)), call

    def zero_unused(self, queries, keys, values, call):
        """The queries, and the keys and values in reach, with zeros where they are not used; and the call of these."""
        if call.plan.lesson:
            return super().zero_unused(queries, keys, values, call)
        if call.cache is not None:
            return place_inputs(OPERATIONS, queries, keys, values, call)
        if call.plan.engine.whole:
            return queries, keys, values, call
        return within_reach(OPERATIONS, blank, queries, keys, values, call, self.config.temperature is None)

    def remember(self, k, v, call):
        """Put new tokens into the slots: in place, or as the lesson does."""
        return super().remember(k, v, call) if call.plan.lesson else remember_heads(OPERATIONS, k, v, call)

    def recall(self, output, weights, call, cache):
        """The results of a call with a cache; of those in place, no sample has lost what it needs."""
        if call.plan.lesson:
            return super().recall(output, weights, call, cache)
        call.cache.use_up()
        return evaluate_results(output, cache)

    def pool(self, q, k, v, call):
        """The pooled heads (B*H, Q, dv) alone."""
        if call.plan.lesson:
            return super().pool(q, k, v, call)
        call = self.beside_sinks(without_positions(call))
        if q.ndim == 4:
            return self.attention.pool_heads(q, k, v, visible_keys(q[:, 0], k[:, 0], call), call), None  # (B, H, Q, dv)
        return self.attention.pool(q, k, v, self.config.num_heads, call), None  # (B*H, Q, dv)

    def pool_token(self, q, k, v, call):
        """The pooled heads (B, G, H/G, dv) of a token, q (B, G, H/G, d), in slots k (B, G, S, d), v (B, G, S, dv)."""
        k, v = k[:, :, call.plan.step.used], v[:, :, call.plan.step.used]  # (B, G, used, any)
        pooling = self.attention
        if call.plan.sinks is None and isinstance(pooling, DotProductAttention) and pooling.is_plain(call):
            return pooling.pool_token(q, k, v)  # (B, G, H/G, dv)
        q, k, v = (OPERATIONS.merged(X) for X in (q, k, v))  # (B*G, any, d)
        return pooling.weigh(q, k, v, training=call.training, sinks=call.plan.sinks)[0]  # (B*G, H/G, dv)

    def merge(self, pooled):
        """The heads side by side, (B, Q, H*dv), of either layout."""
        if pooled.ndim == 3:
            return super().merge(pooled)
        B, H, Q, dv = pooled.shape
        return pooled.transpose(0, 2, 1, 3).reshape(B, Q, H * dv)  # (B, Q, H*dv)


def evaluate_results(output, cache):
    """Evaluate the output of a call and the cache after it; for later calls, the slots hold constants."""
    keys, values, *integers = cache.arrays()
    output, *arrays = evaluate([output, *map(mx.stop_gradient, (keys, values)), *integers])
    return output, cache.after(*arrays).with_state(cache.slot_state())


def split(X, num_heads):
    """The heads of X (B, T, H*d), a view (B, H, T, d)."""
    return X.reshape(*X.shape[:2], num_heads, X.shape[2] // num_heads).transpose(0, 2, 1, 3)  # (B, H, T, d)
