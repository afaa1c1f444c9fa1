"""Audit a whole model: judge each of its attention layers in its user's calls, and say what mending them changes."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mha import arrays, dispatch
from mha.parity.whole.audit_report import AuditReport, LayerRow, Mended
from mha.parity.whole.calls.model_calls import CACHES, UnknownError
from mha.parity.whole.calls.session import Session, Tap
from mha.parity.whole.judging import Judged, asked_of, judged, mended
from mha.parity.whole.layers.finding import Finder, some
from mha.parity.whole.layers.known import Known
from mha.parity.whole.layers.truth import Truth, opened, taps_of, wholes
from mha.tables import few, number

SMALL = 1e-3  # the share of a difference that rounding may leave


def audit(model: Any, *args: Any, like: Any = None, layers: Any = None, **kwargs: Any) -> AuditReport:
    """Judge each attention layer of a model in one call of it: is one wrong, which is the first, and why?

    Args:
        model: a model of PyTorch, Keras, Flax or MXNet.
        args, kwargs: the arguments of the call, as its users make it.
        like: where the weights and the configuration are that the model should have: a directory or file of a
            checkpoint, a state dict, or another model. None = the model's own, whose weights are not judged then.
        layers: what is known of layers that no table knows, by patterns of their paths. None in
            the place of a description leaves a layer out.

    Returns:
        An `AuditReport`: true if at least one layer was compared, and all that were called are known and the same; it
        prints as text.

    Each layer is judged by float64 NumPy on what entered it. What is true are the configuration, the weights and the
    arguments of the call: not the masks, cosines and attributes that the model has made of them. The call runs without
    dropout and gradients; the model stays as it was.

    Raises:
        ValueError: if no attention layer is known; the message lists what was found.
        TypeError, ValueError: if an argument is not as above. What the model raises goes on.
    """
    watching = Watch(model, like, layers, once=(args, kwargs))
    with watching.open() as report:
        before = watching.taps.call(model, *args, **kwargs)
    wrong = tuple(row.path for row in report.wrong)
    if wrong and not watching.changes_cache:
        second = Watch(model, like, layers, frozenset(wrong), (args, kwargs))
        with second.open() as other:
            after = second.taps.call(model, *args, **kwargs)
        left = tuple(row.path for row in other.wrong if row.path not in wrong)
        explains = explained(watching.taps, like, args, kwargs, before, after)
        report.mended = Mended(wrong, moved(before, after), left, explains)
    return report


@contextlib.contextmanager
def watch(model: Any, like: Any = None, layers: Any = None) -> Iterator[AuditReport]:
    """Judge each attention layer of a model in whatever calls happen inside: `generate()`, a training step, many calls.

    Arguments and errors as for `audit`. The report is complete when the context ends without an error; before that it
    has no layers. Dropout is off meanwhile; the model is as it was afterwards, also if something fails.
    """
    with Watch(model, like, layers).open() as report:
        yield report


class Watch:
    """Watches a model; arguments as for `watch`; mend: the paths of layers that give what they should.

    once: the arguments of its one call, by position and by name, None = it may be called often; taps: for what is no
    model, what tells of its calls.
    """

    def __init__(
        self,
        model: Any,
        like: Any,
        layers: Any,
        mend: frozenset[str] = frozenset(),
        once: Any = None,
        taps: Any = None,
    ) -> None:
        if taps is None:
            backend = dispatch.backend_of(model)
            if backend is None:
                raise TypeError(f"model is a {type(model).__name__}, expected a model of PyTorch, Keras, Flax or MXNet")
            taps = taps_of(backend)
        self.model, self.like, self.taught, self.mend, self.once = model, like, layers, mend, once
        self.taps = taps
        self.shown = taps.shown(model, *(once or ((), {})))
        self.known: list[Known] = []
        self.rows: dict[str, LayerRow] = {}
        self.kept: dict[Any, Judged] = {}
        self.changes_cache = False

    @contextlib.contextmanager
    def open(self) -> Iterator[AuditReport]:
        """Watch until the context ends; its report is complete then."""
        report = AuditReport(type(self.model).__name__)
        with opened(self.like, self.shown, self.taps) as truth:
            finder = Finder(self.taps.modules(self.shown), self.taps.arrays(self.shown), self.taps.odd, truth)
            self.known, self.truth = finder.layers(self.taught), truth
            whole, once = wholes(finder.modules), self.once is not None
            session = Session(self.known, self.taps, self.judge, self.fail, once, whole)
            try:
                with self.taps.watching(self.shown, session):
                    yield report
            finally:
                session.histories.forget()
            self.changes_cache = session.cache is not None
            self.complete(report, session, truth, finder)

    def judge(self, tap: Tap) -> np.ndarray | None:
        """Judge a call of a layer; return what it should give, if it is one to mend."""
        path, row = tap.layer.path, self.rows.get(tap.layer.path)
        if row is not None and row.verdict != "same" and path not in self.mend:
            self.rows[path] = dataclasses.replace(row, calls=row.calls + 1)
            return None
        try:
            asked = asked_of(tap, self.truth)
            if not asked.counted_rows.any():
                return None
            if path in self.mend:
                return mended(tap, asked)
            one = judged(tap, asked)
        except (UnknownError, TypeError, ValueError) as error:
            self.fail(path, str(error))
            return None
        calls = 1 if row is None else row.calls + 1
        if one.ratio > 1:
            self.rows[path] = LayerRow(path, tap.layer.kind, "differs", "", calls, one)
            return None
        self.keep(one)
        if row is not None and row.judged is not None and row.judged.ratio >= one.ratio:
            one = row.judged
        self.rows[path] = LayerRow(path, tap.layer.kind, "same", "", calls, one.light())
        return None

    def keep(self, one: Judged) -> None:
        """Keep the call with most keys of each configuration, to say later what it could not show."""
        if one.asked is not None:
            known = self.kept.get(one.asked.config)
            if known is None or known.asked is None or known.asked.sizes.K < one.asked.sizes.K:
                self.kept[one.asked.config] = one

    def fail(self, path: str, reason: str) -> None:
        """Note that a call of a layer is not known."""
        row = self.rows.get(path)
        if row is None or row.verdict == "same":
            kind = next(one.kind for one in self.known if one.path == path)
            self.rows[path] = LayerRow(path, kind, "not known", reason, 0 if row is None else row.calls)

    def complete(self, report: AuditReport, session: Session, truth: Truth, finder: Finder) -> None:
        """Fill the report with what was seen."""
        rows = []
        for one in self.known:
            ran = session.ran.get(one.path)
            if one.reason:
                verdict: Any = "not known"
                rows.append(LayerRow(one.path, one.kind, verdict, one.reason))
            elif one.path in self.rows:
                rows.append(self.rows[one.path])
            elif ran:
                note = f"only {', '.join(sorted(ran))} of its projections ran"
                rows.append(LayerRow(one.path, one.kind, "not known", note))
            else:
                rows.append(LayerRow(one.path, one.kind, "not called"))
        left_out = [one.path for one in self.known if one.left_out]
        silent = (*left_out, *(row.path for row in rows if row.verdict == "not known"))
        others = {path: pool for path, pool in session.pools.items() if not any(at(path, X) for X in silent)}
        outside = "it pools outside of the layers that are known"
        rows += [LayerRow(path, pool, "not known", outside) for path, (pool, axes) in others.items() if axes > 2]
        notes = []
        if few_rows := [path or "the model itself" for path, (_, axes) in others.items() if axes < 3]:
            notes = [f"a softmax of rows is no attention, and was not judged: in {', '.join(few(few_rows))}"]
        if not any(not one.reason for one in self.known) and not left_out:
            raise ValueError(nothing(rows, finder))
        report.layers, report.truth, report.weighed = tuple(rows), truth.said, not truth.own
        report.notes, report.kept = tuple(notes), tuple(self.kept.values())


def at(path: str, other: str) -> bool:
    """Whether a module is another one, or inside of it."""
    return path == other or path.startswith(f"{other}.")


def nothing(rows: list[LayerRow], finder: Finder) -> str:
    """Say that no attention layer is known, and what was found."""
    listed = "; ".join(f"{row.path or 'the model'} ({row.kind}): {row.note}" for row in rows[:4])
    found = f"found: {listed}{f'; and {len(rows) - 4} more' if len(rows) > 4 else ''}" if rows else "none was found"
    return (
        f"no attention layer of the model is known; {found}; its modules are {some(finder.modules)}. Say what one "
        "computes: layers={'blocks.*.attn': dict(W_q='to_q', W_k='to_k', W_v='to_v', W_o='out', num_heads=8)}"
    )


def moved(before: Any, after: Any, masks: Sequence[Any] = ()) -> dict[str, float]:
    """How far the arrays that a model returned differ, by their names; those that do not are left out.

    masks: what the model was given, (B, T): where one of it is 0 or 1 everywhere, rows of 0 do not count.
    """
    found = {}
    for name, X in outputs_of(before).items():
        Y = outputs_of(after).get(name)
        if Y is None or X.shape != Y.shape:
            continue
        far = np.abs(X - Y)
        for mask in map(arrays.to_numpy, masks):
            if mask.shape == X.shape[:2] and np.isin(mask, (0, 1)).all() and mask.any():
                far = far[mask.astype(bool)]
                break
        if far.max(initial=0.0):
            found[name] = float(far.max())
    return found


def explained(taps: Any, like: Any, args: Any, kwargs: Any, before: Any, after: Any) -> str:
    """Say whether the model gives what the reference does, once its layers are mended; "" if that is no model."""
    if not callable(like):
        return ""
    right = taps.call(like, *args, **kwargs)
    padding = [X for X in (*args, *kwargs.values()) if getattr(X, "ndim", 0) == 2]
    apart, left = (max(moved(right, X, padding).values(), default=0.0) for X in (before, after))
    if left <= SMALL * apart:
        return f"it explains all of the difference from {type(like).__name__}"
    return (
        f"{number(100 * left / apart)}% of the difference from {type(like).__name__} is left, which has other reasons"
    )


def outputs_of(output: Any, name: str = "output") -> dict[str, np.ndarray]:
    """The arrays that a model returned, in float64, by name."""
    if dispatch.backend_of(output) is not None and hasattr(output, "shape"):
        X = arrays.to_numpy(output)
        return {name: X.astype(np.float64)} if X.dtype.kind in "fV" else {}
    named = {}
    if isinstance(output, Mapping):
        named = {key: X for key, X in output.items() if key not in CACHES}
    elif isinstance(output, (tuple, list)):
        named = {f"{name}[{at}]": X for at, X in enumerate(output)}
    found: dict[str, np.ndarray] = {}
    for key, X in named.items():
        found |= outputs_of(X, str(key))
    return found
