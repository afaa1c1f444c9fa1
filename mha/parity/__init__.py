"""Comparisons of results, layers and files: are they the same, and if not, where do they first differ, and why?"""

from typing import TYPE_CHECKING

from mha.core import lazy

# Public is what `__all__` lists; the others, imported as themselves, can be imported from here, too.
if TYPE_CHECKING:
    from mha.models.audit.arrays_alone import audit_taps
    from mha.models.audit.audit import audit
    from mha.models.audit.audit_report import AuditReport as AuditReport
    from mha.models.audit.audit_report import LayerRow as LayerRow
    from mha.models.audit.watching import watch
    from mha.models.files.two_files import FilesReport as FilesReport
    from mha.models.files.two_files import compare_files
    from mha.models.records.comparing import compare_records
    from mha.models.records.contents import Record as Record
    from mha.models.records.records_report import RecordsReport as RecordsReport
    from mha.models.records.replay import audit_record
    from mha.models.records.stepping import StepRow as StepRow
    from mha.models.records.writing import record
    from mha.parity.cases.files import case_files as case_files
    from mha.parity.cases.suite import Arrays as Arrays
    from mha.parity.cases.suite import Check as Check
    from mha.parity.cases.suite import Result as Result
    from mha.parity.cases.suite import Verdict as Verdict
    from mha.parity.cases.suite import check_case as check_case
    from mha.parity.cases.suite import check_exact as check_exact
    from mha.parity.cases.suite import one_line as one_line
    from mha.parity.cases.suite import plan as plan
    from mha.parity.cases.usual import ADDITIVE as ADDITIVE
    from mha.parity.cases.usual import CASES
    from mha.parity.cases.usual import WIDTHS as WIDTHS
    from mha.parity.cases.usual import Case as Case
    from mha.parity.diagnosis.blind_spots.probes import inputs
    from mha.parity.diagnosis.blind_spots.sight import Unseen as Unseen
    from mha.parity.diagnosis.compare.comparison import compare, diagnose, ratio
    from mha.parity.diagnosis.compare.kernels import compare_kernel
    from mha.parity.diagnosis.compare.report import Place as Place
    from mha.parity.diagnosis.compare.report import Report
    from mha.parity.diagnosis.compare.report import Row as Row
    from mha.parity.diagnosis.compare.two_layers import LayersReport as LayersReport
    from mha.parity.diagnosis.compare.two_layers import WeightRow as WeightRow
    from mha.parity.diagnosis.compare.two_layers import compare_layers
    from mha.parity.diagnosis.mistakes.catalogue import CATALOGUE as CATALOGUE
    from mha.parity.diagnosis.mistakes.mistake import Mistake as Mistake
    from mha.parity.diagnosis.search.explanations import Diagnosis as Diagnosis
    from mha.parity.diagnosis.search.explanations import Explanation as Explanation
    from mha.parity.rule.half_precision import Rounding as Rounding
    from mha.parity.rule.rules import UNIT as UNIT
    from mha.parity.rule.rules import bound, error
    from mha.parity.rule.rules import gradient_scale as gradient_scale
    from mha.parity.rule.rules import in_dtype as in_dtype
    from mha.parity.rule.rules import largest as largest
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "CASES",
    "Report",
    "audit",
    "audit_record",
    "audit_taps",
    "bound",
    "compare",
    "compare_files",
    "compare_kernel",
    "compare_layers",
    "compare_records",
    "diagnose",
    "error",
    "inputs",
    "ratio",
    "record",
    "watch",
]
