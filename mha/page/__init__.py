"""The comparison page: five lessons side by side, a step player, and what was measured, in one file for browsers."""

from mha.page.differences import measure
from mha.page.make import make, worst

__all__ = ["make", "measure", "worst"]
