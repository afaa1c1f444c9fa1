"""The layer that a call runs: it leaves out the keys that nobody sees, and keeps no attention weights.

Letters as in the chapters. The steps and their order are the lesson's.
"""

from mxnet import autograd, np

from mha.core.engine.layer import InParts

from .. import layer as lesson
from ..hiding import four_axes
from .operations import OPERATIONS
from .pooling import pooling


class MultiHeadAttention(InParts, lesson.MultiHeadAttention):
    """The lesson's layer; a call that asks for no attention weights keeps none."""

    __slots__ = ("plans",)  # in a dict of an instance Gluon searches for blocks, while another thread may add a plan

    operations, types = OPERATIONS, (np.ndarray,)
    pooling = staticmethod(pooling)

    def in_place(self, queries, keys, values, call):
        """Whether the slots of a cache may be written before they are attended to: not for gradients."""
        return not autograd.is_recording() and super().in_place(queries, keys, values, call)

    def attend_parts(self, parts, queries, keys, values, call):
        """The output (B, Q, D) of a call, some samples after others."""
        score_bias = None if call.score_bias is None else four_axes(call.score_bias)
        each, rest = (split(X, parts) for X in (queries, keys, values, score_bias)), call._replace(score_bias=None)
        outputs = [
            lesson.MultiHeadAttention.attend(self, *inputs, rest.part(some)._replace(score_bias=score_bias))
            for some, *inputs, score_bias in zip(parts, *each, strict=True)
        ]
        return np.concatenate(outputs)  # (B, Q, D)

    def pool_token(self, q, k, v, call):
        """The pooled heads (B*G, H/G, dv) of a token, q (B, G, H/G, d), in slots k (B, G, S, d), v (B, G, S, dv)."""
        used, S = call.plan.step.used, k.shape[2]
        if self.config.pooling != "dot" or not (used.start == 0 and used.stop < S < 2 * used.stop):
            return super().pool_token(q, k, v, call)
        q, k, v = (OPERATIONS.merged(X) for X in (q, k, v))  # (B*G, any, d); to slice is to copy here
        return self.attention.pool_first(q, k, v, used, call)  # (B*G, H/G, dv)


def split(X, parts):
    """X, or None, for each part of the samples, at once: a slice's gradient is as large as what it is cut from."""
    if X is None or X.shape[0] == 1:
        return [X] * len(parts)
    return np.split(X, tuple(part.start for part in parts[1:]))
