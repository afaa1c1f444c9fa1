"""The layer that the engines of NumPy, MLX and MXNet share: it computes some samples after others."""

from typing import Any, NamedTuple

from mha.core.call import ALL, Call, Plans, call_kind, record_step
from mha.core.engine import blocks
from mha.core.engine.decoding import attend_token, in_place, is_token, place_inputs, remember_heads
from mha.core.engine.operations import Operations
from mha.core.engine.scores import InBlocks
from mha.core.engine.visible_range import (
    by_segments,
    narrow,
    needs_all,
    usage,
    usage_if_known,
    uses_all,
    without_positions,
    zero_out,
)


class Decisions(NamedTuple):
    """The decisions for a call that are made once.

    whole: whether every query sees a key, and every key is seen.
    parts: slices of the samples to compute together; None = as each call says.
    views: whether the framework's kernel takes views of the heads.
    """

    whole: bool = False
    parts: list[slice] | None = None
    views: bool = False


_Lesson: Any = object  # the lesson's class, which comes after this one


class InParts(_Lesson):
    """The methods of an engine's layer that are the same on several frameworks; it comes before the lesson's class.

    It leaves out the keys that nobody sees, keeps no attention weights, and computes some samples after others, which
    `attend_parts(parts, queries, keys, values, call)` of an engine puts together.

    operations: of the backend; types: the classes of arrays whose calls are planned.
    """

    operations: Operations
    types: tuple[type, ...]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        object.__setattr__(self, "plans", Plans())  # a dict, which a framework would take for a part of the layer

    def kind(self, queries: Any, keys: Any, values: Any, call: Call) -> Any:
        """The facts that decide the plan of a call; None if an array is of an unusual class."""
        state = id(self.config), type(self.attention), blocks.SCORES
        return call_kind(self.types, state, queries, keys, values, call)

    def plan_call(self, queries: Any, keys: Any, call: Call) -> Call:
        """A checked call with its plan; the lesson computes it if weights are kept, or its pooling was replaced."""
        if call.cache is not None:
            return call
        (B, Q, _), K = queries.shape, keys.shape[1]
        if call.return_weights or call.plan.traced or 0 in (B, Q, K) or not isinstance(self.attention, InBlocks):
            return call.with_plan(lesson=True, engine=Decisions())
        call = by_segments(self.operations, queries, keys, call)
        if type(call.offset) is not int or call.offset != 0:
            return call.with_plan(engine=Decisions())
        parts = blocks.samples(call, (B, self.config.num_heads, Q, K))
        return call.with_plan(engine=Decisions(needs_all(call, Q, K), parts, self.may_view(queries, keys, call)))

    def may_view(self, queries: Any, keys: Any, call: Call) -> bool:
        """Whether the framework's kernel pools views of the heads, at once and as they are projected."""
        return False

    def parts(self, queries: Any, keys: Any, call: Call) -> list[slice]:
        """Slices of the samples of a call to compute together."""
        call = self.plan_call(queries, keys, call) if call.plan.engine is None else call
        if call.plan.lesson:
            return [ALL]
        sizes = queries.shape[0], self.config.num_heads, queries.shape[1], keys.shape[1]
        return call.plan.engine.parts or blocks.samples(call, sizes)

    def attend(self, queries: Any, keys: Any, values: Any, call: Call) -> Any:
        """Take the steps for some samples after others, as many as fit a cache at once."""
        if call.cache is not None:
            own = isinstance(self.attention, InBlocks) and not call.plan.traced
            if not (own and self.in_place(queries, keys, values, call)):
                return super().attend(queries, keys, values, call.with_plan(lesson=True, engine=Decisions()))
            if is_token(queries, call):
                return attend_token(self.operations, self, queries, keys, values, call)
            return super().attend(queries, keys, values, call.with_plan(engine=Decisions()))
        if call.plan.engine is None or call.plan.traced:
            call = self.plan_call(queries, keys, call)
        parts = self.parts(queries, keys, call)
        if len(parts) == 1:
            return super().attend(queries, keys, values, call)
        return self.attend_parts(parts, queries, keys, values, call)

    def in_place(self, queries: Any, keys: Any, values: Any, call: Call) -> bool:
        """Whether the slots of a cache may be written before they are attended to."""
        return in_place(queries, call)

    def zero_unused(self, queries: Any, keys: Any, values: Any, call: Call) -> Any:
        """The queries, and the keys and values in reach, with zeros where they are not used; and the call of these."""
        if call.plan.lesson:
            return super().zero_unused(queries, keys, values, call)
        if call.cache is not None:
            return place_inputs(self.operations, queries, keys, values, call)
        if not call.plan.engine.whole:
            Q, K = queries.shape[1], keys.shape[1]
            seen, call = narrow(call, Q, K, self.config.temperature is None)
            if record_step("seen", seen) != slice(0, K):  # to slice may be to copy
                keys, values, K = keys[:, seen], values[:, seen], seen.stop - seen.start
            if not uses_all(call, Q, K):
                flags = usage_if_known(call, Q, K) or usage(self.operations, queries, keys, call)
                queries, keys, values = zero_out(self.operations, queries, keys, values, *flags)
        return record_step("inputs", (queries, keys, values, call))

    def remember(self, k: Any, v: Any, call: Call) -> Any:
        """Put new tokens into the slots: in place, or as the lesson does."""
        return super().remember(k, v, call) if call.plan.lesson else remember_heads(self.operations, k, v, call)

    def recall(self, output: Any, weights: Any, call: Call, cache: Any) -> Any:
        """The results of a call with a cache; of those in place, no sample has lost what it needs."""
        if call.plan.lesson:
            return super().recall(output, weights, call, cache)
        call.cache.use_up(written=True)
        return output, cache

    def pool(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        """The pooled heads (B*H, Q, dv) alone."""
        if call.plan.lesson:
            return super().pool(q, k, v, call)
        call = self.beside_sinks(without_positions(call))
        return self.attention.pool(q, k, v, self.config.num_heads, call), None  # (B*H, Q, dv)

    def pool_token(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        """The pooled heads (B*G, H/G, dv) of a token, q (B, G, H/G, d), in slots k (B, G, S, d), v (B, G, S, dv)."""
        used = call.plan.step.used
        if used != slice(0, k.shape[2]):  # to slice may be to copy
            k, v = k[:, :, used], v[:, :, used]  # (B, G, used, any)
        q, k, v = (self.operations.merged(X) for X in (q, k, v))  # (B*G, any, d)
        return self.attention.weigh(q, k, v, training=call.training, sinks=call.plan.sinks)[0]  # (B*G, H/G, dv)
