"""Read the options and the calls of attention layers from the configuration of a model, beside its weights."""

from mha.weights.models.call_conventions import Attends, attends
from mha.weights.models.config import FOLDED, LENGTH, beside, data_of, described, options, parsed

__all__ = ["FOLDED", "LENGTH", "Attends", "attends", "beside", "data_of", "described", "options", "parsed"]
