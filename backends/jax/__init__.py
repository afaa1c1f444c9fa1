"""The JAX backend: what `mha` calls, handed on from the chapters and from the engine.

The chapters, in the order of the book: hiding.py, pooling.py, heads.py, layer.py, gradients.py, weights.py, slots.py,
cache.py.
"""

from .arrays import (
    clone,
    context,
    device,
    is_far,
    is_known,
    is_own,
    place,
    tensor,
    to_numpy,
    value_and_gradients,
    value_of,
)
from .engine.calls import attend, gradients, trace, vjp
from .engine.layer import MultiHeadAttention
from .facts import DTYPES
from .heads import transpose_output, transpose_qkv
from .hiding import masked_softmax, visible_keys, visible_softmax
from .pooling import AdditiveAttention, AttentionPooling, DotProductAttention
from .slots import samples, take
from .weights import build, get_weights, set_weights
