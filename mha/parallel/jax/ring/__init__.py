"""Keys and values that go round the devices: the passes, the blocks of each step, and rows in zigzag."""

from .blocks import used_by_blocks
from .passes import pool
from .tokens import as_numbers
