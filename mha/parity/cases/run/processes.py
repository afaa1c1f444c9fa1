"""Tools of commands that start other processes: the free memory, a process's own stdout, and why a process ended."""

import os
import signal
from pathlib import Path
from typing import TextIO


def available() -> float:
    """Return the free memory, in MiB."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 2**10
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20


def own_stdout() -> TextIO:
    """Return a stdout for this process's own lines alone; a framework's lines go to stderr from now on."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return lines


def why_it_ended(status: int, said: str) -> str:
    """Describe in one line why a process ended too early; status: its exit code; said: its stderr."""
    last = (said.strip().splitlines() or [""])[-1].strip()
    if status >= 0:
        return last or f"the process ended with {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else "a signal"
    why = f"the process was ended by signal {-status} ({name})"
    return f"{why}; memory may have run out" if -status == signal.SIGKILL else f"{why}; {last}" if last else why
