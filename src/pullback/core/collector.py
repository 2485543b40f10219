"""Python's garbage collector, put off while many objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

__all__ = ["paused_collector", "rare_collector"]

RARE = 1 << 18  # new objects until the next search: some tens of MB, and looked at in 20 ms
_lock = Lock()
_rare = 0  # blocks of `rare_collector` that threads are inside of
_usual = (0, 0, 0)  # thresholds outside of them


@contextmanager
def paused_collector() -> Iterator[None]:
    """No search for cycles in this block: each would look at all objects of a growing graph.

    >>> with paused_collector():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def rare_collector() -> Iterator[None]:
    """Few searches for cycles in this block, which may run what others have written.

    >>> before = gc.get_threshold()
    >>> with rare_collector():
    ...     gc.get_threshold()[0] >= before[0]
    True
    >>> gc.get_threshold() == before
    True
    """
    global _rare, _usual
    with _lock:
        if _rare == 0:
            _usual = gc.get_threshold()
            if 0 < _usual[0] < RARE:  # 0: no search at all
                gc.set_threshold(RARE, *_usual[1:])
        _rare += 1
    try:
        yield
    finally:
        with _lock:
            _rare -= 1
            if _rare == 0:
                gc.set_threshold(*_usual)
