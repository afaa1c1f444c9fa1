"""A call of a layer: its arguments, each declared once, and their check."""

from mha.core.call import inputs as inputs
from mha.core.call import prepare as prepare
from mha.core.call.check import check, known, native, of_output, whole_heads
from mha.core.call.declaration import (
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
from mha.core.call.memo import Plans, kind_of
from mha.core.call.signatures import call_of, given_call, spelled, takes_call
from mha.core.call.tracing import keep, keeping

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
