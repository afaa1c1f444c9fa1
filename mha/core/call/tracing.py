"""Record the steps of a call, and the kernels that pool: to name them costs nothing where nobody records."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from mha.core.options.config import STEPS_OF_PAIRS


class _Recorder(threading.local):
    # Of the class, so that a thread that keeps nothing has them too.
    steps: dict[str, Any] | None = None
    kernels: set[str] | None = None


recorder = _Recorder()


def record_step(name: str, X: Any) -> Any:
    """Return X; inside `record_steps`, record it under this name, too."""
    if recorder.steps is not None:
        recorder.steps[name] = X
    return X


@contextlib.contextmanager
def record_steps() -> Iterator[dict[str, Any]]:
    """Yield a dict that gets the steps of the code inside, by name and in order; of this thread alone.

    A compiled function opens it inside itself, and returns the dict.
    """
    before, recorder.steps = recorder.steps, {}
    try:
        yield recorder.steps
    finally:
        recorder.steps = before


def note_kernel(name: str) -> None:
    """Inside `note_kernels`, note what pools the heads of a call."""
    if recorder.kernels is not None:
        recorder.kernels.add(name)


@contextlib.contextmanager
def note_kernels() -> Iterator[set[str]]:
    """Yield a set that gets the names of what pools heads in the code inside; of this thread alone.

    A compiled function pools where it is compiled.
    """
    before, recorder.kernels = recorder.kernels, set()
    try:
        yield recorder.kernels
    finally:
        recorder.kernels = before


def trace_call(
    attend: Callable[..., Any], queries: Any, keys: Any, values: Any, call: Any, take: Any, repeat_groups: Any
) -> dict[str, Any]:
    """Return every step of a checked call without dropout, by name and in order.

    attend: of the layer; take, repeat_groups: functions of the lesson's chapters on slots and on heads.
    """
    with record_steps() as steps:
        attend(queries, keys, values, call._replace(training=False).with_plan(traced=True))
    return steps if call.cache is None else by_slots(steps, call.cache, take, repeat_groups)


def by_slots(steps: dict[str, Any], cache: Any, take: Any, repeat_groups: Any) -> dict[str, Any]:
    """Return the steps of a call with this cache: scores and weights by slots as they are after it, (B*H, Q, S).

    Those of keys and values are of the new tokens, of which there are none beside a frozen cache.
    """
    columns = repeat_groups(steps.pop("columns")[:, None], cache.config.num_heads)  # (B*H, 1, S)
    new = 0 if cache.frozen else steps["W_q"].shape[1]
    for name, X in steps.items():
        if name in STEPS_OF_PAIRS:
            steps[name] = take(X, columns, 2)  # (B*H, Q, S)
        elif name.endswith(("_k", "_v")):
            steps[name] = X[:, :new]  # (B, Q or 0, G*d), (B*G, Q or 0, d)
    return steps
