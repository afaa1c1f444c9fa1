"""Read the options and the calls of attention layers from the configuration of a model, beside its weights."""

from mha.weights.models.call_conventions import CallConvention, convention_of
from mha.weights.models.config import FOLDED, LENGTH, beside, options, options_in, parse_model, read_bytes

__all__ = [
    "FOLDED",
    "LENGTH",
    "CallConvention",
    "beside",
    "convention_of",
    "options",
    "options_in",
    "parse_model",
    "read_bytes",
]
