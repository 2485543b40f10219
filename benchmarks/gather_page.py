"""The numbers of `pullback bench gather` as tables and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.gather_cases import Bar
from benchmarks.gather_rivals import OURS, PEERS
from benchmarks.scores import aligned
from pullback.display.drawing import bars
from pullback.display.report import Page

__all__ = ["Row", "Stability", "page", "summary", "tables"]

ULP = 4.0  # the error that we allow ourselves, relative to the sum of magnitudes


class Row(NamedTuple):
    """What came of one case: a cell per contender, and the physical floor in seconds."""

    name: str
    title: str
    indices: int
    cells: dict[str, dict[str, Any]]
    floor: float
    bar: Bar

    def value(self, name: str, field: str) -> float | None:
        """A number of a contender, None where it failed or did not take part."""
        return self.cells.get(name, {}).get(field)

    def best_peer(self, field: str = "seconds") -> float | None:
        """The least number among the peers."""
        found = [self.value(n, field) for n in PEERS]
        return min((v for v in found if v is not None), default=None)

    def ratio(self, name: str) -> float | None:
        """The time of one of ours over the best peer's."""
        ours, best = self.value(name, "seconds"), self.best_peer()
        return ours / best if ours is not None and best else None

    def over_floor(self) -> float | None:
        """Our best time over the floor."""
        found = [self.value(n, "seconds") for n in OURS[:2]]
        return min((v for v in found if v is not None), default=float("nan")) / self.floor

    def passes(self) -> bool | None:
        """Whether the time is within every bar; None if there is no peer to compare with."""
        if "error" in self.cells[OURS[0]]:
            return False
        limits = [(self.ratio(OURS[0]), self.bar.ratio), (self.ratio(OURS[1]), self.bar.planned)]
        limits.append((self.over_floor(), self.bar.floor))
        judged = [v <= bar for v, bar in limits if v is not None and bar is not None]
        return all(judged) if judged else None

    def accurate(self) -> bool:
        """Whether ours is as accurate as promised, and no worse than the best peer."""
        ours = [self.value(n, "ulp") for n in OURS]
        worst = max((v for v in ours if v is not None), default=float("inf"))
        best = self.best_peer("ulp")
        return worst <= ULP and (best is None or worst <= max(best, 0.5))

    def record(self) -> dict[str, Any]:
        """All numbers, for a file."""
        ratios = {n: self.ratio(n) for n in OURS}
        passed = {"time": self.passes(), "accuracy": self.accurate()}
        return {**self._asdict(), "bar": self.bar._asdict(), "ratios": ratios, "passed": passed}


class Stability(NamedTuple):
    """The bit patterns that one of ours gave in a case."""

    case: str
    name: str
    runs: int
    digests: list[str]

    @property
    def single(self) -> bool:
        """Whether there was only one."""
        return len(self.digests) == 1

    def text(self) -> str:
        found = self.digests[0] if self.single else f"{len(self.digests)} patterns"
        return f"{found}{'' if self.single else ' MISSED'}"


def _number(value: float | None, scale: float = 1.0, digits: int = 4) -> str:
    return "" if value is None else f"{value * scale:.{digits}g}"


def _names(rows: Sequence[Row]) -> list[str]:
    return list(rows[0].cells)


def _verdict(passed: bool | None) -> str:
    return {True: "ok", False: "MISSED", None: ""}[passed]


def _times(row: Row) -> list[str]:
    cells = [_number(row.value(n, "seconds"), 1e3) for n in row.cells]
    failed = [
        "failed" if "error" in c else t for c, t in zip(row.cells.values(), cells, strict=True)
    ]
    ratios = [_number(row.ratio(n), digits=3) for n in OURS[:2]]
    over = [_number(row.floor, 1e3), _number(row.over_floor(), digits=3)]
    bars = f"<= {row.bar.ratio}"
    bars += f", plan <= {row.bar.planned}" if row.bar.planned else ""
    bars += f", floor <= {row.bar.floor}x" if row.bar.floor else ""
    return [row.title, f"{row.indices:,}", *failed, *ratios, bars, _verdict(row.passes()), *over]


def _time_heads(rows: Sequence[Row]) -> list[str]:
    tail = ["ratio", "ratio, plan", "bar", "", "floor", "over floor"]
    return ["ms", "indices", *_names(rows), *tail]


