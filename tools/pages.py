"""Hooks of MkDocs. A pattern in the navigation stands for the pages that match it and have no entry
of their own, so that a generated page needs none. Examples with prompts are coloured as sessions:
what they print does not look like a program. The functions of the page that trains are exported
beside it.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def named(entry: Any) -> Iterator[str]:
    """All pages and patterns in a navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from named(inner)


def matches(pattern: str, pages: list[str]) -> list[str]:
    """The pages that a pattern stands for; `*` is any text without points and strokes."""
    whole = re.compile(re.escape(pattern).replace(r"\*", "[^./]+"))
    return [page for page in pages if whole.fullmatch(page)]


def filled(entry: Any, pages: list[str]) -> Any:
    """A navigation with the pages in the places of the patterns."""
    if isinstance(entry, dict):
        return {title: filled(inner, pages) for title, inner in entry.items()}
    if isinstance(entry, str):
        return entry
    found: list[Any] = []
    for inner in entry:
        if isinstance(inner, str) and "*" in inner:
            found += matches(inner, pages)
        else:
            found.append(filled(inner, pages))
    return found


def on_config(config: Any) -> Any:
    docs = Path(config.docs_dir)
    taken = set(named(config.nav))
    pages = sorted(p.relative_to(docs).as_posix() for p in docs.rglob("*.md"))
    config.nav = filled(config.nav, [page for page in pages if page not in taken])
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    return re.sub(r"^```python\n(?=>>>)", "```pycon\n", markdown, flags=re.MULTILINE)


def on_post_build(config: Any) -> None:
    """The functions of docs/web/index.html."""
    example = Path(config.docs_dir).parent / "examples" / "web" / "spirals.py"
    runpy.run_path(str(example))["export"](Path(config.site_dir) / "web")
