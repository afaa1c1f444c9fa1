"""Ring attention: keys and values go round the devices, in passes, by blocks, with rows in zigzag or not."""

from .blocks import use_flags
from .passes import pool
