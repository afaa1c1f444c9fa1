"""The layer that a call runs: it leaves out the keys that nobody sees, and keeps no attention weights.

Letters as in the chapters. The steps and their order are the lesson's.
"""

import mlx.core as mx

from mha.core.call import call_kind, check_widths
from mha.core.engine import blocks
from mha.core.engine.layer import InParts
from mha.core.engine.scores import InBlocks
from mha.core.engine.visible_range import without_positions
from mha.core.options.config import OF_POOLING, turns_heads

from .. import layer as lesson
from ..arrays import evaluate
from ..hiding import visible_keys
from .operations import OPERATIONS
from .pooling import DotProductAttention, pooling
from .recomputing import behind


class MultiHeadAttention(InParts, lesson.MultiHeadAttention):
    """The lesson's layer; a call that asks for no attention weights keeps none."""

    operations = OPERATIONS
    pooling = staticmethod(pooling)

    def kind(self, queries, keys, values, call):
        """The facts that decide the plan of a call; None if an array is of an unusual class, or a pooling not ours."""
        pooling = self.attention
        if not isinstance(pooling, InBlocks):
            return None
        state = id(self.config), self.training, type(pooling), *map(vars(pooling).get, OF_POOLING), blocks.SCORES
        return call_kind((mx.array,), state, queries, keys, values, call)

    def may_view(self, queries, keys, call):
        """Whether the framework's kernel pools views of the heads, at once and as they are projected."""
        config, pooling = self.config, self.attention
        if turns_heads(config) or call.head_gates is not None or not isinstance(pooling, DotProductAttention):
            return False
        return pooling.is_quick(len(queries) * config.num_heads, queries, keys, call)

    def attend_parts(self, parts, queries, keys, values, call):
        """The output (B, Q, D) of a call, some samples after others, each of which waits for the one before."""
        outputs = []
        for some in parts:
            inputs = behind(outputs[-1:], queries[some]), keys[some], values[some]
            outputs.append(lesson.MultiHeadAttention.attend(self, *inputs, call.part(some)))
        return mx.concatenate(outputs)  # (B, Q, D)

    def project(self, queries, keys, values, call):
        """Heads as the lesson has them; or views (B, H, T, d): to copy heads costs a small call much of its time."""
        if not call.plan.engine.views:
            return super().project(queries, keys, values, call)
        config = self.config
        queries, keys, values, call = self.zero_unused(queries, keys, values, call)
        W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        check_widths(config, W_q, W_k, W_v)
        return *(split(X, config.num_heads if X is W_q else config.num_key_value_heads) for X in (W_q, W_k, W_v)), call

    def recall(self, output, weights, call, cache):
        """The results of a call with a cache, evaluated; for later calls, the slots hold constants."""
        if call.plan.lesson:
            return super().recall(output, weights, call, cache)
        output, cache = super().recall(output, weights, call, cache)
        keys, values, *integers = cache.arrays()
        output, *arrays = evaluate([output, *map(mx.stop_gradient, (keys, values)), *integers])
        return output, cache.after(*arrays).with_state(cache.slot_state())

    def pool(self, q, k, v, call):
        """The pooled heads alone, in the layout of the projected ones."""
        if q.ndim == 3:
            return super().pool(q, k, v, call)  # (B*H, Q, dv)
        call = self.beside_sinks(without_positions(call))
        return self.attention.pool_heads(q, k, v, visible_keys(q[:, 0], k[:, 0], call), call), None  # (B, H, Q, dv)

    def pool_token(self, q, k, v, call):
        """The pooled heads (B, G, H/G, dv) of a token, q (B, G, H/G, d), in slots k (B, G, S, d), v (B, G, S, dv)."""
        used, pooling = call.plan.step.used, self.attention
        if call.plan.sinks is None and isinstance(pooling, DotProductAttention) and pooling.is_plain(call):
            return pooling.pool_token(q, k[:, :, used], v[:, :, used])  # (B, G, H/G, dv)
        return super().pool_token(q, k, v, call)

    def merge(self, pooled):
        """The heads side by side, (B, Q, H*dv), of either layout."""
        if pooled.ndim == 3:
            return super().merge(pooled)
        B, H, Q, dv = pooled.shape
        return pooled.transpose(0, 2, 1, 3).reshape(B, Q, H * dv)  # (B, Q, H*dv)


def split(X, num_heads):
    """The heads of X (B, T, H*d), a view (B, H, T, d)."""
    return X.reshape(*X.shape[:2], num_heads, X.shape[2] // num_heads).transpose(0, 2, 1, 3)  # (B, H, T, d)
