"""Read the options and the calls of attention layers from the configuration of a model, beside its weights."""

from mha.weights.models.call_conventions import CallConvention, convention_of
from mha.weights.models.config import LENGTH, beside, options, options_in, parse_model, read_bytes
from mha.weights.models.joining import join_options

__all__ = [
    "LENGTH",
    "CallConvention",
    "beside",
    "convention_of",
    "join_options",
    "options",
    "options_in",
    "parse_model",
    "read_bytes",
]
