"""The layer that a call runs: it leaves out the keys that nobody sees, and keeps no attention weights.

Letters as in the chapters. The steps and their order are the lesson's.
"""

from typing import NamedTuple

from mxnet import autograd, np

from mha.core.call import Plans, call_kind
from mha.core.engine import blocks
from mha.core.engine.decoding import attend_token, in_place, is_token, place_inputs, remember_heads
from mha.core.engine.visible_range import by_segments, needs_all, within_reach, without_positions

from .. import layer as lesson
from ..hiding import blank, four_axes
from .operations import OPERATIONS
from .pooling import AttentionPooling, pooling


class Decisions(NamedTuple):
    """The decisions of a call that are made once.

    whole: whether every query sees a key, and every key is seen; parts: slices of the samples to compute together, None
    = as each call says.
    """

    whole: bool = False
    parts: list[slice] | None = None


class MultiHeadAttention(lesson.MultiHeadAttention):
    """The lesson's layer; a call that asks for no attention weights keeps none."""

    __slots__ = ("plans",)  # in a dict of an instance Gluon searches for blocks, while another thread may add a plan

    pooling = staticmethod(pooling)

    def __init__(self, config):
        super().__init__(config)
        self.plans = Plans()

    def kind(self, queries, keys, values, call):
        """The facts that decide the plan of a call; None if an array is of an unusual class."""
        return call_kind(
            (np.ndarray,), (id(self.config), type(self.attention), blocks.SCORES), queries, keys, values, call
        )

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
        whole = needs_all(call, Q, K)
        return call.with_plan(engine=Decisions(whole, blocks.samples(call, (B, self.config.num_heads, Q, K))))

    def attend(self, queries, keys, values, call):
        """Take the steps for some samples after others, as many as fit a cache at once."""
        if call.cache is not None:
            if autograd.is_recording() or not in_place(queries, call):
                return super().attend(queries, keys, values, call.with_plan(lesson=True))
            if is_token(queries, call) and isinstance(self.attention, AttentionPooling):
                return attend_token(OPERATIONS, self, queries, keys, values, call)
            return super().attend(queries, keys, values, call.with_plan(engine=Decisions()))
        if call.plan.engine is None or call.plan.traced:
            call = self.plan_call(queries, keys, call)
        if call.plan.lesson:
            return super().attend(queries, keys, values, call)
        sizes = queries.shape[0], self.config.num_heads, queries.shape[1], keys.shape[1]
        parts = call.plan.engine.parts or blocks.samples(call, sizes)
        if len(parts) == 1:
            return super().attend(queries, keys, values, call)
        score_bias = None if call.score_bias is None else four_axes(call.score_bias)
        each, rest = (split(X, parts) for X in (queries, keys, values, score_bias)), call._replace(score_bias=None)
        outputs = [
            super(MultiHeadAttention, self).attend(*inputs, rest.part(some)._replace(score_bias=score_bias))
            for some, *inputs, score_bias in zip(parts, *each, strict=True)
        ]
        return np.concatenate(outputs)  # (B, Q, D)

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
        return output, cache

    def pool(self, q, k, v, call):
        """The pooled heads (B*H, Q, dv) alone."""
        if call.plan.lesson:
            return super().pool(q, k, v, call)
        call = self.beside_sinks(without_positions(call))
        return self.attention.pool(q, k, v, self.config.num_heads, call), None  # (B*H, Q, dv)

    def pool_token(self, q, k, v, call):
        """The pooled heads (B*G, H/G, dv) of a token, q (B, G, H/G, d), in slots k (B, G, S, d), v (B, G, S, dv)."""
        used, S = call.plan.step.used, k.shape[2]
        first = used.start == 0 and used.stop < S < 2 * used.stop and self.config.pooling == "dot"
        if not first and used != slice(0, S):
            k, v = k[:, :, used], v[:, :, used]  # (B, G, used, any)
        q, k, v = (OPERATIONS.merged(X) for X in (q, k, v))  # (B*G, any, d)
        if first:  # to slice is to copy here
            return self.attention.pool_first(q, k, v, used, call)  # (B*G, H/G, dv)
        return self.attention.weigh(q, k, v, training=call.training, sinks=call.plan.sinks)[0]  # (B*G, H/G, dv)


def split(X, parts):
    """X, or None, for each part of the samples, at once: a slice's gradient is as large as what it is cut from."""
    if X is None or X.shape[0] == 1:
        return [X] * len(parts)
    return np.split(X, tuple(part.start for part in parts[1:]))
