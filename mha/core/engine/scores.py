"""Whether a call needs its scores, which a framework's fused kernel does not keep: one question for all engines."""

from collections.abc import Collection
from typing import Any

from mha.core.call import Call
from mha.core.options.config import OF_POOLING, OF_SCORES


def needs_scores(pooling: Any, call: Call, training: Any, known: Collection[str] = ()) -> bool:
    """Whether a kernel that keeps no scores cannot compute a call of this pooling, which is of dot products.

    training: whether weights are dropped; known: the options that the kernel of a framework knows.
    """
    if training and pooling.dropout:
        return True
    own, plan = vars(pooling), call.plan
    return any(own.get(name, getattr(plan, name, None)) is not None for name in OF_SCORES if name not in known)


def options_of(pooling: Any) -> tuple[Any, ...]:
    """The values of the options that a pooling keeps, None for those that it lacks: they decide how it computes."""
    return tuple(map(vars(pooling).get, OF_POOLING))
