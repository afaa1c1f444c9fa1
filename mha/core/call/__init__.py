"""A call of a layer: its arguments, each declared once, and their check."""

from mha.core.call import inputs as inputs
from mha.core.call import prepare as prepare
from mha.core.call.check import check, check_cotangent, check_widths, numpy_if_known, to_backend
from mha.core.call.declaration import (
    ALL,
    ARGUMENTS,
    ARRAYS,
    FLOATS,
    GIVEN,
    OF_PAIRS,
    OF_TOKENS,
    PACKED,
    PLACES,
    ROWS,
    Arguments,
    Call,
    Plan,
    axes_of,
)
from mha.core.call.memo import Plans, call_kind
from mha.core.call.signatures import bind_call, call_of, spell_out, takes_call
from mha.core.call.tracing import note_kernel, note_kernels, record_step, record_steps, recorder, trace_call

__all__ = [
    "ALL",
    "ARGUMENTS",
    "ARRAYS",
    "FLOATS",
    "GIVEN",
    "OF_PAIRS",
    "OF_TOKENS",
    "PACKED",
    "PLACES",
    "ROWS",
    "Arguments",
    "Call",
    "Plan",
    "Plans",
    "axes_of",
    "bind_call",
    "call_kind",
    "call_of",
    "check",
    "check_cotangent",
    "check_widths",
    "inputs",
    "note_kernel",
    "note_kernels",
    "numpy_if_known",
    "record_step",
    "record_steps",
    "recorder",
    "spell_out",
    "takes_call",
    "to_backend",
    "trace_call",
]
