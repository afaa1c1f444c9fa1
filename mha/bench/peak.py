"""The peak memory of this process, between two moments."""

import contextlib
import ctypes
import re
import sys
from pathlib import Path


def return_at_once() -> None:
    """Make freed memory of large arrays go back to the system at once, if it can, so that all use is counted."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc alone has it
        ctypes.CDLL(None).mallopt(-3, 2**18)  # M_MMAP_THRESHOLD, which grows by itself where nobody sets it


def reset_peak() -> int:
    """Reset the peak of the process's memory, if the system can, and return the memory now, or else the old peak."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)  # freed memory that it keeps would be used again without being counted
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except (OSError, IndexError):
        return peak()


def peak() -> int:
    """The peak memory of the process, in bytes."""
    try:
        return _status("VmHWM")
    except (OSError, IndexError):  # a system without /proc, or without that line in it
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most


def _status(field: str) -> int:
    return 1024 * int(re.findall(rf"{field}:\s*(\d+) kB", Path("/proc/self/status").read_text())[0])
