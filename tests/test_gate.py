"""The tool that compares what revisions compile: runs agree, and a change is noticed."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
EVERY = 150  # of so many operations, one is recorded


@pytest.fixture(scope="module")
def gate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gate", ROOT / "tools" / "gate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_records_of_one_tree_agree_and_a_change_of_it_is_noticed(
    gate: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    gate.started(ROOT / "src", tmp_path / "here", EVERY)
    gate.started(source, tmp_path / "copy", EVERY)
    assert gate.compare(tmp_path / "here", tmp_path / "copy") == 0
    block = source / "pullback" / "ops" / "exponential.py"
    text = block.read_text("utf-8")
    assert "body=mathfun.exp," in text
    block.write_text(text.replace("mathfun.exp,", "mathfun.expm1,"), "utf-8")
    gate.started(source, tmp_path / "changed", EVERY)
    capsys.readouterr()
    assert gate.compare(tmp_path / "here", tmp_path / "changed") == 1
    assert "programs of chain quick" in capsys.readouterr().out
