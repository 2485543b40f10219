"""Threads, printing, and the object that shows what is set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb


def test_threads_are_chosen_and_change_no_bit() -> None:
    before = pb.get_num_threads()
    x = pb.random.normal(pb.random.key(0), (1 << 20,))
    sums = []
    try:
        for n in (1, 3, 2):
            pb.set_num_threads(n)
            assert pb.get_num_threads() == pb.config.num_threads == n
            sums.append(pb.sum(pb.exp(x)).item())
    finally:
        pb.set_num_threads(before)
    assert len(set(sums)) == 1
    for n in (0, -1, 1025):
        with pytest.raises(pb.ShapeError, match="set_num_threads: n must be between 1 and 1024"):
            pb.set_num_threads(n)
    for n in ("2", 2.0, True, None):
        value: Any = n
        with pytest.raises(pb.DTypeError, match="set_num_threads: n must be an integer"):
            pb.set_num_threads(value)
    assert pb.get_num_threads() == before


def test_printing_follows_what_is_chosen_and_else_numpy() -> None:
    x = pb.tensor([1.23456789, 1e-9])
    plain = repr(x)
    with pb.printoptions(precision=2, suppress=True):
        assert repr(x) == "tensor([1.23, 0.  ], float32, cpu)"
        with pb.printoptions(precision=3):
            assert repr(x) == "tensor([1.235, 0.   ], float32, cpu)"
        assert repr(np.array([1.23456])) == "array([1.23456])"
        assert pb.get_printoptions()["precision"] == 2
    assert repr(x) == plain
    with pb.printoptions(threshold=5, edgeitems=1):
        assert repr(pb.arange(9)) == "tensor([0, ..., 8], int64, cpu)"
    with pb.printoptions(linewidth=30):
        assert len(repr(pb.arange(20)).splitlines()) > 2
    with np.printoptions(precision=1):
        assert repr(pb.tensor([0.123])) == "tensor([0.1], float32, cpu)"
    with pytest.raises(ZeroDivisionError), pb.printoptions(precision=1):
        raise ZeroDivisionError
    assert repr(x) == plain


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"precision": 2.5}, pb.DTypeError, "set_printoptions: precision must be an integer"),
        ({"edgeitems": -1}, pb.ShapeError, "set_printoptions: edgeitems must be between 0"),
        ({"suppress": 1}, pb.DTypeError, "set_printoptions: suppress must be True or False"),
        ({"sci_mode": False}, TypeError, "sci_mode"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], error: Any, words: str) -> None:
    before = pb.get_printoptions()
    with pytest.raises(error, match=words):
        pb.set_printoptions(**{"threshold": 7, **options})
    assert pb.get_printoptions() == before


def test_the_cache_is_measured_and_cleared(tmp_path: Path) -> None:
    code = """
import pullback as pb
assert pb.config.cache_size == 0
before = pb.exp(pb.ones(3)).tolist()
size = pb.config.cache_size
assert 0 < size < pb.config.cache_limit
text = repr(pb.config)
assert str(pb.config.cache_folder) in text and "entries, at most 256 MiB" in text
assert pb.config.clear_cache() == size and pb.config.cache_size == 0
assert pb.exp(pb.ones(3)).tolist() == before
print(pb.config.cache_folder)
"""
    (tmp_path / "cpu-999999999").mkdir()
    (tmp_path / "cpu-999999999" / "other").write_text("another user's")
    source = str(Path(pb.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "PULLBACK_CACHE_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(tmp_path)
    assert (tmp_path / "cpu-999999999" / "other").exists()
    environment["PULLBACK_CACHE_DIR"] = ""
    code = "import pullback as pb; print(pb.config.cache_folder, pb.config.clear_cache())"
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["None", "0"]


def test_the_table_of_settings_says_how_to_change_each() -> None:
    lines = repr(pb.config).splitlines()
    assert len(lines) == 9 and all(line.endswith("]") for line in lines)
    with pb.no_grad():
        assert "recording       off" in repr(pb.config)
    before = pb.default_float()
    pb.set_default_float("float64")
    try:
        assert "default float   float64" in repr(pb.config)
    finally:
        pb.set_default_float(before)
