"""Ports as somebody may write them, right and wrong, each with its mistake in its own words: what a report must say."""

from ..written_ports.described import DESCRIBED
from ..written_ports.elsewhere import ELSEWHERE
from ..written_ports.gradients import GRADIENTS
from ..written_ports.right_calls import RIGHT_CALLS
from ..written_ports.right_parts import RIGHT_PARTS
from ..written_ports.written import Written, made, report_of, run
from ..written_ports.wrong_in_heads import WRONG_IN_HEADS
from ..written_ports.wrong_in_models import WRONG_IN_MODELS
from ..written_ports.wrong_in_scores import WRONG_IN_SCORES
from ..written_ports.wrong_unlisted import WRONG_UNLISTED

PORTS = (
    *RIGHT_CALLS,
    *RIGHT_PARTS,
    *ELSEWHERE,
    *GRADIENTS,
    *DESCRIBED,
    *WRONG_IN_HEADS,
    *WRONG_IN_MODELS,
    *WRONG_IN_SCORES,
    *WRONG_UNLISTED,
)

__all__ = ["PORTS", "Written", "made", "report_of", "run"]