def _accuracies(row: Row, field: str) -> list[str]:
    verdict = [_verdict(row.accurate())] if field == "ulp" else []
    return [row.title, *[_number(row.value(n, field), digits=3) for n in row.cells], *verdict]


def _accuracy_heads(rows: Sequence[Row], field: str) -> list[str]:
    return [field, *_names(rows), *([""] if field == "ulp" else [])]


def _failures(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    return [(r.name, n, c["error"]) for r in rows for n, c in r.cells.items() if "error" in c]


def summary(row: Row) -> str:
    """One line on a case that has just been measured."""
    if "error" in row.cells[OURS[0]]:
        return f"{row.name}: FAILED, {row.cells[OURS[0]]['error']}"
    plain, planned = (row.ratio(n) for n in OURS[:2])
    parts = [f"ratio {_number(plain, digits=3)}"] if plain is not None else []
    parts += [f"with plan {_number(planned, digits=3)}"] if planned is not None else []
    parts.append(f"{_number(row.over_floor(), digits=3)} x floor")
    parts.append(f"error {_number(row.value(OURS[0], 'ulp'), digits=3)} ulp")
    missed = " MISSED" if row.passes() is False or not row.accurate() else ""
    return f"{row.name}: {', '.join(parts)}{missed}"


def tables(rows: Sequence[Row], stable: Sequence[Stability]) -> str:
    """Everything as text: times, accuracy, bits, and what failed."""
    parts = [aligned([_time_heads(rows), *[_times(r) for r in rows]])]
    for field in ("ulp", "relative"):
        heads = _accuracy_heads(rows, field)
        parts.append(aligned([heads, *[_accuracies(r, field) for r in rows]]))
    if stable:
        lines = [["same bits", "", "runs", "digest"]]
        lines += [[s.case, s.name, str(s.runs), s.text()] for s in stable]
        parts.append(aligned(lines))
    failed = [f"failed: {case}, {name}: {text}" for case, name, text in _failures(rows)]
    return "\n\n".join([*parts, *(["\n".join(failed)] if failed else [])])


# -- the page --------------------------------------------------------------------------------------


def page(rows: Sequence[Row], stable: Sequence[Stability], facts: dict[str, str]) -> str:
    """Everything as an HTML page with bars."""
    result = Page(
        "The gradient of x[indices]",
        "Sums of rows by index, ours and the peers', timed in turns on the same inputs. A ratio is"
        " ours over the best peer's; the floor is the time to move the bytes once.",
    )
    judged = [r for r in rows if r.passes() is not None]
    good = [r for r in judged if r.passes() and r.accurate()]
    bits = all(s.single for s in stable)
    result.verdict(f"{len(good)} of {len(judged)} within their bars", good == judged and bits)
    result.facts(facts)
    result.section("Time of a call, ms")
    result.table(_time_heads(rows), [_times(r) for r in rows])
    result.figures(*[_figure(r) for r in rows])
    result.section(
        "Accuracy",
        "The largest error against sums in float64, in units in the last place of the sum of"
        " magnitudes, and relative to the largest element.",
    )
    for field in ("ulp", "relative"):
        result.table(_accuracy_heads(rows, field), [_accuracies(r, field) for r in rows])
    if stable:
        result.section("Same bits", "Repeated under load, with several numbers of threads.")
        lines = [(s.case, s.name, str(s.runs), f"`{s.text()}`", s.single) for s in stable]
        result.table(("case", "form", "runs", "digest", ""), lines)
    if failures := _failures(rows):
        result.section("What failed")
        result.table(("case", "contender", "why"), failures)
    return result.html()


def _figure(row: Row) -> tuple[str, str, str]:
    found = {n: row.value(n, "seconds") for n in row.cells}
    drawn = {_short(n): v * 1e3 for n, v in found.items() if v is not None}
    drawn["floor"] = row.floor * 1e3
    picture = bars(list(drawn), list(drawn.values()), "", "ms")
    ratio = row.ratio(OURS[0])
    caption = "" if ratio is None else f"ratio {ratio:.2f}, bar {row.bar.ratio}"
    return row.title, picture, caption


def _short(name: str) -> str:
    """A name that fits under a bar."""
    shorter = {"pullback": "ours", "plan": "+plan", "backward": "", ".torch": "/torch", ", ": ""}
    for long, short in shorter.items():
        name = name.replace(long, short)
    return name.strip(" _")
