"""Row numbers: every index dtype in every form, and no bad index that is taken for a good one."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.cpu import native
from pullback.runtime.cpu.indexing.checked import narrow_dtype
from pullback.runtime.cpu.scatter.numbers import BLOCK, EIGHT, narrow

INDICES = [dt.int8, dt.int16, dt.int32, dt.int64, dt.uint8, dt.uint16, dt.uint32, dt.uint64]
COUNT = 5 * BLOCK + 37  # whole blocks, and an odd rest
ROWS = (1, 20, 256, 300, 65_536, 1_000_000, 1 << 31, 1 << 33)


def numbers_of(index: np.ndarray, rows: int, paired: bool) -> np.ndarray | tuple[int, int, int]:
    """What the kernel stores, or the error that it reports."""
    number, given = narrow_dtype(rows), dt.as_dtype(index.dtype.name)
    stored = np.dtype(np.uint16) if paired else number.numpy
    count = -(-len(index) // 2) if paired else len(index)
    stage = native.Stage(
        narrow(given, number, paired), -(-len(index) // 256), 1, (1, 0, len(index), 256, rows, 1, 1)
    )
    buf: Any = native.wrap(index.ctypes.data, index.nbytes, index)
    made = native.program(1, count * stored.itemsize, (), [stage], True)(buf)
    if isinstance(made, tuple):
        return made
    return np.frombuffer(memoryview(made), np.uint8)[: count * stored.itemsize].view(stored)


def drawn(index: DType, rows: int) -> np.ndarray:
    info = np.iinfo(index.numpy)
    low, high = max(info.min, -rows if index.kind == "i" else 0), min(info.max, rows - 1)
    found = np.random.default_rng(rows).integers(low, high, COUNT, index.numpy, endpoint=True)
    found[:2], found[-2:] = (low, high), (high, low)
    return found


def wrapped(index: np.ndarray, rows: int) -> np.ndarray:
    return np.array([int(i) % rows for i in index])


@pytest.mark.parametrize(("index", "rows"), list(product(INDICES, ROWS)))
def test_numbers_are_wrapped_indices(index: DType, rows: int) -> None:
    given = drawn(index, rows)
    assert np.array_equal(numbers_of(given, rows, False), wrapped(given, rows))


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("rows", [1, 7, 20, 24])
@pytest.mark.parametrize("count", [1, 2, BLOCK, BLOCK + 1, COUNT])
def test_cells_of_pairs(index: DType, rows: int, count: int) -> None:
    given = drawn(index, rows)[:count]
    row = wrapped(given, rows)
    blocks = row[: count // BLOCK * BLOCK].reshape(-1, 2, EIGHT // 2)
    rest = np.append(row[blocks.size :], 0)
    pairs = rest[: rest.size // 2 * 2].reshape(-1, 2)
    cells = [first + rows * second for first, second in ((blocks[:, 0], blocks[:, 1]), pairs.T)]
    expected = 2 * np.concatenate([part.ravel() for part in cells])
    assert np.array_equal(numbers_of(given, rows, True), expected)


@pytest.mark.parametrize("rows", [20, 300, 1_000_000, 1 << 31, 1 << 33])
@pytest.mark.parametrize("index", [dt.int32, dt.int64, dt.uint32, dt.uint64])
@pytest.mark.parametrize("at", [0, 17, BLOCK - 1, 5 * BLOCK, COUNT - 1])
def test_the_first_bad_index_is_found_wherever_it_is(index: DType, rows: int, at: int) -> None:
    info = np.iinfo(index.numpy)
    # Some have a good row number in their low half, or wrap around to one.
    bad = {rows, -rows - 1, info.max, info.min, 5 + (1 << 32), 5 - (1 << 32), (1 << 63) + 5}
    for value in bad:
        if not info.min <= value <= info.max or -rows * (index.kind == "i") <= value < rows:
            continue
        given = drawn(index, rows)
        given[at] = value
        given[at + 1 :: 3] = value
        for paired in (False, True)[: 1 + (rows == 20)]:
            found = numbers_of(given, rows, paired)
            assert isinstance(found, tuple)
            assert found[:2] == (1, at)
            assert found[2] % (1 << 64) == value % (1 << 64)


def test_the_least_dtype_has_room_for_all_rows() -> None:
    sizes = {1: 1, 256: 1, 257: 2, 65_536: 2, 65_537: 4, 1 << 31: 4, (1 << 31) + 1: 8}
    assert {rows: narrow_dtype(rows).itemsize for rows in sizes} == sizes
