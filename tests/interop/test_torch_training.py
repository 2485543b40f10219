"""The example that trains PyTorch models: the same bits twice, and a page that shows it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch" / "training.py"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def test_both_models_learn_and_repeat_to_the_bit(example, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert example["main"](["--quick", "--steps", "25", "--out", str(page)]) == 0
    out = capsys.readouterr().out
    assert out.count("pullback.torch") == 2 and out.count("twice") >= 4
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") >= 4 and "failed" not in text.partition("</style>")[2]


def test_a_run_that_changes_is_found(example, tmp_path, capsys):
    torch = pytest.importorskip("torch")
    readers, ours = example["READERS"], example["OURS"]
    plain = readers[ours]
    readers[ours] = lambda x, i: plain(x, i) * (1 + 1e-3 * torch.rand(()))
    try:
        options = ["--quick", "--steps", "3", "--out", str(tmp_path / "page.html")]
        assert example["main"](options) == 1
    finally:
        readers[ours] = plain
    assert "two different runs" in capsys.readouterr().out
