"""The memory of a program as a page: a map of bytes over steps, and what is there at the peak."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pullback.display.drawing import Series, curves
from pullback.display.report import Page
from pullback.display.units import bytes_text

__all__ = ["MemoryTimeline", "Rung"]

WIDTH, HEIGHT, LEFT = 1000.0, 360.0, 84.0
MOST_ROWS = 24  # of a table
SHARES = (1.0, 0.75, 0.5, 0.4, 0.3, 0.2, 0.1)  # of the largest peak, for which budgets are listed


class TimelineDrawn(Protocol):
    """What is drawn: see `compile.schedule.timeline`."""

    @property
    def steps(self) -> list[str]: ...
    @property
    def blocks(self) -> Sequence[Any]: ...
    @property
    def arena_nbytes(self) -> int: ...
    @property
    def out_nbytes(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def live_bytes(self) -> list[int]: ...


class Rung(NamedTuple):
    """A way to run the program: what a call allocates, and its time beside the fastest way's.

    The time is the compiler's estimate.
    """

    peak_bytes: int
    time: float


class MemoryTimeline:
    """What a compiled program keeps in memory, step by step: print it, or look at it in a notebook.

    `peak_bytes` is what a call allocates: an arena for values that are dropped, and the outputs.
    `live_bytes` are those that are needed at each step; the arena may be larger by gaps. Arguments
    belong to the caller, and count `input_bytes`. `ladder` are the ways to run the function in
    less, for `pb.jit(f, memory=...)`; they are looked for when it is read.
    """

    def __init__(
        self,
        name: str,
        timeline: TimelineDrawn,
        input_bytes: int,
        ways: Callable[[], Sequence[tuple[int, float]]],
    ):
        self.name = name
        self._ways = ways
        self.steps = list(timeline.steps)
        self.blocks = list(timeline.blocks)
        self.arena_bytes, self.output_bytes = timeline.arena_nbytes, timeline.out_nbytes
        self.peak_bytes = timeline.peak_bytes
        self.input_bytes = input_bytes
        self.live_bytes = timeline.live_bytes

    @cached_property
    def ladder(self) -> list[Rung]:
        """The fastest way for every budget, from the one that keeps most to the least possible."""
        return [Rung(*way) for way in self._ways()]

    def within(self, budget: int) -> Rung | None:
        """The way that a budget of so many bytes leads to; None if there is none."""
        return next((r for r in self.ladder if r.peak_bytes <= budget), None)

    @property
    def peak_step(self) -> int:
        """The step at which most bytes are needed; the first of several."""
        return self.live_bytes.index(max(self.live_bytes)) if self.steps else 0

    @property
    def at_peak(self) -> list[Any]:
        """The blocks that live at that step, the largest first."""
        k = self.peak_step
        return sorted((b for b in self.blocks if b.start <= k <= b.stop), key=lambda b: -b.nbytes)

    def __repr__(self) -> str:
        lines = [
            f"{self.name}: {self.peak_bytes} bytes, {self.arena_bytes} of them dropped at the end,"
            f" {self.output_bytes} outputs; arguments {self.input_bytes}"
        ]
        for k, (label, live) in enumerate(zip(self.steps, self.live_bytes, strict=True)):
            mark = "  <- peak" if k == self.peak_step else ""
            lines.append(f"{k:5}  {live:>14}  {label}{mark}")
        return "\n".join(lines)

    def html(self) -> str:
        """A page that needs nothing else."""
        page = Page(f"Memory of {self.name}", "What lives when, as the compiler has planned it.")
        page.facts(
            {
                "allocated by a call": bytes_text(self.peak_bytes),
                "of that, dropped at its end": bytes_text(self.arena_bytes),
                "outputs": bytes_text(self.output_bytes),
                "arguments": bytes_text(self.input_bytes),
                "steps": str(len(self.steps)),
            }
        )
        if self.steps:
            caption = "Orange: outputs. Grey: scratch of one step. Dashed: where most is needed."
            page.figures(("Addresses over steps", _map(self), caption))
            self._draw_ladder(page)
            page.section(f"At the peak: step {self.peak_step}", self.steps[self.peak_step])
            rows = [
                (f"`{b.name}`", bytes_text(b.nbytes), b.area, f"{b.start} to {b.stop}")
                for b in self.at_peak
            ]
            page.table(("value", "size", "area", "steps"), rows[:MOST_ROWS])
            if len(rows) > MOST_ROWS:
                page.section("", f"and {len(rows) - MOST_ROWS} smaller ones")
            page.section("Steps", "With the bytes that are needed at each, those that need most.")
            order = sorted(range(len(self.steps)), key=lambda k: -self.live_bytes[k])[:MOST_ROWS]
            steps = [(str(k), f"`{self.steps[k]}`", bytes_text(self.live_bytes[k])) for k in order]
            page.table(("step", "kernel", "needed"), steps)
        return page.html()

    def _draw_ladder(self, page: Page) -> None:
        """What less memory costs."""
        most = self.ladder[0].peak_bytes
        text = "With pb.jit(f, memory=bytes): values are dropped and computed again."
        page.section("What each budget costs in time", text)
        if len(self.ladder) > 1:
            x = [100 * r.peak_bytes / most for r in self.ladder]
            ways = Series("", x, [r.time for r in self.ladder], "a")
            here = Series("", [100 * self.peak_bytes / most], [self._time_here()], "b points")
            picture = curves([ways, here], "% of the largest peak", "time, estimated")
            live = [100 * n / most for n in self.live_bytes]
            needed = Series("", list(range(len(live))), live, "a")
            page.figures(
                ("Time over memory", picture, "The point: as compiled here."),
                (
                    "Bytes that are needed",
                    curves([needed], "step", "% of the largest peak"),
                    "Without gaps between values.",
                ),
            )
        rows = []
        for share in SHARES:
            way = self.within(int(share * most))
            found = (bytes_text(way.peak_bytes), f"{way.time:.2f} x") if way else ("impossible", "")
            rows.append((f"{share:.0%}", bytes_text(share * most), *found))
        least = self.ladder[-1]
        size = bytes_text(least.peak_bytes)
        rows.append((f"{least.peak_bytes / most:.1%}", size, size, f"{least.time:.2f} x"))
        page.table(("budget", "bytes", "peak", "time"), rows)

    def _time_here(self) -> float:
        way = self.within(self.peak_bytes)
        return 1.0 if way is None else way.time

    _repr_html_ = html

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page."""
        Path(path).write_text(self.html(), encoding="utf-8")


