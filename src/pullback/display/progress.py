"""A progress bar on standard error: bar, count, rate, time left, and one number to watch."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TextIO

__all__ = ["Progress"]

REDRAW = 0.1  # seconds between two drawings on a terminal
LINES = 4  # lines that a whole run leaves where there is no terminal


class Progress:
    """Draw how far `total` steps have come; on a file or pipe write a few plain lines instead.

    >>> import io
    >>> out = io.StringIO()
    >>> with pb.train.Progress(2, "fit", stream=out) as progress:
    ...     for loss in (0.5, 0.25):
    ...         progress.advance(f"loss {loss}")
    >>> print(out.getvalue().splitlines()[-1].split(",")[0])
    fit  2/2
    """

    def __init__(self, total: int, label: str, stream: TextIO | None = None):
        self.total = total
        self.label = label
        self.count = 0
        self.note = ""
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._started = self._drawn = time.perf_counter()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._draw()
            self._stream.write("\n")
            self._stream.flush()

    def advance(self, note: str = "") -> None:
        """Count one step; `note` is the number to watch."""
        self.count += 1
        self.note = note
        now = time.perf_counter()
        if self._live:
            if now - self._drawn >= REDRAW:
                self._drawn = now
                self._draw()
        elif self.count * LINES // self.total > (self.count - 1) * LINES // self.total:
            self._stream.write(f"{self.label}  {self._facts()}\n")
            self._stream.flush()

    def _facts(self) -> str:
        elapsed = max(time.perf_counter() - self._started, 1e-9)
        rate = self.count / elapsed
        left = (self.total - self.count) / rate if rate else 0.0
        parts = [f"{self.count}/{self.total}", f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s"]
        parts.append(f"{left:.0f} s left" if self.count < self.total else f"{elapsed:.1f} s")
        return ", ".join([*parts, self.note] if self.note else parts)

    def _draw(self) -> None:
        columns = shutil.get_terminal_size().columns
        facts = self._facts()
        room = min(30, columns - len(self.label) - len(facts) - 6)
        bar = f"{self._bar(room)}  " if room >= 8 else ""
        line = f"{self.label}  {bar}{facts}"[: columns - 1]
        self._stream.write(f"\r{line}\x1b[K")
        self._stream.flush()

    def _bar(self, room: int) -> str:
        done = self.count * room // self.total if self.total else room
        full, empty = "━─" if "utf" in (self._stream.encoding or "").lower() else "#-"
        return full * done + empty * (room - done)
