"""The kernels of a call as a page: when each ran, and which took longest."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Protocol

from pullback.display.report import Page
from pullback.display.units import bytes_text, seconds_text

__all__ = ["page"]

WIDTH, HEIGHT, LEFT = 1000.0, 34.0, 120.0  # of a row of the timeline, and of its name
MOST_ROWS = 60  # of the table


class ProfileDrawn(Protocol):
    """What is drawn: see `profiling`."""

    name: str
    seconds: float
    bandwidth: float
    kernels: list[Any]

    @property
    def rows(self) -> list[Any]: ...
    @property
    def outside(self) -> float: ...


def page(profile: ProfileDrawn) -> str:
    """A page that needs nothing else."""
    made = Page(f"Profile of {profile.name}", "Each kernel with its time and the bytes it moves.")
    inside = sum(k.seconds for k in profile.kernels)
    floor = sum(k.nbytes for k in profile.kernels) / profile.bandwidth
    made.facts(
        {
            "in all": seconds_text(profile.seconds),
            "in kernels": seconds_text(inside),
            "to move their bytes": seconds_text(floor),
            "bandwidth of a copy": f"{bytes_text(profile.bandwidth)}/s",
            "kernels run": str(len(profile.kernels)),
        }
    )
    if profile.kernels:
        made.figures(("Timeline", _timeline(profile), "Point at a kernel to see what it is."))
    rows = [
        (
            f"`{r.name}`",
            r.program,
            str(r.calls),
            seconds_text(r.seconds),
            bytes_text(r.nbytes),
            f"{r.share:.0%}",
        )
        for r in profile.rows
    ]
    made.section("By kernel", "The floor is the time in which a copy would move the same bytes.")
    made.table(("kernel", "of", "calls", "time", "bytes", "floor / time"), rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        made.section("", f"and {len(rows) - MOST_ROWS} quicker ones")
    return made.html()


def _timeline(profile: ProfileDrawn) -> str:
    """A row for each program, a rectangle for each kernel; the darker, the nearer to the floor."""
    programs: Sequence[str] = list(dict.fromkeys(k.program for k in profile.kernels))
    across = (WIDTH - LEFT) / max(profile.seconds, 1e-12)
    parts = []
    for row, program in enumerate(programs):
        y = row * (HEIGHT + 8)
        middle = y + HEIGHT / 2 + 4
        parts.append(
            f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{escape(program[:16])}</text>'
        )
        parts.append(f'<path class="grid" d="M{LEFT} {y + HEIGHT}H{WIDTH}"/>')
        for k in (k for k in profile.kernels if k.program == program):
            share = k.nbytes / profile.bandwidth / k.seconds if k.seconds else 0.0
            title = f"{k.name}: {seconds_text(k.seconds)}, {bytes_text(k.nbytes)}, {share:.0%}"
            parts.append(
                f'<rect class="bar" fill-opacity="{0.25 + 0.75 * min(share, 1.0):.2f}"'
                f' x="{LEFT + k.began * across:.2f}" y="{y}" height="{HEIGHT}"'
                f' width="{max(k.seconds * across, 0.4):.2f}"><title>{escape(title)}</title></rect>'
            )
    bottom = len(programs) * (HEIGHT + 8)
    parts.append(f'<text x="{LEFT}" y="{bottom + 12}">0</text>')
    end = seconds_text(profile.seconds)
    parts.append(f'<text x="{WIDTH}" y="{bottom + 12}" text-anchor="end">{end}</text>')
    box = f'viewBox="0 0 {WIDTH:.0f} {bottom + 20:.0f}"'
    return f'<svg {box} role="img" aria-label="kernels over time">{"".join(parts)}</svg>'
