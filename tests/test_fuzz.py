"""The fuzzer itself: it finds what is planted, makes it small, and outlives crashes and hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pullback as pb
from fuzz import handles, indexing, loops, operations, references
from fuzz.__main__ import Run
from fuzz.case import Case, Given

DRAWS = (operations.draw, indexing.draw, handles.draw, loops.draw)


def findings(planted: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: float) -> Run:
    """Cases with a bug planted, until one is found."""
    monkeypatch.setenv("FUZZ_PLANTED", planted)
    run = Run(1, options.get("limit", 60.0), folder, ("operations",))
    run.shrinking = options.get("shrinking", 30.0)
    run.go(options.get("seconds", 120.0), 1, most=1)
    return run


@pytest.mark.parametrize(
    ("planted", "named", "check"),
    [("wrong_value", "sin", "oracles_agree"), ("wrong_pass", "subtract", "jit")],
)
def test_a_planted_bug_is_found_and_made_small(
    planted: str, named: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = findings(planted, tmp_path, monkeypatch)
    (sort,) = run.sorts
    assert check in sort
    assert run.counts["failures"] == 1
    (script,) = tmp_path.glob("operations_*.py")
    source = script.read_text().rpartition("def program(")[2]
    calls = [line for line in source.splitlines() if "= pb." in line and line.startswith("    ")]
    assert len(calls) == 1 and f"pb.{named}(" in calls[0]
    # The script needs nothing but pullback, where the bug is not planted.
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_crash_is_counted_with_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = findings("crash", tmp_path, monkeypatch, shrinking=4.0)
    assert run.counts["crashes"] == 1
    (script,) = tmp_path.glob("operations_*.py")
    assert "def program(" in script.read_text()


def test_a_hang_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = findings("hang", tmp_path, monkeypatch, limit=8.0)
    assert run.counts["hangs"] == 1
    assert "def program(" in next(tmp_path.glob("operations_*.py")).read_text()


@pytest.mark.parametrize("draw", DRAWS, ids=["operations", "indexing", "handles", "loops"])
def test_a_seed_has_one_case_which_passes(draw):
    case, again = draw(7), draw(7)
    assert case.source() == again.source() and case.checks == again.checks
    with np.errstate(all="ignore"):
        assert case.run_checks() == len(case.checks) > 0


def test_a_step_left_out_is_given():
    case = operations.draw(7)
    with np.errstate(all="ignore"):
        small = case.only([len(case.steps) - 1], "runs")
        assert isinstance(small, Case) and len(small.steps) == 1
        small.run_checks()


@pytest.mark.parametrize("layout", ["plain", "flipped", "transposed", "strided", "offset"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64", "uint8", "bool"])
def test_a_layout_changes_no_element(layout: str, dtype: str):
    a = pb.astype(pb.tensor(np.arange(24).reshape(2, 3, 4) % 7), dtype).numpy()
    given = Given("x0", np.array(a), layout)
    (x,) = Case("operations", 0, [given], [], (), ()).tensors()
    assert x.numpy().tobytes() == a.tobytes() and x.dtype.name == dtype


def test_references_know_where_they_are_wrong():
    least = np.iinfo(np.int64).min
    for name in ("place_below", "place_beyond"):
        for count, known in ((least, False), (1 << 40, False), (7, True)):
            assert references.knows(f"primitive.{name}", (np.array([count]), 0.5), {}) is known
    for kind, points, known in (("F", 3, False), ("F", 4, True), ("f", 3, True)):
        x = np.arange(points).astype(kind)
        assert references.knows("polyfit", (x, x, 3), {}) is known


def test_what_needs_much_memory_on_its_way_is_not_drawn():
    index, wide, narrow = np.zeros((311, 311), np.int64), np.ones((4, 311)), np.ones((4, 3))
    assert not references.drawable("nn.embedding_bag", (index, wide), {})
    assert references.drawable("nn.embedding_bag", (index, narrow), {"mode": "sum"})
    for classes, drawn in ((16384, False), (512, True)):
        x = np.zeros((2, classes))
        assert references.drawable("nn.multilabel_margin_loss", (x, x), {}) is drawn


def test_numpy_knows_integers_that_fit():
    for number, known in ((2.0**31, False), (np.nan, False), (2.0**31 - 1, True), (-7.5, True)):
        args = np.array([number]), pb.int32
        assert references.knows("astype", args, {}) is known
    assert references.knows("astype", (np.array([1e300]), pb.float32), {})
    assert references.knows("astype", (np.array([1 << 40]), pb.int32), {})
