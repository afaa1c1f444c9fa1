"""When two results are the same: the rules that the tests and `mha parity` measure by, and the quick suite of both."""

from mha.parity.cases import ADDITIVE, CASES, WIDTHS, Case
from mha.parity.comparison import compare
from mha.parity.diagnosis import CATALOGUE, Diagnosis, Explanation, diagnose
from mha.parity.mistakes import Mistake
from mha.parity.report import Place, Report, Row
from mha.parity.rules import UNIT, bound, error, gradient_scale, in_dtype, largest, ratio
from mha.parity.suite import Arrays, Result, Verdict, check_case, check_exact, one_line, plan

__all__ = [
    "ADDITIVE",
    "CASES",
    "UNIT",
    "WIDTHS",
    "Arrays",
    "Case",
    "Place",
    "Report",
    "Result",
    "Row",
    "Verdict",
    "bound",
    "check_exact",
    "compare",
    "check_case",
    "error",
    "gradient_scale",
    "in_dtype",
    "largest",
    "one_line",
    "plan",
    "ratio",
]
