"""What the documentation says by name is there; the navigation finds its pages."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import pullback as pb
import pullback.nn
import pullback.train

ROOT = Path(__file__).parents[1]
WRITTEN = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TABLES = sorted((ROOT / "docs").glob("from-*.md"))


def value(name: str) -> object:
    found: object = pb
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: p.stem)
def test_names_in_a_page_exist(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    code = " ".join(re.findall(r"`([^`\n]+)`", prose))
    names = set(re.findall(r"(?<![\w.])pb(?:\.[A-Za-z]\w*)+", code))
    missing = []
    for name in sorted(names):
        try:
            value(name)
        except AttributeError:
            missing.append(name)
    assert missing == []


@pytest.mark.parametrize("page", TABLES, ids=lambda p: p.stem)
def test_methods_in_a_table_of_names_exist(page: Path) -> None:
    rows = re.findall(r"^\|([^|\n]+)\|([^|\n]+)\|$", page.read_text("utf-8"), flags=re.M)
    assert len(rows) > 10
    methods = {m for _, ours in rows for m in re.findall(r"`[xy]\.([a-z]\w*)", ours)}
    same = [theirs for theirs, ours in rows if ours.strip().startswith("the same")]
    methods |= {m for theirs in same for m in re.findall(r"`x\.([a-z]\w*)", theirs)}
    assert sorted(m for m in methods if not hasattr(pb.Tensor, m)) == []


def test_every_page_has_its_place_in_the_navigation() -> None:
    yaml = pytest.importorskip("yaml")
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    hooks = runpy.run_path(str(ROOT / "tools" / "pages.py"))
    docs = ROOT / "docs"
    pages = sorted(p.relative_to(docs).as_posix() for p in docs.rglob("*.md"))
    taken = set(hooks["named"](nav))
    places = list(hooks["named"](hooks["filled"](nav, [p for p in pages if p not in taken])))
    assert sorted(places) == pages


def test_the_design_names_files_that_are_there_and_each_of_them_once() -> None:
    text = (ROOT / "docs" / "design.md").read_text("utf-8")
    names = re.findall(r"`([\w/]+\.py)`", text)
    assert len(names) > 80 and len(set(names)) == len(names)
    package = ROOT / "src" / "pullback"
    files = ["/" + p.relative_to(package).as_posix() for p in package.rglob("*.py")]
    assert [n for n in names if not any(f.endswith("/" + n) for f in files)] == []
