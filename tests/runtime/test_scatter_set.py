"""Setting rows by index: the last update of a row stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb

# rows, width, updates: few and many, in a cache and beyond, short rows and one that is not short
SHAPES = [
    *((20, 1, 5), (20, 1, 60_001), (7, 2, 40_000), (9_000, 1, 100_003), (200_000, 1, 70_000)),
    *((50_000, 2, 90_001), (30_000, 3, 50_000), (500, 40, 2_000), (1, 1, 40_000)),
]


def last_ones(x: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    position = np.full(len(x), -1)
    np.maximum.at(position, index, np.arange(len(index)))
    found = x.copy()
    found[position >= 0] = updates[position[position >= 0]]
    return found


def drawn(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = 100 * rng.standard_normal(shape)
    return (values + 1j * values[::-1] if dtype.startswith("complex") else values).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "index_dtype"),
    [("float32", "int64"), ("float64", "int32"), ("float16", "int64"), ("int8", "uint64"),
     ("bool", "uint32"), ("complex64", "int64"), ("complex128", "int64")],
)  # fmt: skip
@pytest.mark.parametrize(("rows", "width", "count"), SHAPES)
def test_the_last_update_stays(
    rows: int, width: int, count: int, dtype: str, index_dtype: str, threads: Any
) -> None:
    row = (width,) if width > 1 else ()
    x, updates = drawn(dtype, (rows, *row), 1), drawn(dtype, (count, *row), 2)
    low = 0 if index_dtype.startswith("u") else -rows
    index = np.random.default_rng(3).integers(low, rows, count).astype(index_dtype)
    want = last_ones(x, index.astype(np.int64), updates)
    compiled = pb.jit(lambda x, i, u: pb.scatter(x, i, u))
    operands = pb.tensor(x), pb.tensor(index), pb.tensor(updates)
    for n in (1, 2, 5):
        threads(n)
        assert np.array_equal(np.asarray(pb.scatter(*operands)), want)
        assert np.array_equal(np.asarray(compiled(*operands)), want)
    assert np.array_equal(np.asarray(operands[0]), x)


def test_updates_and_places_of_any_layout() -> None:
    rng = np.random.default_rng(4)
    x, index = rng.standard_normal((6, 900)), rng.integers(-900, 900, (40, 50))
    updates = rng.standard_normal((50, 40, 6))
    turned = pb.permute_dims(pb.tensor(updates), (2, 1, 0))
    got = pb.scatter(pb.tensor(x), pb.tensor(index), turned, axis=1)
    want = last_ones(x.T, index.reshape(-1), updates.transpose(1, 0, 2).reshape(-1, 6)).T
    assert np.array_equal(np.asarray(got), want)
    same = pb.scatter(pb.zeros(20_000), pb.tensor(index), pb.tensor(2.0))
    assert np.array_equal(np.unique(np.nonzero(np.asarray(same))[0]), np.unique(index % 20_000))


@pytest.mark.parametrize(("rows", "count"), [(20, 50_000), (20_000, 50_000), (20, 7)])
def test_the_first_bad_index_is_reported(rows: int, count: int, threads: Any) -> None:
    index = np.zeros(count, np.int64)
    index[count // 2 :], index[count // 2] = rows, -rows - 1
    for n in (1, 3):
        threads(n)
        with pytest.raises(IndexError, match=rf"index {-rows - 1} .* position {count // 2} "):
            pb.scatter(pb.zeros(rows), pb.tensor(index), pb.zeros(count))
