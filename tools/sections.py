"""Sections of `docs/conformance.md` that have tools of their own: each writes one anew and keeps
the rest of the page.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["PAGE", "kept", "put"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "conformance.md"


def kept(title: str) -> str:
    """The section with this heading, for whoever writes the page anew."""
    found = _pattern(title).search(_page())
    return found.group().rstrip() + "\n" if found else ""


def put(title: str, text: str) -> None:
    """Write the page with another section, which comes last if it had none."""
    page, pattern = _page(), _pattern(title)
    if pattern.search(page):
        page = pattern.sub(lambda _: text + "\n", page).rstrip() + "\n"
    else:
        page = page.rstrip() + "\n\n" + text
    PAGE.write_text(page, encoding="utf-8")


def _page() -> str:
    return PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""


def _pattern(title: str) -> re.Pattern[str]:
    return re.compile(rf"^{title}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
