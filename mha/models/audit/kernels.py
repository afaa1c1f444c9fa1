"""Judge the calls of kernels in a model, where no table knows the layer around them, or where that is not right."""

import re
from typing import Any

import numpy as np

from mha.models.audit.audit_report import LayerRow, VerdictName
from mha.models.audit.calls.kernel_call import KernelCall, report_on_call
from mha.models.audit.calls.model_calls import UnknownError
from mha.models.audit.judging import JudgedCall
from mha.models.audit.layers.reference import is_at

KERNELS_ALONE = (
    "where a kernel was judged alone, by what entered it, its layer was not: neither projections, norms, rotation and "
    "positions, nor whether its mask is the right one"
)
RIGHT, WRONG = "its kernel is right for what entered it", "its kernel is wrong for what entered it"


class JudgedKernels:
    """The calls of kernels that were judged; rows: by the path of the module that calls them."""

    def __init__(self) -> None:
        self.rows: dict[str, LayerRow] = {}
        self.notes: dict[str, None] = {}
        self.masks: dict[Any, tuple[str, bytes]] = {}  # by call of the model and kind of layer, what is visible, first

    def judge(self, call: KernelCall, output: Any) -> None:
        """Judge a call; keep its first mistake, else its worst ratio."""
        row = self.rows.get(call.path)
        calls = 1 if row is None else row.calls + 1
        if row is not None and row.verdict != "same":
            self.rows[call.path] = LayerRow(row.path, row.kind, row.verdict, row.note, calls, row.judged)
            return
        verdict: VerdictName = "not known"
        reason, judged = call.reason, None
        if not reason:
            try:
                found = report_on_call(call, output)
            except Exception as error:
                reason = f"what enters or leaves its kernel is not known: {error}"
            else:
                if found is None:
                    return
                report, visible = found
                self.compare_masks(call, visible)
                self.compare_positions(call, visible)
                judged = JudgedCall(call.model.number, report.ratio, report, None)
                verdict = "same" if report else "differs"
                if report:
                    judged = judged.light()
                    if row is not None and row.judged is not None and row.judged.ratio > judged.ratio:
                        judged = row.judged
        self.rows[call.path] = LayerRow(call.path, call.function, verdict, reason, calls, judged)

    def compare_masks(self, call: KernelCall, visible: np.ndarray) -> None:
        """Note it if layers of the same kind see other keys in one call of the model."""
        packed = np.packbits(visible.any(1)).tobytes()  # (B, Q, K), by bits
        kind = call.model.number, call.function, call.kind, visible.shape
        path, other = self.masks.setdefault(kind, (call.path, packed))
        if other != packed and path != call.path:
            pattern = re.sub(r"\d+", "*", path)
            self.notes.setdefault(
                f"masks contradict each other: {call.path} and {path} see other keys in one call, though nothing says "
                f"that layers like {pattern} are of two kinds"
            )

    def compare_positions(self, call: KernelCall, visible: np.ndarray) -> None:
        """Note it if positions begin again in a row, and texts see each other; visible: (B, H, Q, K)."""
        B, _, Q, K = visible.shape
        if Q != K or visible.all():  # where all is visible, these may be no tokens
            return
        try:
            texts = call.model.texts((B, Q, K))
        except UnknownError:
            return
        if texts is None:
            return
        apart = (texts[:, :, None] != texts[:, None]) & (texts >= 0)[:, :, None] & (texts >= 0)[:, None]  # (B, Q, K)
        if (visible.any(1) & apart).any():
            pattern, count = re.sub(r"\d+", "*", call.path), 1 + texts.max()
            self.notes.setdefault(
                f"the mask does not fit the positions, which begin again: in {pattern}, the {count} texts in a row see "
                "each other"
            )

    def at(self, path: str) -> list[LayerRow]:
        """Return the rows of kernels in the layer at a path."""
        return [row for row in self.rows.values() if is_at(row.path, path) and row.judged is not None]

    def beside(self, row: LayerRow) -> LayerRow:
        """Say in the row of a known layer what is known of its kernel, whose own row goes if it is right."""
        inside = self.at(row.path) if row.verdict in ("differs", "not known") else []
        if not inside:
            return row
        wrong = [one for one in inside if one.verdict == "differs"]
        for one in inside:
            if row.verdict == "differs" or one not in wrong:
                del self.rows[one.path]
        note = "; ".join(filter(None, [row.note, WRONG if wrong else RIGHT]))
        return LayerRow(row.path, row.kind, row.verdict, note, row.calls, row.judged)
