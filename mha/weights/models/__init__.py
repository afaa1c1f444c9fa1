"""What the configuration of a model, in a file beside its weights, says of the attention of a layer."""

from mha.weights.models.config import FOLDED, LENGTH, beside, described, options

__all__ = ["FOLDED", "LENGTH", "beside", "described", "options"]
