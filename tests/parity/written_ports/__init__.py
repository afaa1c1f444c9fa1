"""Ports as somebody may write them, right and wrong, each with its mistake in its own words: what a report must say."""

from .described import DESCRIBED
from .elsewhere import ELSEWHERE
from .gradients import GRADIENTS
from .right_calls import RIGHT_CALLS
from .right_parts import RIGHT_PARTS
from .written import Written, made, report_of, run
from .wrong_in_models import WRONG_IN_MODELS
from .wrong_in_scores import WRONG_IN_SCORES
from .wrong_unlisted import WRONG_UNLISTED

PORTS = (
    *RIGHT_CALLS,
    *RIGHT_PARTS,
    *ELSEWHERE,
    *GRADIENTS,
    *DESCRIBED,
    *WRONG_IN_MODELS,
    *WRONG_IN_SCORES,
    *WRONG_UNLISTED,
)

__all__ = ["PORTS", "Written", "made", "report_of", "run"]
