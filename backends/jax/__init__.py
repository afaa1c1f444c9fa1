"""The JAX backend: what `mha` calls, handed on from the files here."""

from .arrays import DTYPES, context, copied, device, is_own, known, place, tensor, to_numpy, value_and_gradient
from .fast import MultiHeadAttention, attend, build, gradients, trace, vjp
from .layer import (
    AdditiveAttention,
    AttentionPooling,
    DotProductAttention,
    get_weights,
    masked_softmax,
    set_weights,
    transpose_output,
    transpose_qkv,
    visible_keys,
    visible_softmax,
)
from .layer import MultiHeadAttention as Lesson
