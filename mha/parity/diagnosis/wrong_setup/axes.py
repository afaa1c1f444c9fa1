"""Find samples and tokens that were taken for each other: arrays (T, B, D) for (B, T, D)."""

import numpy as np

from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.rule.problem import Expected, Problem, problem

SWAPPED = "samples and tokens are swapped"
WHAT = "attention goes over the first axis, as of PyTorch's layer without batch_first"


@np.errstate(all="ignore")
def over_samples(asked: Problem, output: Array) -> Expected | None:
    """Return the expected output if queries see the other samples, not the other tokens; None if theirs is not that.

    output: theirs, (B, Q, D). It is tried where nothing hides keys, and all queries count.
    """
    sizes, call = asked.sizes, asked.call
    if sizes.B == 1 or sizes.Q != sizes.K or call.given() or call.hides() or not asked.counted_rows.all():
        return None
    queries, keys, values = (X.swapaxes(0, 1) for X in (asked.queries, asked.keys, asked.values))  # (T, B, any)
    found = problem(asked.layer, queries, keys, values, {"causal": False}, angles=asked.angles).outputs()
    oracle, base = (X.swapaxes(0, 1) for X in found)  # (B, Q, D)
    expected = Expected.of(asked.config.dtype, oracle, base)
    return expected if expected.ratio(output) <= 1 else None
