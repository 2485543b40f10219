"""Numbers of a run: a CSV file that grows, and a page that is drawn anew while it does."""

from __future__ import annotations

import csv
import io
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.display.drawing import Series, curves
from pullback.display.report import Page

__all__ = ["Log"]

SHORTEST_REFRESH = 2.0  # seconds: a page that reloads more often can't be read
MOST_POINTS = 600  # of a drawn curve: more than the picture has pixels to show them by


class Log:
    """Rows of numbers in `folder/log.csv`, and `folder/report.html` with a curve for each column.

    A row is on disk when `write` returns. The page is drawn anew at most once in `redraw` seconds,
    and at the end. A log goes on where an earlier run of the same folder left off: rows at or after
    the first step that is written are dropped.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with pb.train.Log(folder) as log:
    ...     log.write(0, loss=pb.tensor(2.0))
    ...     log.write(1, loss=1.0, accuracy=0.5)
    >>> [row["loss"] for row in pb.train.Log(folder).rows]
    [2.0, 1.0]
    """

    def __init__(self, folder: str | os.PathLike[str], title: str = "Run", redraw: float = 5.0):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.title, self.redraw = title, redraw
        self.rows: list[dict[str, float]] = _read(self.path)
        self._names: list[str] | None = None  # the columns of the file, once this run has written
        self._earlier = max((row.get("seconds", 0.0) for row in self.rows), default=0.0)
        self._started = time.perf_counter() - self._earlier
        self._drawn = float("-inf")

    @property
    def path(self) -> Path:
        return self.folder / "log.csv"

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        self.draw(ended=True)

    def write(self, step: int, **values: Any) -> None:
        """Add a row; values are numbers or arrays of one element."""
        if self._names is None:  # the clock goes on from the last row that stays
            kept = [row.get("seconds", 0.0) for row in self.rows if row["step"] < step]
            self._started += self._earlier - (kept[-1] if kept else 0.0)
        seconds = round(time.perf_counter() - self._started, 3)
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)):
            raise DTypeError(f"Log.write: the step must be an integer, got {step!r}.")
        numbers = {name: _number(name, value) for name, value in values.items()}
        row = {"step": int(step), "seconds": seconds, **numbers}
        if self._names is None or any(name not in self._names for name in row):
            self.rows = [*(old for old in self.rows if old["step"] < step), row]
            self._names = list(dict.fromkeys(name for old in self.rows for name in old))
            self._replace(self.path, _text(self._names, self.rows, header=True))
        else:
            self.rows.append(row)
            with open(self.path, "a", newline="", encoding="utf-8") as file:
                file.write(_text(self._names, [row], header=False))
        if time.perf_counter() - self._drawn >= self.redraw:
            self.draw()

    def draw(self, ended: bool = False) -> None:
        """Write the page. Unless the run has `ended`, a browser loads it again by itself."""
        self._drawn = time.perf_counter()
        last = self.rows[-1] if self.rows else {}
        lead = f"{len(self.rows)} rows, {last.get('seconds', 0.0):.1f} s"
        soon = max(self.redraw, SHORTEST_REFRESH)
        page = Page(self.title, f"{lead}." if ended else f"{lead} so far.", None if ended else soon)
        page.facts({name: f"{value:.6g}" for name, value in last.items()})
        names = dict.fromkeys(name for row in self.rows for name in row)
        drawn = [name for name in names if name not in ("step", "seconds")]
        page.figures(*[(name, curves([self._series(name)], "step", name), "") for name in drawn])
        self._replace(self.folder / "report.html", page.html())

    @staticmethod
    def _replace(path: Path, text: str) -> None:
        unfinished = path.with_name(f".{path.name}")
        with open(unfinished, "w", newline="", encoding="utf-8") as file:
            file.write(text)
        unfinished.replace(path)

    def _series(self, name: str) -> Series:
        rows = [row for row in self.rows if name in row]
        rows = rows[:: max(1, len(rows) // MOST_POINTS)]
        return Series(name, [row["step"] for row in rows], [row[name] for row in rows])


def _number(name: str, value: Any) -> float:
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise DTypeError(f"Log.write: {name} must be a number, got {value!r}.")
    if getattr(value, "size", 1) != 1:
        raise ShapeError(f"Log.write: {name} must be one number, got shape {value.shape}.")
    return float(value)


def _text(names: list[str], rows: list[dict[str, float]], header: bool) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _read(path: Path) -> list[dict[str, float]]:
    """The rows of an earlier run; a last line that was cut off is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    whole = lines if not lines or lines[-1].endswith("\n") else lines[:-1]
    found = csv.DictReader(whole)
    return [{k: float(v) for k, v in r.items() if v} | {"step": int(r["step"])} for r in found]
