"""A progress bar: bar, count, rate, time left, and one number to watch. It is drawn anew on one
line of a terminal (on standard error) or of a notebook's cell.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TextIO

__all__ = ["Progress"]

REDRAW = 0.1  # seconds between two drawings on a terminal
COLUMNS = 100  # of a notebook's cell, which has no size of its own
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
        # A notebook shows what goes to standard error as if something was wrong.
        usual = sys.stdout if _in_notebook(sys.stdout) else sys.stderr
        self._stream = usual if stream is None else stream
        self._notebook = _in_notebook(self._stream)
        on_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._live = self._notebook or on_terminal
        self._width = 0  # of the line that is drawn
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
        columns = COLUMNS if self._notebook else shutil.get_terminal_size().columns
        facts = self._facts()
        room = min(30, columns - len(self.label) - len(facts) - 6)
        bar = f"{self._bar(room)}  " if room >= 8 else ""
        line = f"{self.label}  {bar}{facts}"[: columns - 1]
        # Notebooks go back to the start of a line, but know no sequence that clears its rest.
        self._stream.write(f"\r{line.ljust(self._width)}" if self._notebook else f"\r{line}\x1b[K")
        self._width = len(line)
        self._stream.flush()

    def _bar(self, room: int) -> str:
        done = self.count * room // self.total if self.total else room
        full, empty = "━─" if "utf" in (self._stream.encoding or "").lower() else "#-"
        return full * done + empty * (room - done)


def _in_notebook(stream: object) -> bool:
    """Whether a stream is that of a notebook's kernel."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"
