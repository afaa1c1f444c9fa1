"""Audit a model: which attention layer is wrong, what changes if it is right, and where the rest begins."""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mha import arrays
from mha.core import dispatch
from mha.core.cache import Cache
from mha.core.tables import number
from mha.models.audit.audit_report import AuditReport, RepairEffect
from mha.models.audit.calls.model_calls import CACHES
from mha.models.audit.layers.reference import is_at
from mha.models.audit.watching import Watch
from mha.models.records.comparing import compare_records
from mha.models.records.contents import Record
from mha.models.records.writing import record

SMALL = 1e-3  # the share of a difference that rounding may leave


def audit(model: Any, *args: Any, like: Any = None, layers: Any = None, **kwargs: Any) -> AuditReport:
    """Judge each attention layer of a model in one call of it: is one wrong, which is the first, and why?

    Args:
        model: a model of one of the frameworks.
        args, kwargs: the arguments of the call, as its users make it.
        like: where the weights and the configuration are that the model should have: a directory or file of a
            checkpoint, a state dict, or another model. None = the model's own, whose weights are not judged then.
        layers: what is known of layers that no table knows, by patterns of their paths, "*" = of each module with such
            projections: a dict of the names of its projections, as in W_q="to_q", or of its scheme, and of its options;
            or a function of the module; None leaves a layer out. axes="io" says that kernels are (in, out), "oi" that
            they are (out, in), where neither class nor name shows it. In like=, a layer is found by the names of the
            same projections, at the same path, or by order; like="encoder.{}.attention" among the names says its path
            there, {} = the number of the layer, and like=dict(path=..., W_q="query", axes="io") other names.

    Returns:
        An `AuditReport`: true if at least one layer was compared, and all that were called are known and the same; it
        prints as text. Where no table knows a layer, the calls of kernels in it are judged, each by what entered it.

    Each layer is judged by float64 NumPy on what entered it. What is true are the configuration, the weights and the
    arguments of the call: not the masks, cosines and attributes that the model has made of them. Without like=, the
    weights are the model's own: a kernel that was transposed when it was loaded, or a bias that was left out, is not
    seen. The call runs without dropout and gradients; the model stays as it was.

    Raises:
        ValueError: if no attention layer is known, and no call of a kernel; the message lists what was found. If like=
            has no arrays for a layer of layers=, or others in size; the message says which path lacks what.
        TypeError, ValueError: if an argument is not as above. What the model raises goes on.
    """
    watching = Watch(model, like, layers, once=copy_caches((args, kwargs)))
    with watching.open() as report:
        before = watching.adapter.call(model, *copy_caches(args), **copy_caches(kwargs))
    wrong = tuple(row.path for row in report.wrong if not row.of_kernel)
    if wrong and not watching.changes_cache:
        second = Watch(model, like, layers, frozenset(wrong), (args, kwargs))
        right = like if callable(like) and dispatch.backend_of(like) == watching.backend else None
        with second.open() as other, maybe_record(model, args, right is not None) as mine:
            after = second.adapter.call(model, *args, **kwargs)
        left = tuple(row.path for row in other.wrong if row.path not in wrong)
        explains = ""
        if right is not None:
            with maybe_record(right, args, True) as theirs:  # which has no dropout, either
                output = second.adapter.call(right, *args, **kwargs)
            padding = [X for X in (*args, *kwargs.values()) if getattr(X, "ndim", 0) == 2]
            apart, rest = (max(distances(output, X, padding).values(), default=0.0) for X in (before, after))
            explains = explain_rest(type(right).__name__, apart, rest, theirs, mine, wrong)
        report.mended = RepairEffect(wrong, distances(before, after), left, explains)
    return report


def copy_caches(given: Any) -> Any:
    """Copy our caches among arguments, since a call uses them up."""
    if isinstance(given, Cache):
        return copy.copy(given)
    if type(given) is dict:
        return {name: copy_caches(X) for name, X in given.items()}
    return type(given)(map(copy_caches, given)) if type(given) in (list, tuple) else given


@contextlib.contextmanager
def maybe_record(model: Any, args: tuple[Any, ...], needed: bool) -> Iterator[Record | None]:
    """Record a model in memory if `needed`; yield None if not, or if its modules cannot be seen."""
    with contextlib.ExitStack() as stack:
        found = None
        if needed:
            with contextlib.suppress(TypeError, ValueError):
                found = stack.enter_context(record(model, call=args))
        yield found


def distances(before: Any, after: Any, masks: Sequence[Any] = ()) -> dict[str, float]:
    """Return how far two outputs differ, by array; rows where a mask (B, T) is 0 do not count."""
    found = {}
    for name, X in float_outputs(before).items():
        Y = float_outputs(after).get(name)
        if Y is None or X.shape != Y.shape:
            continue
        far = np.abs(X - Y)
        for mask in map(arrays.to_numpy, masks):  # arguments of the model
            if mask.shape == X.shape[:2] and np.isin(mask, (0, 1)).all() and mask.any():
                far = far[mask.astype(bool)]
                break
        if far.max(initial=0.0):
            found[name] = float(far.max())
    return found


def explain_rest(
    name: str, apart: float, left: float, theirs: Record | None, mine: Record | None, wrong: tuple[str, ...]
) -> str:
    """Say whether the model gives what the reference of this name does once its wrong layers are right.

    apart, left: how far its output is with wrong layers and with right ones; theirs, mine: records of both with these.
    """
    if left <= SMALL * apart:
        return f"it explains all of the difference from {name}"
    where = ""
    with contextlib.suppress(TypeError, ValueError):
        rows = compare_records(theirs, mine).rows if mine is not None and theirs is not None else ()
        outside = (row for row in rows if not any(is_at(row.other, path) for path in wrong))
        if (first := next((row for row in outside if row.verdict == "differs"), None)) is not None:
            where = f"; the rest begins at {first.path or 'the model'}"
    return f"{number(100 * left / apart)}% of the difference from {name} is left, which has other reasons{where}"


def float_outputs(output: Any, name: str = "output") -> dict[str, np.ndarray]:
    """Return the floating-point arrays that a model returned, in float64, by name."""
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
        found |= float_outputs(X, str(key))
    return found
