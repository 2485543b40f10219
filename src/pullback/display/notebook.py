"""What a notebook shows of arrays and models, as HTML that follows the notebook's own colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

__all__ = ["Outline", "array_html", "outline_html"]

SOFT = "opacity:.65"
INSIDE = "margin-left:1.4em"
OPEN_DEPTH = 1  # levels that are open at first


class Outline(NamedTuple):
    """A thing with parts: what it is called, what it is, and the parts in their order."""

    name: str
    kind: str
    facts: str
    parts: Sequence[Outline] = ()


def array_html(facts: str, values: str) -> str:
    """The values of an array under a line of facts."""
    return (
        f'<div><span style="{SOFT}">{escape(facts)}</span>'
        f'<pre style="margin:.2em 0">{escape(values)}</pre></div>'
    )


def outline_html(outline: Outline, depth: int = 0) -> str:
    """An outline whose parts open and close."""
    name = f"{escape(outline.name)}: " if outline.name else ""
    head = (
        f'<code>{name}<b>{escape(outline.kind)}</b></code> <span style="{SOFT}">'
        f"{escape(outline.facts)}</span>"
    )
    if not outline.parts:
        return f"<div>{head}</div>"
    inside = "".join(outline_html(part, depth + 1) for part in outline.parts)
    opened = " open" if depth < OPEN_DEPTH else ""
    return (
        f'<details{opened}><summary>{head}</summary><div style="{INSIDE}">{inside}</div></details>'
    )
