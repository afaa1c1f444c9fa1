"""When two results are the same, where they first differ and why: the rules, and the quick suite of `mha parity`."""

from mha.parity import case_files
from mha.parity.cases import ADDITIVE, CASES, WIDTHS, Case
from mha.parity.comparison import compare
from mha.parity.diagnosis import CATALOGUE, Diagnosis, Explanation, diagnose
from mha.parity.mistakes import Mistake
from mha.parity.report import Place, Report, Row
from mha.parity.rules import UNIT, bound, error, gradient_scale, in_dtype, largest, ratio
from mha.parity.suite import Arrays, Check, Result, Verdict, check_case, check_exact, one_line, plan

__all__ = [
    "ADDITIVE",
    "CASES",
    "CATALOGUE",
    "UNIT",
    "WIDTHS",
    "Arrays",
    "Case",
    "Check",
    "Diagnosis",
    "Explanation",
    "Mistake",
    "Place",
    "Report",
    "Result",
    "Row",
    "Verdict",
    "bound",
    "case_files",
    "check_case",
    "check_exact",
    "compare",
    "diagnose",
    "error",
    "gradient_scale",
    "in_dtype",
    "largest",
    "one_line",
    "plan",
    "ratio",
]
