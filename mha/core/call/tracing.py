"""Record the steps of a call: the lessons name each step, which costs nothing where nobody records."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class _Recorder(threading.local):
    steps: dict[str, Any] | None = None  # of the class, so that a thread that keeps nothing has it too


_kept = _Recorder()


def record_step(name: str, X: Any) -> Any:
    """Return X; inside `record_steps`, record it under this name, too."""
    if _kept.steps is not None:
        _kept.steps[name] = X
    return X


@contextlib.contextmanager
def record_steps() -> Iterator[dict[str, Any]]:
    """Yield a dict that gets the steps of the code inside, by name and in order; of this thread alone.

    A compiled function opens it inside itself, and returns the dict.
    """
    before, _kept.steps = _kept.steps, {}
    try:
        yield _kept.steps
    finally:
        _kept.steps = before
