"""MXNet's operations for planning a call: for pairs alone, as the values of lengths and offsets are always known."""

import dataclasses

from mxnet import np

from mha.core.engine.visible_range import NUMPY

from ..arrays import tensor
from ..heads import repeat_heads
from ..hiding import four_axes, visible_keys, where

OPERATIONS = dataclasses.replace(
    NUMPY,
    any=np.any,
    where=where,
    arange=lambda size, like: np.arange(size, dtype="int64"),
    tensor=lambda array, like: tensor(array),
    merged=lambda X: X.as_nd_ndarray().reshape((-1, *X.shape[2:])).as_np_ndarray(),  # (B*G, T, d); that of np copies
    zeros=lambda shape, like: np.zeros(shape, dtype=like.dtype),
    broadcast_to=np.broadcast_to,
    reshape=np.reshape,
    visible_keys=visible_keys,
    repeat_heads=repeat_heads,
    four_axes=four_axes,
)
