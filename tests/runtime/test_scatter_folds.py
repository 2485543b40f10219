"""Largest, smallest and product by index: every strategy against NumPy, and always one result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb

SHAPES = [(20, 1, 100), (50_000, 1, 40), (20, 1, 60_001), (300, 1, 40_000), (200, 2, 40_000),
          (3_000, 1, 60_003), (5_000, 3, 30_000), (500, 40, 3_001)]  # fmt: skip
FOLDS: dict[str, tuple[Any, Any]] = {
    "max": (pb.primitive.scatter_max, np.maximum),
    "min": (pb.primitive.scatter_min, np.minimum),
    "mul": (pb.primitive.scatter_mul, np.multiply),
}


def drawn(dtype: str, fold: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    values = rng.standard_normal(shape).astype(dtype)
    return 1 + values / 256 if fold == "mul" else values


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint32", "bool"])
@pytest.mark.parametrize(("rows", "width", "count"), SHAPES)
def test_folds_are_those_of_numpy(
    rows: int, width: int, count: int, dtype: str, fold: str, threads: Any
) -> None:
    ours, theirs = FOLDS[fold]
    rng = np.random.default_rng(1)
    index = rng.integers(-rows, rows, count)
    row = (width,) if width > 1 else ()
    x, updates = drawn(dtype, fold, (rows, *row), 2), drawn(dtype, fold, (count, *row), 3)
    wide = np.longdouble if x.dtype.kind == "f" else x.dtype
    want = x.astype(wide)
    theirs.at(want, index, updates.astype(wide))
    kept = pb.tensor(index.reshape(-1, *[1] * len(row)))
    seen, compiled = set(), pb.jit(lambda x, u, i: ours(x, u, i))
    for n in (1, 2, 3):  # the second time by a plan
        threads(n)
        got = ours(pb.tensor(x), pb.tensor(updates), kept)
        seen |= {np.asarray(got).tobytes()}
        seen |= {np.asarray(compiled(pb.tensor(x), pb.tensor(updates), kept)).tobytes()}
    assert len(seen) == 1
    if wide is np.longdouble:
        factors = 2 * count / rows if dtype == "float64" else 0  # others are multiplied in float64
        tolerance = (3 + factors) * np.finfo(dtype).eps
        assert np.allclose(np.asarray(got).astype(wide), want, rtol=tolerance, atol=0)
    else:
        assert np.array_equal(np.asarray(got), want)


@pytest.mark.parametrize("fold", ["max", "min"])
@pytest.mark.parametrize(("rows", "count"), [(20, 50), (20, 50_000), (3_000, 50_000)])
def test_a_nan_wins_and_infinities_count(rows: int, count: int, fold: str) -> None:
    ours, theirs = FOLDS[fold]
    rng = np.random.default_rng(4)
    x, updates = (rng.standard_normal(n).astype(np.float32) for n in (rows, count))
    index = rng.integers(0, rows - 2, count)  # the last ones stay as they are
    x[-1], x[0], updates[::999] = np.nan, np.nan, np.nan
    updates[3::501], x[-2] = np.inf, -np.inf
    want = x.copy()
    with np.errstate(invalid="ignore"):
        theirs.at(want, index, updates)
    got = ours(pb.tensor(x), pb.tensor(updates), pb.tensor(index))
    assert np.array_equal(np.asarray(got), want, equal_nan=True)
