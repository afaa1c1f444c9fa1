"""NumPy's operations for planning a call."""

import dataclasses

from mha.core.engine.visible_range import NUMPY

from ..heads import repeat_heads
from ..hiding import four_axes, visible_keys

OPERATIONS = dataclasses.replace(NUMPY, visible_keys=visible_keys, repeat_heads=repeat_heads, four_axes=four_axes)
