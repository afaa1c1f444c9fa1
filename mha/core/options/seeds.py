"""Seeds for layers that are made without one: the first, the second, ... in a process."""

import threading

import numpy as np

from mha.core.options import checks

_lock = threading.Lock()
_start, _count = 0, 0


def manual_seed(seed: int) -> None:
    """Set where seeds begin: the n-th layer made from now on without a seed draws from (seed, n), on every backend.

    A process begins with `manual_seed(0)`, so that a script makes the same layers in every run. Unlike
    `torch.manual_seed`, it changes only the seeds of layers that are made later.

    Raises TypeError or ValueError if seed is no int of at least 0.
    """
    global _start, _count
    seed = checks.seed(seed)
    with _lock:
        _start, _count = seed, 0


def next_seed() -> int:
    """A seed for the next layer, of 32 bits."""
    global _count
    with _lock:
        start, count = _start, _count
        _count += 1
    return int(np.random.SeedSequence((start, count)).generate_state(1)[0])
