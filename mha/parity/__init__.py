"""Comparisons of results, layers and files: are they the same, and if not, where do they first differ, and why?"""

from typing import TYPE_CHECKING

from mha.core import lazy

if TYPE_CHECKING:
    from mha.models.audit.arrays_alone import audit_taps
    from mha.models.audit.audit import audit
    from mha.models.audit.audit_report import AuditReport, LayerRow
    from mha.models.audit.watching import watch
    from mha.models.files.two_files import FilesReport, compare_files
    from mha.models.records.comparing import compare_records
    from mha.models.records.contents import Record
    from mha.models.records.records_report import RecordsReport
    from mha.models.records.replay import audit_record
    from mha.models.records.stepping import StepRow
    from mha.models.records.writing import record
    from mha.parity.cases.files import case_files
    from mha.parity.cases.suite import Arrays, Check, Result, Verdict, check_case, check_exact, one_line, plan
    from mha.parity.cases.usual import ADDITIVE, CASES, WIDTHS, Case
    from mha.parity.diagnosis.blind_spots.probes import inputs
    from mha.parity.diagnosis.blind_spots.sight import Unseen
    from mha.parity.diagnosis.compare.comparison import compare, diagnose, ratio
    from mha.parity.diagnosis.compare.explanations import Diagnosis, Explanation
    from mha.parity.diagnosis.compare.report import Place, Report, Row
    from mha.parity.diagnosis.compare.two_layers import LayersReport, WeightRow, compare_layers
    from mha.parity.diagnosis.mistakes.catalogue import CATALOGUE
    from mha.parity.diagnosis.mistakes.mistake import Mistake
    from mha.parity.rule.rules import UNIT, bound, error, gradient_scale, in_dtype, largest
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
