"""Steps of a call, kept for whoever asks: the lessons name each step, and nobody else pays for it."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class _Kept(threading.local):
    steps: dict[str, Any] | None = None  # of the class, so that a thread that keeps nothing has it too


_kept = _Kept()


def keep(name: str, X: Any) -> Any:
    """X as it is; inside `keeping`, it is kept under this name too."""
    if _kept.steps is not None:
        _kept.steps[name] = X
    return X


@contextlib.contextmanager
def keeping() -> Iterator[dict[str, Any]]:
    """A dict of the steps that the code inside keeps, by name and in order; of this thread alone.

    A compiled function opens it inside itself, and returns the dict.
    """
    before, _kept.steps = _kept.steps, {}
    try:
        yield _kept.steps
    finally:
        _kept.steps = before
