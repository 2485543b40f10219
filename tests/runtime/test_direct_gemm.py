"""Blocks of products: they cover every row and column, and few kinds of them serve all shapes."""

import itertools
from collections.abc import Sequence

import pytest

from pullback.core import dtypes
from pullback.runtime.cpu.gemm import direct_gemm
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.vectors import lanes_of


def blocks(length: int, rules: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """First row and height of each block of a part."""
    found, row = [], 0
    while row < length:
        height, back = rules[min(length - row, direct_gemm.RULES - 1)]
        found.append((row - back, height))
        row += height - back
    return found


@pytest.mark.parametrize("bits", [256, 512])
def test_blocks_cover_the_rows_and_nothing_else(bits, monkeypatch):
    monkeypatch.setattr(jit.Host, "vector_bits", bits)
    sets = [()] + [c for n in (1, 2) for c in itertools.combinations(range(1, 40), n)]
    for lengths in sets:
        rules = direct_gemm._chosen(lengths)
        for length in lengths or range(1, 60):
            made = blocks(length, rules)
            assert all(first >= 0 and first + height <= length for first, height in made)
            covered = {r for first, height in made for r in range(first, first + height)}
            assert covered == set(range(length))
            assert {h for _, h in made} <= direct_gemm._reached(rules, lengths)


def test_rows_that_are_made_twice_are_few():
    rules = direct_gemm._chosen((64,))
    for length in range(12, 200):
        assert sum(h for _, h in blocks(length, rules)) <= length + 3


def test_parts_are_what_tasks_make():
    for m, items, grain in itertools.product((1, 5, 24, 33, 48, 100), (1, 3), (24, 48, 72)):
        rows = m * items
        lengths = direct_gemm.part_lengths(m, rows, grain)
        found = set()
        step = rows if rows <= grain else grain
        for low in range(0, rows, step):
            at = low
            while at < min(low + step, rows):
                end = min(low + step, rows, (at // m + 1) * m)
                found.add(end - at)
                at = end
        assert not lengths or found <= set(lengths)
        if items == 1:
            assert set(lengths) == found


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
@pytest.mark.parametrize("height", [1, 2, 4, 6])
def test_segments_cover_the_columns(dtype, height, monkeypatch):
    lanes = lanes_of(dtype)
    monkeypatch.setattr(
        direct_gemm,
        "_block",
        lambda dtype, rows, vectors, columns=0, long=False: columns or vectors * lanes,
    )
    for n in range(1, 200):
        covered = set()
        for width, first, panels in direct_gemm._segments(dtype, height, n):
            covered |= set(range(first, first + width * panels))
        assert covered == set(range(n))


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 16])
def test_threads_have_about_as_many_rows(threads):
    for rows in (24, 100, 1000, 4096, 50_000):
        for tasks in (0, 1, 5, 17, 40):
            each = direct_gemm.task_rows(rows, tasks, threads)
            found = -(-rows // each)
            assert found <= max(1, tasks) and (each == rows or each % direct_gemm.BLOCKS == 0)
            slowest = -(-found // threads) * each
            assert found < threads or slowest <= 1.25 * rows / threads + 2 * direct_gemm.BLOCKS


def test_shapes_share_their_blocks():
    def made(*shapes):
        for m, n, k in shapes:
            grain = direct_gemm.task_rows(m, 1, 2)
            lengths = direct_gemm.part_lengths(m, m, grain)
            strides = (k, 1, n, 1)
            direct_gemm.direct_params(dtypes.float32, (0, 1, 2), (m, n, k), strides, (0,), lengths)
        return direct_gemm._block.cache_info().misses

    direct_gemm._block.cache_clear()
    first = made((32, 64, 64), (64, 64, 32))
    assert first <= 3
    assert made((128, 128, 64), (48, 256, 7), (1000, 64, 5)) == first
