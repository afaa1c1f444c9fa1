"""MLX's operations for planning a call."""

import dataclasses

import mlx.core as mx

from mha.core.engine.visible_range import NUMPY

from ..arrays import tensor
from ..heads import repeat_heads
from ..hiding import four_axes, signed, visible_keys, where

OPERATIONS = dataclasses.replace(
    NUMPY,
    any=mx.any,
    min=mx.min,
    max=mx.max,
    minimum=mx.minimum,
    maximum=mx.maximum,
    where=where,
    broadcast_to=mx.broadcast_to,
    reshape=mx.reshape,
    arange=lambda size, like: mx.arange(size, dtype=mx.int64),
    tensor=lambda array, like: tensor(array),
    zeros=lambda shape, like: mx.zeros(shape, like.dtype),
    signed=signed,
    visible_keys=visible_keys,
    repeat_heads=repeat_heads,
    four_axes=four_axes,
    index=tensor,
    merged=lambda X: X.reshape(X.shape[0] * X.shape[1], *X.shape[2:]),  # (B*G, T, d); an empty array takes no -1
)
