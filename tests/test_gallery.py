"""The examples of the gallery: they hold what they claim, draw their picture, and are short."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples" / "gallery").glob("*.py"))
LINES = 60  # besides empty ones: what fits on a screen and a half


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_holds_what_it_claims_and_draws_it(path, capsys):
    if path.stem == "digits":
        pytest.importorskip("sklearn")
    picture = runpy.run_path(str(path))["main"](quick=True)
    assert capsys.readouterr().out
    assert "<path" in picture or "<img" in picture
    assert "nan" not in picture.split("base64")[0]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_is_short_and_has_a_page_with_its_picture(path):
    lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    assert len(lines) < LINES
    page = (ROOT / "docs" / "gallery" / f"{path.stem}.md").read_text("utf-8")
    for kept in (f"docs/gallery/pictures/{path.stem}.html", f"examples/gallery/{path.stem}.py"):
        assert kept in page
        assert (ROOT / kept).is_file()
