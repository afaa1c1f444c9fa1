"""When two results, layers or files are the same, where they first differ and why; the suite of `mha parity`."""

from mha.parity import case_files
from mha.parity.cases import ADDITIVE, CASES, WIDTHS, Case
from mha.parity.comparison import compare
from mha.parity.diagnosis import CATALOGUE, Diagnosis, Explanation, diagnose
from mha.parity.mistakes import Mistake
from mha.parity.report import Place, Report, Row
from mha.parity.rules import UNIT, bound, error, gradient_scale, in_dtype, largest, ratio
from mha.parity.suite import Arrays, Check, Result, Verdict, check_case, check_exact, one_line, plan
from mha.parity.two_files import FilesReport, compare_files
from mha.parity.two_layers import LayersReport, WeightRow, compare_layers

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
    "FilesReport",
    "LayersReport",
    "Mistake",
    "Place",
    "Report",
    "Result",
    "Row",
    "Verdict",
    "WeightRow",
    "bound",
    "case_files",
    "check_case",
    "check_exact",
    "compare",
    "compare_files",
    "compare_layers",
    "diagnose",
    "error",
    "gradient_scale",
    "in_dtype",
    "largest",
    "one_line",
    "plan",
    "ratio",
]
