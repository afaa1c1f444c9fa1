"""Write a layer as a file of its own: made from the lesson, for one configuration, with its proof beside it."""

from mha.learn.write.files import check, write

__all__ = ["check", "write"]
