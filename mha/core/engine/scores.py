"""The scores of a call: whether an engine has to compute them, and how a block of them is pooled."""

from collections.abc import Collection
from typing import Any

from mha.core.call import Call, note_kernel
from mha.core.engine.operations import Operations
from mha.core.engine.visible_range import pairs_by_group
from mha.core.options.config import OF_SCORES


def needs_scores(pooling: Any, call: Call, training: Any, known: Collection[str] = ()) -> bool:
    """Whether a kernel that keeps no scores cannot compute a call of this pooling, which is of dot products.

    training: whether weights are dropped; known: the options that the kernel of a framework knows.
    """
    if training and pooling.dropout:
        return True
    own, plan = vars(pooling), call.plan
    return any(own.get(name, getattr(plan, name, None)) is not None for name in OF_SCORES if name not in known)


class InBlocks:
    """The methods of an engine's pooling that are the same on each framework; it comes before the lesson's class.

    A backend's own method `pool` keeps no weights: blocks of queries follow each other, and are computed once more for
    their gradients, so that scores take the memory of one block. A block leaves out the keys that order and window hide
    from all of it.

    has_features: whether a score takes several numbers, one for each component of a head.
    """

    has_features = False
    operations: Operations

    def pool_block(self: Any, queries: Any, keys: Any, values: Any, num_heads: int, call: Call) -> Any:
        """The pooled values of the queries of one block; arguments as of `pool`."""
        note_kernel("products")
        visible, score_bias, sinks = pairs_by_group(self.operations, queries, keys, num_heads, call)
        (BH, Q, d), BG = queries.shape, keys.shape[0]
        folded = queries.reshape(BG, BH // BG * Q, d)  # (B*G, H/G*Q, d)
        pooled, _ = self.weigh(folded, keys, values, visible, score_bias, call.training, sinks)  # (B*G, H/G*Q, dv)
        return pooled.reshape(BH, Q, values.shape[2])  # (B*H, Q, dv)

    def scores_of_pair(self, queries: Any) -> Any:
        """How many numbers the scores of one query and one key take, over all heads, of queries (..., heads, Q, d)."""
        return queries.shape[-3] * (queries.shape[-1] if self.has_features else 1)
