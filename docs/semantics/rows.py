"""All tables, in the order of the page."""

from semantics import rows_of_arguments as arguments
from semantics import rows_of_numbers as numbers

TABLES = (
    numbers.COMPUTED,
    numbers.NO_KEYS,
    numbers.PADDING,
    numbers.DROPOUT,
    arguments.CONSTRUCTION,
    arguments.SHAPES,
    arguments.DTYPES,
    arguments.LENGTHS_GIVEN,
    arguments.MASKS_GIVEN,
    numbers.EMPTY,
    numbers.COMPILED,
)
