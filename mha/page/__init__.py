"""The comparison page, one HTML file: the lessons side by side, a player of the steps, and measured differences."""

from mha.page.differences import measure
from mha.page.make import make, worst

__all__ = ["make", "measure", "worst"]
