"""The layer that a call runs: it leaves out the keys that nobody sees, and keeps no attention weights.

Letters as in the chapters. The steps and their order are the lesson's.
"""

import numpy as np

from mha.core.call import ALL, Plans, call_kind, record_step
from mha.core.engine import blocks
from mha.core.engine.decoding import attend_token, in_place, is_token, place_inputs, remember_heads
from mha.core.engine.visible_range import by_segments, narrow, usage, usage_if_known, uses_all, without_positions

from .. import layer as lesson
from ..hiding import blank
from .operations import OPERATIONS
from .pooling import AttentionPooling, pooling


class MultiHeadAttention(lesson.MultiHeadAttention):
    """The lesson's layer; a call that asks for no attention weights keeps none."""

    pooling = staticmethod(pooling)

    def __init__(self, config):
        super().__init__(config)
        self.plans = Plans()

    def kind(self, queries, keys, values, call):
        """The facts that decide whether a call fits; None if an array is of an unusual class."""
        return call_kind((np.ndarray,), (id(self.config),), queries, keys, values, call)

    def plan_call(self, queries, keys, call):
        """A checked call: each decides anew how it is computed."""
        return call

    def attend(self, queries, keys, values, call):
        """Take the steps for some samples after others, as many as fit a cache at once."""
        if self.in_lesson(queries, keys, call):
            return super().attend(queries, keys, values, call.with_plan(lesson=True))
        if call.cache is not None:
            if is_token(queries, call):
                return attend_token(OPERATIONS, self, queries, keys, values, call)
            return super().attend(queries, keys, values, call)
        call = by_segments(OPERATIONS, queries, keys, call)
        parts = self.parts(queries, keys, call)
        outputs = [super(MultiHeadAttention, self).attend(*one) for one in cut(parts, queries, keys, values, call)]
        return np.concatenate(outputs) if len(outputs) > 1 else outputs[0]  # (B, Q, D)

    def in_lesson(self, queries, keys, call):
        """Whether the lesson computes a call: it keeps the weights, an array is empty, the pooling was replaced."""
        if call.return_weights or call.plan.traced or (call.cache is not None and not in_place(queries, call)):
            return True
        empty = call.cache is None and 0 in (*queries.shape[:2], keys.shape[1])
        return empty or not isinstance(self.attention, AttentionPooling)

    def parts(self, queries, keys, call):
        """Slices of the samples to compute together."""
        if self.in_lesson(queries, keys, call):
            return [ALL]
        return blocks.samples(call, (queries.shape[0], self.config.num_heads, queries.shape[1], keys.shape[1]))

    def zero_unused(self, queries, keys, values, call):
        """The queries, and the keys and values in reach, with zeros where they are not used; and the call of these."""
        if call.plan.lesson:
            return super().zero_unused(queries, keys, values, call)
        if call.cache is not None:
            return place_inputs(OPERATIONS, queries, keys, values, call)
        seen, call = narrow(call, queries.shape[1], keys.shape[1], self.config.temperature is None)
        keys, values = keys[:, record_step("seen", seen)], values[:, seen]
        if not uses_all(call, queries.shape[1], keys.shape[1]):
            found = usage_if_known(call, queries.shape[1], keys.shape[1]) or usage(OPERATIONS, queries, keys, call)
            queries, keys, values = blank(queries, keys, values, *found)
        return record_step("inputs", (queries, keys, values, call))

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
        q, k, v = (
            OPERATIONS.merged(X) for X in (q, k[:, :, call.plan.step.used], v[:, :, call.plan.step.used])
        )  # (B*G, any, d)
        return self.attention.weigh(q, k, v, training=call.training, sinks=call.plan.sinks)[0]  # (B*G, H/G, dv)


def cut(parts, queries, keys, values, call):
    """The arguments of `attend` for each slice of the samples."""
    return [(queries[own], keys[own], values[own], call.part(own)) for own in parts]
