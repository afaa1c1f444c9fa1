"""MXNet's operations for planning a call: for pairs alone, as the values of lengths and offsets are always known."""

import dataclasses

from mxnet import np

from mha.engine.reach import NUMPY

from ..heads import repeat_heads
from ..hiding import four_axes, visible_keys

OPERATIONS = dataclasses.replace(
    NUMPY,
    any=np.any,
    broadcast_to=np.broadcast_to,
    reshape=np.reshape,
    visible_keys=visible_keys,
    repeat_heads=repeat_heads,
    four_axes=four_axes,
)
