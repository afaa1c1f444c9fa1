"""When two results are the same: the rules that the tests and `mha parity` measure by, and the quick suite of both."""

from mha.parity import case_files
from mha.parity.cases import ADDITIVE, CASES, WIDTHS, Case
from mha.parity.rules import UNIT, bound, error, gradient_scale, in_dtype, largest, ratio
from mha.parity.suite import Arrays, Result, Verdict, check_exact, compare, one_line, plan

__all__ = [
    "ADDITIVE",
    "CASES",
    "UNIT",
    "WIDTHS",
    "Arrays",
    "Case",
    "Result",
    "Verdict",
    "bound",
    "case_files",
    "check_exact",
    "compare",
    "error",
    "gradient_scale",
    "in_dtype",
    "largest",
    "one_line",
    "plan",
    "ratio",
]
