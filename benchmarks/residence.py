"""The memory of this process, as the system counts it."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from pathlib import Path

__all__ = ["forget_peak", "peak", "settled"]

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def settled() -> int:
    """Give free memory back to the system, as far as it can be done, and return what is in use."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def _status(field: str) -> int:
    """A line of the kernel's account of this process, in bytes; elsewhere the peak so far."""
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def peak() -> int:
    """The most bytes that were in use since `forget_peak`."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Let the peak start again from what is in use now, where the system can do that."""
    if CLEAR.exists():
        CLEAR.write_text("5")
