"""The NumPy backend: what `mha` calls, handed on from the files here."""

from .arrays import DTYPES, context, copied, device, is_own, known, place, tensor, to_numpy, value_and_gradient
from .backward import MultiHeadAttention as Lesson
from .fast import MultiHeadAttention, build
from .layer import (
    AdditiveAttention,
    AttentionPooling,
    DotProductAttention,
    attend,
    get_weights,
    gradients,
    masked_softmax,
    set_weights,
    trace,
    transpose_output,
    transpose_qkv,
    visible_keys,
    visible_softmax,
    vjp,
)
