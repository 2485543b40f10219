"""The numbers of `pullback bench jit` as tables and as a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.suites import ALL_WORKLOADS
from pullback.display.drawing import bars
from pullback.display.report import Page

__all__ = ["OURS", "Row", "aligned", "page", "summary", "tables"]

OURS = "pullback"


class Row(NamedTuple):
    """What came of one workload: a cell per library, and the physical floor in seconds."""

    workload: str
    cells: dict[str, dict[str, Any]]
    floor: float

    def value(self, library: str, field: str) -> float | None:
        """A number of a library, None where it failed or does not apply."""
        cell = self.cells.get(library, {})
        return None if "error" in cell else cell.get(field)

    def best_peer(self, field: str) -> float | None:
        """The least number among the others."""
        found = [self.value(n, field) for n in self.cells if n != OURS]
        return min((v for v in found if v is not None), default=None)

    def ratio(self, field: str) -> float | None:
        """Ours over the best peer's."""
        ours, best = self.value(OURS, field), self.best_peer(field)
        return ours / best if ours is not None and best else None

    def bar(self, field: str) -> float:
        """What the ratio may be."""
        return ALL_WORKLOADS[self.workload].bar if field == "seconds" else 1.0

    def passes(self, field: str) -> bool | None:
        """Whether the ratio is within its bar; None if there is no peer to compare with."""
        if "error" in self.cells[OURS]:
            return False
        ratio = self.ratio(field)
        if ratio is None:
            return None
        return ratio <= self.bar(field)


class Measure(NamedTuple):
    """One kind of number, and how to write it."""

    field: str
    title: str
    scale: float

    def text(self, value: float | None) -> str:
        return "" if value is None else f"{value * self.scale:.4g}"


MEASURES = (
    Measure("seconds", "time of a call, ms", 1e3),
    Measure("compile_seconds", "compile time, s", 1.0),
    Measure("peak_bytes", "peak memory of a call, MiB", 2.0**-20),
)


def _cells(row: Row, measure: Measure, names: Sequence[str]) -> list[str]:
    """One line of a table: name, number per library, ratio, bar, verdict, floor."""
    found = [row.workload]
    for name in names:
        failed = "error" in row.cells.get(name, {})
        found.append("failed" if failed else measure.text(row.value(name, measure.field)))
    ratio, passes = row.ratio(measure.field), row.passes(measure.field)
    found.append("" if ratio is None else f"{ratio:.2f}")
    found.append(f"<= {row.bar(measure.field)}")
    found.append({True: "ok", False: "MISSED", None: ""}[passes])
    if measure.field == "seconds":
        found.append(measure.text(row.floor))
    return found


def _heads(measure: Measure, names: Sequence[str]) -> list[str]:
    floor = ["floor"] if measure.field == "seconds" else []
    return [measure.title, *names, "ratio", "bar", "", *floor]


def _failures(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    return [(r.workload, n, c["error"]) for r in rows for n, c in r.cells.items() if "error" in c]


def summary(row: Row) -> str:
    """One line on a workload that has just been measured."""
    if "error" in row.cells[OURS]:
        return f"{row.workload}: FAILED, {row.cells[OURS]['error']}"
    parts = []
    for measure in MEASURES:
        ratio = row.ratio(measure.field)
        if ratio is not None:
            verdict = "" if row.passes(measure.field) else " MISSED"
            parts.append(f"{measure.title.split(',')[0]} {ratio:.2f}{verdict}")
    return f"{row.workload}: {', '.join(parts) or 'nobody to compare with'}"


def tables(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Everything as text: one table per measure, then what failed."""
    parts = []
    for measure in MEASURES:
        lines = [_heads(measure, names), *[_cells(r, measure, names) for r in rows]]
        parts.append(aligned(lines))
    failed = [f"failed: {w}, {n}: {text}" for w, n, text in _failures(rows)]
    return "\n\n".join([*parts, *(["\n".join(failed)] if failed else [])])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Cells in columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    pad: list[Callable[[str, int], str]] = [str.ljust, *[str.rjust] * (len(widths) - 1)]
    return "\n".join(
        "  ".join(p(c, w) for p, c, w in zip(pad, line, widths, strict=True)).rstrip()
        for line in lines
    )


# -- the page --------------------------------------------------------------------------------------


def page(
    rows: Sequence[Row],
    names: Sequence[str],
    facts: dict[str, str],
    left_out: Mapping[str, str] | None = None,
) -> str:
    """Everything as an HTML page with bars; `left_out` are libraries that were not asked."""
    result = Page(
        "Side by side",
        "The same computations, derivatives included, compiled by each library, checked against"
        " each other and timed in turns. A ratio is ours over the best peer's; less is better.",
    )
    missed = [r.workload for r in rows if r.passes("seconds") is False]
    judged = [r for r in rows if r.passes("seconds") is not None]
    result.verdict(f"{len(judged) - len(missed)} of {len(judged)} within their bars", not missed)
    result.facts(facts)
    for measure in MEASURES:
        result.section(measure.title.capitalize())
        result.table(_heads(measure, names), [_cells(r, measure, names) for r in rows])
        result.figures(*[_figure(r, measure, names) for r in rows])
    if left_out:
        result.section("Who was left out")
        result.table(("library", "why"), list(left_out.items()))
    if failures := _failures(rows):
        result.section("What failed")
        result.table(("workload", "library", "why"), failures)
    return result.html()


def _figure(row: Row, measure: Measure, names: Sequence[str]) -> tuple[str, str, str]:
    found = {n: row.value(n, measure.field) for n in names}
    drawn = {n: v * measure.scale for n, v in found.items() if v is not None}
    picture = "<p>No library has a number here.</p>"
    if any(drawn.values()):
        picture = bars(list(drawn), list(drawn.values()), "", measure.title)
    ratio = row.ratio(measure.field)
    caption = "" if ratio is None else f"ratio {ratio:.2f}, bar {row.bar(measure.field)}"
    failed = [n for n in names if "error" in row.cells.get(n, {})]
    note = f"failed: {', '.join(failed)}" if failed else ""
    return ALL_WORKLOADS[row.workload].title, picture, "; ".join(filter(None, [caption, note]))
