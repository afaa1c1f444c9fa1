"""Compare a kernel with attention itself: its output, log-sum-exp and gradients against float64 NumPy."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Unpack

import numpy as np

from mha.parity.diagnosis.compare.comparison import compare_arrays
from mha.parity.diagnosis.compare.diagnosis import find_reasons
from mha.parity.diagnosis.compare.report import Report, Row
from mha.parity.diagnosis.pipeline.chance import with_rounding
from mha.parity.diagnosis.search.explanations import Diagnosis
from mha.parity.rule.kernel import ARRAYS
from mha.parity.rule.kernel_call import KernelCallOptions, floats_of, kernel_problem
from mha.parity.rule.options import spell_out
from mha.parity.rule.problem import Problem, with_rows


@spell_out(KernelCallOptions)
def compare_kernel(theirs: Any, q: Any, k: Any, v: Any, **options: Unpack[KernelCallOptions]) -> Report:
    """Compare what a kernel returned with attention itself: is it the same, and if not, where and why does it differ?

    Letters: B samples, T tokens (Q queries, K keys), H heads of queries, G of keys and values: head h reads h // (H/G);
    d width of a head, dv of a head of values.

    Args:
        theirs: the output; or the pair (output, lse); or a mapping of some of "output", "lse", "dq", "dk", "dv".
            Output and gradients are in the layout. The log-sum-exp is natural, with sinks, and minus infinity where a
            query sees no key: (B, H, Q), (B, Q, H), or packed (H, tokens). Arrays of any framework.
        q, k, v: what the kernel got, in one float dtype: (B, H, T, d), or as the layout says.
        layout: "BHTD", "BTHD", or "THD": texts that are packed into one row, as `cu_seqlens` says.
        causal: True = query i sees key j only if j <= i ("upper left"); "lower right" = only if j <= i + K - Q, in a
            sample with a length or in a packed text by its own number of keys.
        window: (left, right): a query sees so many keys before and after its own position; None = no bound.
        scale: factor of the dot products; None = 1 / sqrt(d).
        softcap: number c of the cap c * tanh(scores / c), after the scale.
        mask: booleans, True = may attend, (Q, K), (B, Q, K) or (B, H, Q, K), where any size may be 1.
        bias: floats that are added to the scores, in such a shape; minus infinity hides.
        lengths: integers (B,): the first so many keys of a sample are seen.
        sinks: floats (H,): one more score of each query, which takes its share of the softmax and pools nothing.
        cotangent: the gradient of the loss by the output, in the layout; None = ones.
        cu_seqlens, cu_seqlens_k: where each packed text begins among queries and among keys, and where the last ends;
            cu_seqlens_k None = as among queries.
        dtype: that the kernel computes in; None = that of q.
        empty_rows: whether rows of queries that see no key count: they must be 0 and send no gradient.
        style: "fused" or "steps", if only code of this kind is right in half precision; None = any.

    Returns:
        A `Report`: true if each array is within what rounding explains; it prints as a table.

    Raises TypeError or ValueError if an argument is not as above. Another shape of an array, NaN and infinity are no
    errors but rows of the report that differ.
    """
    return report_on_kernel(with_rows(kernel_problem(q, k, v, **options)), theirs)


def report_on_kernel(asked: Problem, theirs: Any) -> Report:
    """Compare arrays of a kernel, as `compare_kernel` takes them, with those of its problem."""
    asked = with_rounding(asked)
    by_name, taken = compare_arrays(asked, arrays_of_kernel(theirs))
    rows = tuple(by_name.values())
    return Report(rows, asked.config.dtype, partial(explain_kernel, asked.alone(), taken, rows))


def explain_kernel(asked: Problem, taken: Mapping[str, np.ndarray], rows: tuple[Row, ...]) -> Diagnosis:
    """Explain what differs by all arrays; or the output alone, whose mistake others may have in a way of their own."""
    found = find_reasons(asked, taken, rows, {}, True)
    output = tuple(row for row in rows if row.name == "output" and not row.passed)
    if found.known or not output or len(taken) == 1 or "output" not in taken:
        return found
    alone = find_reasons(asked, {"output": taken["output"]}, output, {}, True)
    return alone if alone.known else found


def arrays_of_kernel(theirs: Any) -> dict[str, np.ndarray]:
    """Return what a kernel gave as NumPy arrays by our names, in the order of a report."""
    expected = f"the output, the pair (output, lse), or a mapping of some of {', '.join(ARRAYS)}"
    if isinstance(theirs, (tuple, list)):
        if len(theirs) != 2:
            raise ValueError(f"theirs is a {type(theirs).__name__} of {len(theirs)}, expected {expected}")
        theirs = dict(zip(("output", "lse"), theirs, strict=True))
    elif not isinstance(theirs, Mapping):
        theirs = {"output": theirs}
    if unknown := [name for name in theirs if name not in ARRAYS] or not theirs:
        raise ValueError(f"theirs has {unknown if theirs else 'nothing'}, expected {expected}")
    return {own: floats_of(f"theirs[{name!r}]", theirs[name]) for name, own in ARRAYS.items() if name in theirs}