def _map(memory: MemoryTimeline) -> str:
    """A rectangle for each block: steps to the right, addresses upwards, outputs on top."""
    across = (WIDTH - LEFT) / len(memory.steps)
    up = HEIGHT / max(1, memory.peak_bytes)
    parts = []
    for b in memory.blocks:
        base = memory.arena_bytes if b.area == "out" else 0
        y = HEIGHT - (base + b.offset + b.nbytes) * up
        kind = "out" if b.area == "out" else "scratch" if b.name.startswith("scratch") else ""
        title = f"{b.name}, {bytes_text(b.nbytes)}, steps {b.start} to {b.stop}"
        parts.append(
            f'<rect class="block {kind}" x="{LEFT + b.start * across:.2f}" y="{y:.2f}"'
            f' width="{(b.stop - b.start + 1) * across:.2f}"'
            f' height="{max(b.nbytes * up, 0.3):.2f}">'
            f"<title>{escape(title)}</title></rect>"
        )
    at = LEFT + (memory.peak_step + 0.5) * across
    parts.append(f'<path class="line c dashed" d="M{at:.1f} 0V{HEIGHT}"/>')
    parts.append(f'<path class="axis" d="M{LEFT} 0V{HEIGHT}H{WIDTH}"/>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        text = bytes_text(round(memory.peak_bytes * share))
        y = min(max(HEIGHT * (1 - share) + 4, 10), HEIGHT)
        parts.append(f'<text x="{LEFT - 6}" y="{y:.1f}" text-anchor="end">{text}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT + 18}">step 0</text>')
    last = f"step {len(memory.steps) - 1}"
    parts.append(f'<text x="{WIDTH}" y="{HEIGHT + 18}" text-anchor="end">{last}</text>')
    box = f'viewBox="0 0 {WIDTH:.0f} {HEIGHT + 26:.0f}"'
    return f'<svg {box} role="img" aria-label="addresses over steps">{"".join(parts)}</svg>'
