"""Comparisons of results, layers and files: are they the same, and if not, where do they first differ, and why?"""

from typing import TYPE_CHECKING

from mha import lazy

if TYPE_CHECKING:
    from mha.parity.cases.suite import Arrays, Check, Result, Verdict, check_case, check_exact, one_line, plan
    from mha.parity.cases.usual import ADDITIVE, CASES, WIDTHS, Case
    from mha.parity.files import case_files
    from mha.parity.files.two_files import FilesReport, compare_files
    from mha.parity.mended.audit import audit
    from mha.parity.mistakes.catalogue import CATALOGUE
    from mha.parity.mistakes.mistake import Mistake
    from mha.parity.records.comparing import compare_records
    from mha.parity.records.contents import Record
    from mha.parity.records.records_report import RecordsReport
    from mha.parity.records.replay import audit_record
    from mha.parity.records.stepping import StepRow
    from mha.parity.records.writing import record
    from mha.parity.same.rules import UNIT, bound, error, gradient_scale, in_dtype, largest
    from mha.parity.unseen.probes import inputs
    from mha.parity.unseen.sight import Unseen
    from mha.parity.whole.arrays_alone import audit_taps
    from mha.parity.whole.audit_report import AuditReport, LayerRow
    from mha.parity.whole.watching import watch
    from mha.parity.why.comparison import compare, diagnose, ratio
    from mha.parity.why.explanations import Diagnosis, Explanation
    from mha.parity.why.report import Place, Report, Row
    from mha.parity.why.two_layers import LayersReport, WeightRow, compare_layers
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "ADDITIVE",
    "CASES",
    "CATALOGUE",
    "UNIT",
    "WIDTHS",
    "Arrays",
    "AuditReport",
    "Case",
    "Check",
    "Diagnosis",
    "Explanation",
    "FilesReport",
    "LayerRow",
    "LayersReport",
    "Mistake",
    "Place",
    "Record",
    "RecordsReport",
    "Report",
    "Result",
    "Row",
    "StepRow",
    "Unseen",
    "Verdict",
    "WeightRow",
    "audit",
    "audit_record",
    "audit_taps",
    "bound",
    "case_files",
    "check_case",
    "check_exact",
    "compare",
    "compare_files",
    "compare_layers",
    "compare_records",
    "diagnose",
    "error",
    "gradient_scale",
    "in_dtype",
    "inputs",
    "largest",
    "one_line",
    "plan",
    "ratio",
    "record",
    "watch",
]
