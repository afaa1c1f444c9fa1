"""A call of a layer: its arguments, each declared once, and their check."""

from mha.call import given, inputs
from mha.call.check import check, known, native, of_output, whole_heads
from mha.call.declaration import (
    ALL,
    ARGUMENTS,
    ARRAYS,
    FLOATS,
    GIVEN,
    OF_PAIRS,
    PACKED,
    PLACES,
    ROWS,
    Arguments,
    Call,
    Plan,
    axes_of,
)
from mha.call.keeping import keep, keeping
from mha.call.plans import Plans, kind_of
from mha.call.taking import call_of, given_call, spelled, takes_call

__all__ = [
    "ALL",
    "ARGUMENTS",
    "ARRAYS",
    "FLOATS",
    "GIVEN",
    "OF_PAIRS",
    "PACKED",
    "PLACES",
    "ROWS",
    "Arguments",
    "Call",
    "Plan",
    "Plans",
    "axes_of",
    "call_of",
    "check",
    "given",
    "given_call",
    "inputs",
    "keep",
    "keeping",
    "kind_of",
    "known",
    "native",
    "of_output",
    "spelled",
    "takes_call",
    "whole_heads",
]
