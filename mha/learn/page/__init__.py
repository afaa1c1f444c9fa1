"""The comparison page, one HTML file: the lessons side by side, a player of the steps, and measured differences."""

from mha.learn.page.differences import measure
from mha.learn.page.make import make, worst

__all__ = ["make", "measure", "worst"]
