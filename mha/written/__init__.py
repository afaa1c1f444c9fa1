"""Write a layer as a file of its own: made from the lesson, for one configuration, with its proof beside it."""

from mha.written.checking import check
from mha.written.files import write

__all__ = ["check", "write"]
