"""The layer that a call runs: it leaves out the keys that nobody sees, and keeps no attention weights.

Letters as in the chapters. The steps and their order are the lesson's.
"""

import numpy as np

from mha.core.engine.layer import InParts

from .. import layer as lesson
from .operations import OPERATIONS
from .pooling import pooling


class MultiHeadAttention(InParts, lesson.MultiHeadAttention):
    """The lesson's layer; a call that asks for no attention weights keeps none."""

    operations, types = OPERATIONS, (np.ndarray,)
    pooling = staticmethod(pooling)

    def attend_parts(self, parts, queries, keys, values, call):
        """The output (B, Q, D) of a call, some samples after others."""
        each = ((queries[own], keys[own], values[own], call.part(own)) for own in parts)
        return np.concatenate([lesson.MultiHeadAttention.attend(self, *one) for one in each])  # (B, Q, D)
