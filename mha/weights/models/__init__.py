"""What the configuration of a model, in a file beside its weights, says of the attention of a layer, and its calls."""

from mha.weights.models.call_conventions import Attends, attends
from mha.weights.models.config import FOLDED, LENGTH, beside, data_of, described, options, parsed

__all__ = ["FOLDED", "LENGTH", "Attends", "attends", "beside", "data_of", "described", "options", "parsed"]
