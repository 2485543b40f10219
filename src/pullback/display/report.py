"""One self-contained HTML page: no scripts, nothing loaded, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

__all__ = ["Check", "Page", "below"]

STYLE = """
:root { color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1c2430; --soft: #5b6675; --rule: #dfe3e9;
  --a: #2568b8; --b: #cf5b10; --c: #7a4fc0; --good: #1b7f4b; --bad: #c0262d; --tint: #e8f4ee; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #12161c; --card: #1b2129; --ink: #e6eaf0; --soft: #9aa6b5; --rule: #323b47;
  --a: #6fb1f7; --b: #ff9a57; --c: #b999f5; --good: #5fd39a; --bad: #ff7b7b; --tint: #1b2f27; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 8px; }
h2 { font-size: 1.3rem; margin: 44px 0 4px; }
h3 { font-size: 1rem; margin: 0 0 6px; }
p { margin: 0 0 12px; max-width: 72ch; }
.lead, figcaption, .legend, .note { color: var(--soft); }
.verdict { display: inline-block; padding: 4px 14px; border-radius: 99px; font-weight: 600;
  color: var(--good); background: var(--tint); border: 1px solid currentColor; }
.verdict.failed { color: var(--bad); background: none; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 20px 0 0; padding: 0; }
.facts div, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.facts div { padding: 12px 16px; }
.facts dt { color: var(--soft); font-size: .85rem; }
.facts dd { margin: 0; font-size: 1.35rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr));
  gap: 16px; margin-top: 14px; align-items: start; }
.card { margin: 0; padding: 16px 18px; min-width: 0; }
.card > svg { display: block; width: 100%; height: auto; }
figcaption { font-size: .88rem; margin-top: 8px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: .85rem; margin: 0 0 6px; }
.swatch { width: 24px; height: 8px; margin-right: 6px; vertical-align: middle; }
svg text { fill: var(--soft); font-size: 12.5px; font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .axis { stroke: var(--soft); stroke-width: 1; fill: none; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .a { stroke: var(--a); } svg .b { stroke: var(--b); } svg .c { stroke: var(--c); }
svg .faint { stroke-width: 1; opacity: .35; } svg .dashed { stroke-dasharray: 6 4; }
svg .points { stroke-width: 5; stroke-linecap: round; }
svg .bar { fill: var(--a); }
svg .block { fill: var(--a); fill-opacity: .55; stroke: var(--card); stroke-width: .6; }
svg .block.out { fill: var(--b); } svg .block.scratch { fill: var(--soft); }
.pixels { display: block; width: 100%; image-rendering: pixelated; }
.framed { border: 1px solid var(--rule); margin-bottom: 10px; }
.tiles { display: grid; gap: 6px; }
.tiles.small { grid-template-columns: repeat(auto-fill, minmax(42px, 1fr)); }
.tiles.large { grid-template-columns: repeat(5, 1fr); gap: 10px; }
.tile { border: 1px solid var(--rule); border-radius: 5px; padding: 3px; text-align: center;
  font-size: .8rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tile.marked { border: 2px solid var(--bad); padding: 2px; color: var(--bad); font-weight: 600; }
.side { display: grid; grid-template-columns: minmax(80px, 1fr) minmax(200px, 3fr); gap: 16px; }
.side h4 { margin: 0 0 4px; font-size: .85rem; font-weight: 500; color: var(--soft); }
.scale-row { display: flex; align-items: center; gap: 8px; margin: 8px 0 0; font-size: .82rem;
  color: var(--soft); font-variant-numeric: tabular-nums; }
.scale { height: 10px; flex: 1; min-width: 0; border: 1px solid var(--rule); }
.wide { overflow-x: auto; margin-top: 14px; padding: 4px 18px; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: 8px 14px 8px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
td.ok, td.failed { font-weight: 600; white-space: nowrap; }
td.ok { color: var(--good); } td.failed { color: var(--bad); }
code { font: .85em/1.5 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { .ink { filter: invert(1); } }
@media (max-width: 560px) { main { padding: 20px 12px 48px; } h1 { font-size: 1.5rem; }
  .card { padding: 12px; } .facts { grid-template-columns: 1fr 1fr; }
  table { font-size: .84rem; } th, td { padding-right: 10px; } td > span { display: none; } }
@media print { body { background: none; } .card, .facts div { break-inside: avoid; } }
"""

VERDICTS = {
    True: '<td class="ok">✓<span> passed</span></td>',
    False: '<td class="failed">✗<span> failed</span></td>',
}
SHORT = 10  # characters of a table's cell that stay on one line


class Check(NamedTuple):
    """A claim, what was measured, what was asked for, and whether it held."""

    name: str
    measured: str
    bound: str
    passed: bool


def below(name: str, value: float, bound: float) -> Check:
    """The check that `value` is at most `bound`; a NaN is not."""
    return Check(name, f"{value:.1e}", f"<= {bound:.0e}", bool(value <= bound))


class Page:
    """A page that grows from top to bottom; texts are escaped, pictures come from `drawing`."""

    def __init__(self, title: str, lead: str, refresh: float | None = None):
        self._title = title
        self._refresh = refresh  # seconds after which a browser loads the page again
        self._parts = [f"<h1>{escape(title)}</h1>", f'<p class="lead">{escape(lead)}</p>']

    def verdict(self, text: str, passed: bool) -> None:
        """The outcome in one line."""
        kind = "verdict" if passed else "verdict failed"
        self._parts.append(f'<p class="{kind}">{escape(text)}</p>')

    def facts(self, facts: dict[str, str]) -> None:
        """A row of large numbers with their names."""
        cells = (f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items())
        self._parts.append(f'<dl class="facts">{"".join(cells)}</dl>')

    def section(self, title: str, text: str = "") -> None:
        """A heading, and a sentence on what follows."""
        self._parts.append(f"<h2>{escape(title)}</h2>")
        if text:
            self._parts.append(f'<p class="note">{escape(text)}</p>')

    def figures(self, *figures: tuple[str, str, str]) -> None:
        """Figures side by side where there is room: (title, picture, caption) each."""
        cards = []
        for title, picture, caption in figures:
            below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
            cards.append(f'<figure class="card"><h3>{escape(title)}</h3>{picture}{below}</figure>')
        self._parts.append(f'<div class="cards">{"".join(cards)}</div>')

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str | bool]]) -> None:
        """A table; a truth value becomes "passed" or "failed", a text in `...` becomes code."""
        head = f"<thead><tr>{''.join(f'<th>{escape(h)}</th>' for h in heads)}</tr></thead>"
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
        whole = f"{head if heads else ''}<tbody>{body}</tbody>"
        self._parts.append(f'<div class="card wide"><table>{whole}</table></div>')

    def html(self) -> str:
        """The whole page."""
        again = "" if self._refresh is None else f"{self._refresh:g}"
        meta = f'<meta http-equiv="refresh" content="{again}">' if again else ""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"{meta}<title>{escape(self._title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
            + "\n".join(self._parts)
            + "\n</main></body></html>\n"
        )


def _cell(value: str | bool) -> str:
    if isinstance(value, bool):
        return VERDICTS[value]
    if value.startswith("`"):
        return f"<td><code>{escape(value.strip('`'))}</code></td>"
    kind = ' class="number"' if len(value) <= SHORT else ""
    return f"<td{kind}>{escape(value)}</td>"
