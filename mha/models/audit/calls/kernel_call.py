"""The call of an attention kernel: what entered it, in the words of `parity.compare_kernel`, and what left it.

Letters: B samples, H heads of queries, G of keys and values, T tokens (Q queries, K keys), d width of a head.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from mha import arrays
from mha.core import dispatch
from mha.core.options import checks
from mha.models.audit.calls.model_calls import ModelCall
from mha.parity.diagnosis.compare.kernels import report_on_kernel
from mha.parity.diagnosis.compare.report import Report
from mha.parity.rule.kernel_call import kernel_problem
from mha.parity.rule.rules import UNIT

LOW = -1e4  # a number below it, added to scores, hides
INPUTS = ("q", "k", "v")
Read = Callable[[], dict[str, Any]]  # reads the arguments of a call, in these words; raises ValueError if it cannot


@dataclasses.dataclass
class KernelCall:
    """A call of a kernel; its arrays are copies, in NumPy."""

    function: str
    path: str  # of the module that calls it
    model: ModelCall  # the call of the model
    given: dict[str, Any] = dataclasses.field(default_factory=dict)  # its arguments
    reason: str = ""  # why they are not known, "" if they are
    kind: Any = None  # of the layer: of two of the same kind, masks are expected to be the same

    def read(self, read: Read) -> None:
        """Read the arguments."""
        try:
            self.given = {name: copied(X) for name, X in read().items() if X is not None}
        except Exception as error:  # of a mask that is a function, too
            self.reason = f"its arguments are not known: {error}"


def copied(X: Any) -> Any:
    """Copy an array of any framework to NumPy; return what is no array as it is."""
    return np.array(arrays.to_numpy(X)) if dispatch.backend_of(X) is not None and hasattr(X, "shape") else X


def report_on_call(call: KernelCall, output: Any) -> tuple[Report, np.ndarray] | None:
    """Judge what left a kernel by what entered it; return which keys its queries see, (B, H, Q, K), too.

    None if no query sees a key. Raises TypeError or ValueError if it is no call of attention.
    """
    given = dict(call.given)
    layout = given.pop("layout", "BHTD")
    output = output[0] if isinstance(output, tuple) else output
    heads = {name: given.pop(name) for name in INPUTS} | {"output": copied(output)}
    inputs, output = in_one_batch(heads, given, layout)
    dtype = max((checks.dtype_name(X.dtype) for X in (*inputs.values(), output)), key=UNIT.__getitem__)
    options: dict[str, Any] = inputs | given
    asked = kernel_problem(**options, dtype=dtype, empty_rows=False)
    if not asked.rows_that_count.any():
        return None
    return report_on_kernel(asked, output.astype(dtype)), asked.visible


def in_one_batch(
    heads: dict[str, np.ndarray], given: dict[str, Any], layout: str
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return q, k, v and the output as (B, H or G, T, d), whatever axes are before these; change the masks alike.

    A kernel broadcasts the axes before (T, d); so the heads of keys may be one, or the samples of queries.
    """
    if any(X.ndim < 2 for X in heads.values()):
        raise ValueError(f"q has shape {heads['q'].shape}, expected (..., tokens, features)")
    if layout == "BTHD":
        heads = {name: X.swapaxes(-3, -2) for name, X in heads.items()}  # (..., H or G, T, d)
    axes = max(3, *(X.ndim for X in heads.values()))
    heads = {name: X[(None,) * (axes - X.ndim)] for name, X in heads.items()}  # (..., H or G, T, d)
    before = np.broadcast_shapes(*(X.shape[:-3] for X in heads.values()))
    for name in ("mask", "bias"):
        X = given.get(name)
        if X is not None and X.ndim > 3:
            before = np.broadcast_shapes(before, X.shape[:-3])
    wide = {name: np.broadcast_to(X, (*before, *X.shape[-3:])) for name, X in heads.items()}
    flat = {name: X.reshape(-1, *X.shape[-3:]) for name, X in wide.items()}  # (B, H or G, T, d)
    for name in ("mask", "bias"):
        if (X := given.get(name)) is not None and axes > 4 and X.ndim > 3:
            given[name] = np.broadcast_to(X, (*before, *X.shape[-3:])).reshape(-1, *X.shape[-3:])  # (B, H, Q, K)
    output = flat.pop("output")
    return flat, output


def hide_or_add(*masks: Any) -> dict[str, np.ndarray]:
    """Return the mask, True = may attend, and the bias in masks: booleans, numbers that are added, or None."""
    seen: Any = True
    bias: Any = 0.0
    for X in map(copied, masks):
        if X is not None and X.dtype == bool:
            seen = seen & X
        elif X is not None:
            bias = bias + X.astype(np.float64)
    low = np.asarray(bias) < LOW
    seen, bias = seen & ~low, np.where(low, 0.0, bias)
    found = {} if seen.all() else {"mask": seen}
    return found | ({"bias": bias} if bias.any() else {})
