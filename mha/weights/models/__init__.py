"""What the configuration of a model, in a file beside its weights, says of the attention of a layer, and its calls."""

from mha.weights.models.attends import Attends, attends
from mha.weights.models.config import FOLDED, LENGTH, beside, described, options

__all__ = ["FOLDED", "LENGTH", "Attends", "attends", "beside", "described", "options"]
