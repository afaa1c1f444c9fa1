"""Ports as somebody may write them, right and wrong, each with its mistake in its own words: what a report must say."""

from .elsewhere import ELSEWHERE
from .right import RIGHT
from .written import report_of
from .wrong import KNOWN, UNLISTED

PORTS = *RIGHT, *ELSEWHERE, *KNOWN, *UNLISTED

__all__ = ["PORTS", "report_of"]
