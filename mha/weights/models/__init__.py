"""Read the options and the calls of attention layers from the configuration of a model, beside its weights.

Source: the configuration and attention classes of transformers 5.23, and their defaults for names that a file lacks;
how layers are called: its models, each with random weights, called with padding.
"""

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
