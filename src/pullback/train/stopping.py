"""When to stop: no more improvement, or somebody pressed Ctrl-C."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["EarlyStopping", "Interrupt"]


class EarlyStopping:
    """True once a value has not improved by `min_delta` for `patience` updates.

    >>> stop = pb.train.EarlyStopping(patience=2)
    >>> [stop.update(loss) for loss in (3.0, 2.0, 2.5, 2.1)]
    [False, False, False, True]
    >>> stop.best
    2.0
    """

    def __init__(self, patience: int, min_delta: float = 0.0, maximize: bool = False):
        self.patience, self.min_delta, self.maximize = patience, min_delta, maximize
        self.best: float | None = None
        self.improved = False
        self.waited = 0

    def update(self, value: Any) -> bool:
        """Take in the value of one more evaluation; NaN is no improvement."""
        now = float(value)
        gain = None if self.best is None else (now - self.best) * (1 if self.maximize else -1)
        self.improved = now == now and (gain is None or gain > self.min_delta)
        if self.improved:
            self.best, self.waited = now, 0
        else:
            self.waited += 1
        return self.waited >= self.patience


class Interrupt:
    """Inside the block the first Ctrl-C sets `requested`, and the loop may end where it likes; the
    second raises `KeyboardInterrupt` at once.

    >>> with pb.train.Interrupt() as interrupt:
    ...     for step in range(3):
    ...         if interrupt.requested:
    ...             break
    >>> step
    2
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
