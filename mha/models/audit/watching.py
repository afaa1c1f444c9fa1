"""Watch a model, and judge each of its attention layers in its user's calls."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.options.names import BackendName
from mha.core.tables import few, plural
from mha.models.audit.audit_report import AuditReport, LayerRow, VerdictName
from mha.models.audit.calls.kernel_call import KernelCall
from mha.models.audit.calls.model_calls import UnknownError
from mha.models.audit.calls.session import CapturedCall, Session, partial_reason
from mha.models.audit.judging import judge_texts, layer_call_of, right_output
from mha.models.audit.kernels import KERNELS_ALONE, JudgedKernels
from mha.models.audit.layers.attention_layer import AttentionLayer
from mha.models.audit.layers.finding import Finder, first_names
from mha.models.audit.layers.reference import (
    Reference,
    adapter_of,
    backend_of,
    formats_of,
    is_at,
    natural_key,
    open_reference,
    whole_models,
)


@contextlib.contextmanager
def watch(model: Any, like: Any = None, layers: Any = None) -> Iterator[AuditReport]:
    """Judge each attention layer of a model in whatever calls happen inside: `generate()`, a training step, many calls.

    Arguments and errors as for `audit`. The report is complete when the context ends without an error; before that it
    has no layers. Dropout is off meanwhile; the model is as it was afterwards, also if something fails.
    """
    with Watch(model, like, layers).open() as report:
        yield report


class Watch:
    """The audit of a model while it runs; model, like, layers: as for `watch`.

    mend: the paths of layers that return the right output
    once: the arguments of the one call, by position and by name, None = there may be more
    adapter, backend: of a recorded model
    """

    def __init__(
        self,
        model: Any,
        like: Any,
        layers: Any,
        mend: frozenset[str] = frozenset(),
        once: Any = None,
        adapter: Any = None,
        backend: BackendName | None = None,
    ) -> None:
        self.model, self.like, self.user_layers, self.mend, self.once = model, like, layers, mend, once
        self.backend, self.recorded = backend or backend_of(model), adapter is not None
        self.adapter = adapter or adapter_of(self.backend)
        self.target = self.adapter.prepare(model, *(once or ((), {})))
        self.layers: list[AttentionLayer] = []
        self.rows: dict[str, LayerRow] = {}
        self.kernels = JudgedKernels()
        self.kept: dict[Any, Any] = {}  # by configuration, a `JudgedCall` with its arrays
        self.notes: dict[str, None] = {}
        self.library = False
        self.changes_cache = False

    @contextlib.contextmanager
    def open(self) -> Iterator[AuditReport]:
        """Watch until the context ends, which completes the report."""
        report = AuditReport(type(self.model).__name__)
        with open_reference(self.like, self.target, self.adapter, self.backend) as reference:
            modules, arrays = self.adapter.modules(self.target), self.adapter.arrays(self.target)
            if not self.recorded:
                module: Any = dispatch.load(self.backend)
                report.device = module.device(module.place(None, next(iter(arrays.values()), None)))
            finder = Finder(modules, arrays, self.adapter.odd, reference, formats_of(self.backend))
            self.layers, self.reference = finder.layers(self.user_layers), reference
            whole, once = whole_models(finder.modules), self.once is not None
            self.library = bool(whole)
            session = Session(self.layers, self.adapter, self.judge, self.fail, self.judge_kernels, once, whole)
            try:
                with self.adapter.watching(self.target, session):
                    yield report
            finally:
                session.histories.forget()
            self.changes_cache = session.cache is not None
            self.complete(report, session, reference, finder)

    def judge(self, captured: CapturedCall) -> np.ndarray | None:
        """Judge a call of a layer; return the right output if the layer is one to mend."""
        path, row = captured.layer.path, self.rows.get(captured.layer.path)
        if row is not None and row.verdict != "same" and path not in self.mend:
            self.rows[path] = dataclasses.replace(row, calls=row.calls + 1)
            return None
        try:
            captured.layer = captured.layer.turn_as_used(captured.inputs, captured.outputs)
            layer_call = layer_call_of(captured, self.reference)
            if not layer_call.rows_that_count.any():
                return None
            if path in self.mend:
                return right_output(captured, layer_call)
            one, packed = judge_texts(captured, layer_call, self.reference, self.library)
        except (UnknownError, TypeError, ValueError) as error:
            self.fail(path, str(error))
            return None
        self.notes |= {packed: None} if packed else {}
        verdict: VerdictName = "differs" if one.ratio > 1 else "same"
        if verdict == "same":
            # Of each configuration, the call with the most keys and no cache is kept, to find its blind spots later.
            call: Any = one.layer_call
            known = self.kept.get(call.config)
            if call.sizes.slots is None and (known is None or known.layer_call.sizes.K < call.sizes.K):
                self.kept[call.config] = one
            if row is not None and row.judged is not None and row.judged.ratio >= one.ratio:
                one = row.judged
            one = one.light()
        calls = 1 if row is None else row.calls + 1
        self.rows[path] = LayerRow(path, captured.layer.kind, verdict, captured.layer.note, calls, one)
        return None

    def fail(self, path: str, reason: str) -> None:
        """Note that a call of a layer is not known."""
        row = self.rows.get(path)
        if row is None or row.verdict == "same":
            kind = next(one.kind for one in self.layers if one.path == path)
            self.rows[path] = LayerRow(path, kind, "not known", reason, 0 if row is None else row.calls)

    def judge_kernels(self, path: str, calls: list[tuple[KernelCall, Any]]) -> None:
        """Judge calls of kernels, unless the layer around them, at this path, is the same: then they are right, too."""
        row = self.rows.get(path)
        if row is None or row.verdict != "same":
            for call, output in calls:
                self.kernels.judge(call, output)

    def complete(self, report: AuditReport, session: Session, reference: Reference, finder: Finder) -> None:
        """Fill the report with the rows of all layers."""
        rows, kernels, alone = [], self.kernels, dict[tuple[str, str], list[str]]()
        for one in self.layers:
            ran = session.ran.get(one.path)
            if reason := one.reason or (partial_reason(ran) if ran else ""):
                row = LayerRow(one.path, one.kind, "not known", reason)
            else:
                row = LayerRow(one.path, one.kind, "not called")
            row = row if one.reason else self.rows.get(one.path, row)
            if one.unlisted and not any(is_at(path, one.path) for path in session.entered):
                rows.append(LayerRow(one.path, one.kind, "not called"))
            elif one.unlisted and kernels.at(one.path):
                alone.setdefault((one.kind, one.reason), []).append(one.path)
            else:
                rows.append(kernels.beside(row))
        left_out = [one.path for one in self.layers if one.left_out]
        rows = sorted([*rows, *kernels.rows.values()], key=lambda row: natural_key(row.path))
        silent = (*left_out, *(row.path for row in rows if row.verdict == "not known"))
        others = {path: pool for path, pool in session.pools.items() if not any(is_at(path, X) for X in silent)}
        outside = "it pools outside of the layers that are known"
        rows += [LayerRow(path, pool, "not known", outside) for path, (pool, axes) in others.items() if axes > 2]
        notes = [*finder.notes, *self.notes, *kernels.notes]
        notes += [
            f"{plural(len(paths), 'layer')} of {kind} ({', '.join(few(paths))}) judged by kernels alone: {reason}"
            for (kind, reason), paths in alone.items()
        ]
        notes += [KERNELS_ALONE] if any(row.judged is not None for row in kernels.rows.values()) else []
        if few_rows := [path or "the model itself" for path, (_, axes) in others.items() if axes < 3]:
            notes += [f"a softmax of rows is no attention, and was not judged: in {', '.join(few(few_rows))}"]
        every = finder.modules.values()
        if any(hasattr(one, "_orig_mod") or getattr(one, "_compiled_call_impl", None) for one in every):
            notes.append("the eager path was judged: what a compiler makes of the model was not")
        if all(one.reason for one in self.layers) and not left_out and not any(row.judged for row in rows):
            listed = "; ".join(f"{row.path or 'the model'} ({row.kind}): {row.note}" for row in rows[:4])
            more = f"; and {len(rows) - 4} more" if len(rows) > 4 else ""
            found = f"found: {listed}{more}" if rows else "none was found"
            raise ValueError(
                f"no attention layer of the model is known; {found}; its modules are {first_names(finder.modules)}. "
                "Say what one computes: layers={'blocks.*.attn': dict(W_q='to_q', W_k='to_k', W_v='to_v', W_o='out', "
                "num_heads=8)}"
            )
        report.layers, report.truth, report.weighed = tuple(rows), reference.origin, not reference.own
        report.notes, report.kept = tuple(notes), tuple(self.kept.values())
