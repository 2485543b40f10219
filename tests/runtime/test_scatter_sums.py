"""Sums by index: every strategy against exact references, and the same bits however it is run."""

from __future__ import annotations

import math
import os
import threading
from itertools import product
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.compile.kernel.order import FEW_UPDATES
from pullback.core import dtypes as dt
from pullback.runtime.cpu.scatter.strategies import FAR_BYTES, Shape, strategy
from pullback.runtime.cpu.scatter.sums import Sums

THREADS = (1, 2, 3, 5)
FULL = os.environ.get("PULLBACK_FULL") == "1"

# Each pair is compiled anew: the fixed sample has every dtype of each kind.
INTEGERS = [
    (dtype, index)
    for dtype in ("int8", "uint16", "int32", "int64", "bool")
    for index in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    if FULL or dtype == "int32" or index == "int64"
]
ULP = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10}
# rows, width, updates: one shape for each strategy, and shapes at the edges of chunks and buckets
SHAPES = {
    "direct": [(20, 1, 100), (7, 5, 300), (1, 1, 1)],
    "sparse": [(50_000, 1, 40), (9_000, 3, 200)],
    "columns": [
        (20, 1, 150_001),
        (300, 1, 70_003),
        (200, 2, 70_000),
        (11, 9, 40_000),
        (1, 1, 33_000),
    ],
    "buckets": [(3_000, 1, 100_003), (70_000, 2, 140_000), (5_000, 3, 30_000)],
    "segments": [(500, 40, 3_001), (3, 700, 200), (40_000, 5, 9_000)],
}
CASES = [(name, *shape) for name, shapes in SHAPES.items() for shape in shapes]
PATTERNS = ("random", "equal", "sorted", "negative")


def drawn_indices(rng: np.random.Generator, pattern: str, rows: int, count: int) -> np.ndarray:
    if pattern == "equal":
        return np.full(count, rows // 2)
    if pattern == "negative":
        return rng.integers(-rows, rows, count)
    drawn = rng.integers(0, rows, count)
    return np.sort(drawn) if pattern == "sorted" else drawn


def shaped(rows: int, width: int) -> tuple[int, ...]:
    return (rows, width) if width > 1 else (rows,)


def exact(x: np.ndarray, index: np.ndarray, updates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sums in long double, which is exact enough, and the sums of the magnitudes."""
    total, size = x.astype(np.longdouble), np.abs(x).astype(np.longdouble)
    np.add.at(total, index, updates.astype(np.longdouble))
    np.add.at(size, index, np.abs(updates).astype(np.longdouble))
    return total, size


def bits(x: Any) -> bytes:
    return np.ascontiguousarray(np.asarray(x)).tobytes()


@pytest.mark.parametrize(("name", "rows", "width", "count"), CASES)
def test_shapes_get_the_strategy_they_are_here_for(
    name: str, rows: int, width: int, count: int
) -> None:
    assert strategy(Shape(count, rows, width, Sums(dt.float32))) == name


@pytest.mark.parametrize(("dtype", "pattern"), [("float32", p) for p in PATTERNS]
                         + [("float64", "negative"), ("float16", "equal")])  # fmt: skip
@pytest.mark.parametrize(("name", "rows", "width", "count"), CASES)
def test_sums_are_within_one_ulp_of_the_exact_ones(
    name: str, rows: int, width: int, count: int, pattern: str, dtype: str
) -> None:
    rng = np.random.default_rng(rows + count)
    index = drawn_indices(rng, pattern, rows, count)
    x = rng.standard_normal(shaped(rows, width)).astype(dtype)
    scale = 2.0 ** -math.ceil(math.log2(count)) if dtype == "float16" else 1.0
    updates = (rng.standard_normal((count, *x.shape[1:])) * scale).astype(dtype)
    got = np.asarray(pb.scatter_add(pb.tensor(x), pb.tensor(index), pb.tensor(updates)))
    total, size = exact(x, index, updates)
    assert np.max(np.abs(got - total) / size) <= ULP[dtype]


@pytest.mark.parametrize(("name", "rows", "width", "count"), CASES)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_sums(name: str, rows: int, width: int, count: int, dtype: str) -> None:
    rng = np.random.default_rng(count)
    index = rng.integers(-rows, rows, count)
    shape = (count, *shaped(rows, width)[1:])
    updates = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    got = np.asarray(pb.scatter_add(pb.zeros(shaped(rows, width), dtype=dt.as_dtype(dtype)),
                                    pb.tensor(index), pb.tensor(updates)))  # fmt: skip
    for part in ("real", "imag"):
        own = getattr(updates, part)
        total, size = exact(np.zeros(shaped(rows, width), own.dtype), index, own)
        error = np.abs(getattr(got, part) - total)
        assert np.all(error <= ULP[own.dtype.name] * size)


@pytest.mark.parametrize(("dtype", "index_dtype"), INTEGERS)
@pytest.mark.parametrize(
    ("rows", "width", "count"),
    [(100, 1, 60), (100, 1, 40_000), (90, 3, 50), (120, 40, 2_000), (110, 25, 1_500)],
)
def test_integers_wrap_around_in_every_strategy(
    rows: int, width: int, count: int, dtype: str, index_dtype: str
) -> None:
    rng = np.random.default_rng(5)
    low = 0 if index_dtype.startswith("u") else -rows
    index = rng.integers(low, rows, count).astype(index_dtype)
    x = rng.integers(0, 2 if dtype == "bool" else 127, shaped(rows, width)).astype(dtype)
    updates = rng.integers(0, 2 if dtype == "bool" else 127, (count, *x.shape[1:])).astype(dtype)
    want = x.copy()
    (np.logical_or if dtype == "bool" else np.add).at(want, index, updates)
    got = pb.scatter_add(pb.tensor(x), pb.tensor(index), pb.tensor(updates))
    assert np.array_equal(np.asarray(got), want)


@pytest.mark.parametrize(("dtype", "pattern"), [("float32", "random"), ("float64", "negative"),
                                                ("complex64", "equal")])  # fmt: skip
@pytest.mark.parametrize(("name", "rows", "width", "count"), CASES)
def test_bits_do_not_depend_on_threads_or_runs(
    name: str, rows: int, width: int, count: int, pattern: str, dtype: str, threads: Any
) -> None:
    rng = np.random.default_rng(11)
    index = pb.tensor(drawn_indices(rng, pattern, rows, count))
    x = pb.tensor(rng.standard_normal(shaped(rows, width)).astype(dtype))
    updates = pb.tensor(rng.standard_normal((count, *x.shape[1:])).astype(dtype))
    seen, compiled = set(), pb.jit(pb.scatter_add)
    for n, _ in product(THREADS, range(2)):
        threads(n)
        seen.add(bits(pb.scatter_add(x, index, updates)))
        seen.add(bits(compiled(x, index, updates)))
    assert len(seen) == 1


# The measured cases, at their size where the whole matrix runs: rows, width, updates, dtype.
REPEATED = [
    *((20, 1, 4_000_000, "float32", pattern) for pattern in ("random", "sorted", "equal")),
    (200, 1, 16_000_000, "float32", "random"),
    (100_000, 64, 1_000_000, "float32", "random"),
    (1_000_000, 1, 16_000_000, "float32", "random"),
    (50_000, 768, 32_768, "float32", "sorted"),
    (1_200_000, 1, 8_000_000, "complex64", "random"),
]


def assert_repetitions_agree(
    case: tuple[int, int, int, str, str], repetitions: int, threads: Any
) -> None:
    rows, width, count, dtype, pattern = case
    rng = np.random.default_rng(15)
    index = pb.tensor(drawn_indices(rng, pattern, rows, count))
    drawn = rng.standard_normal((count, *shaped(rows, width)[1:]), np.float32)
    updates = pb.tensor(drawn.astype(dtype))
    x = pb.zeros(shaped(rows, width), dtype=dt.as_dtype(dtype))
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            (pb.ones(200_000) * 2.0).sum()

    load = threading.Thread(target=disturb)
    load.start()
    try:
        want = bits(pb.scatter_add(x, index, updates))
        for k in range(repetitions):
            threads(THREADS[k % len(THREADS)])
            assert bits(pb.scatter_add(x, index, updates)) == want
    finally:
        stop.set()
        load.join()


@pytest.mark.parametrize("case", REPEATED)
def test_repetitions_under_load_give_one_bit_pattern(case: Any, threads: Any) -> None:
    rows, width, count, dtype, pattern = case
    smaller = max(2 * FEW_UPDATES // width, count // 40)
    rows = rows if rows <= 200 else rows // 40
    assert_repetitions_agree((rows, width, smaller, dtype, pattern), 12, threads)


@pytest.mark.full
@pytest.mark.parametrize("case", REPEATED)
def test_a_thousand_repetitions_under_load_give_one_bit_pattern(case: Any, threads: Any) -> None:
    assert_repetitions_agree(case, 1_000, threads)


@pytest.mark.parametrize(("name", "rows", "width", "count"), CASES)
def test_bits_under_load_from_several_python_threads(
    name: str, rows: int, width: int, count: int
) -> None:
    rng = np.random.default_rng(12)
    index = pb.tensor(rng.integers(-rows, rows, count))
    updates = pb.tensor(rng.standard_normal((count, *shaped(rows, width)[1:])).astype("float32"))
    x = pb.zeros(shaped(rows, width))
    want, seen = bits(pb.scatter_add(x, index, updates)), []

    def work() -> None:
        seen.extend(bits(pb.scatter_add(x, index, updates)) for _ in range(5))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(seen) == 20 and set(seen) == {want}


@pytest.mark.parametrize(("rows", "width", "count"), [(20, 1, 200_000), (4_000, 1, 200_000),
                                                      (20, 40, 20_000)])  # fmt: skip
def test_many_equal_values_in_one_place(rows: int, width: int, count: int) -> None:
    updates = np.full((count, *shaped(rows, width)[1:]), 0.1, np.float32)
    got = np.asarray(
        pb.scatter_add(pb.zeros(shaped(rows, width)), pb.full((count,), 3), pb.tensor(updates))
    )
    want = np.float32(math.fsum(updates.reshape(count, -1)[:, 0]))
    assert np.all(np.abs(got[3] - want) <= 4 * np.spacing(want))
    assert not got[np.arange(rows) != 3].any()


@pytest.mark.parametrize(("name", "rows", "width", "count"), CASES)
def test_cancellation_and_bins_of_very_different_size(
    name: str, rows: int, width: int, count: int
) -> None:
    rng = np.random.default_rng(13)
    index = rng.integers(0, rows, count)
    scale = np.ldexp(1.0, (index * 37) % 200 - 100)  # far apart in neighbouring bins
    updates = rng.standard_normal((count, *shaped(rows, width)[1:]))
    updates = (updates * scale.reshape(-1, *[1] * (updates.ndim - 1))).astype(np.float32)
    updates[count // 2 :] = -updates[: count - count // 2]
    x = np.zeros(shaped(rows, width), np.float32)
    got = np.asarray(pb.scatter_add(pb.tensor(x), pb.tensor(index), pb.tensor(updates)))
    total, size = exact(x, index, updates)
    assert np.all(np.abs(got - total) <= 4 * ULP["float32"] * size + 2.0**-149)


@pytest.mark.parametrize(("name", "rows", "width", "count"), CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_infinities_nan_and_untouched_places(
    name: str, rows: int, width: int, count: int, dtype: str
) -> None:
    shape = shaped(rows, width)
    x = np.full(shape, -0.0, dtype)
    updates = np.zeros((count, *shape[1:]), dtype)
    index = np.zeros(count, np.int64)
    updates[-1] = 1.0
    updates[0] = np.inf
    got = np.asarray(pb.scatter_add(pb.tensor(x), pb.tensor(index), pb.tensor(updates)))
    assert np.all(got[0] == np.inf)
    assert np.all(np.signbit(got[1:]))  # nothing was added: -0.0 stays
    if count > 1:
        updates[-1] = -np.inf
        got = np.asarray(pb.scatter_add(pb.tensor(x), pb.tensor(index), pb.tensor(updates)))
        assert np.all(np.isnan(got[0]))


def test_subnormal_numbers_are_kept() -> None:
    tiny = np.full(100_000, 1e-45, np.float32)
    got = np.asarray(pb.scatter_add(pb.zeros(5), pb.full((100_000,), 2), pb.tensor(tiny)))
    assert got[2] == np.float32(1e-45) * 100_000


@pytest.mark.parametrize(("name", "rows", "width", "count"), CASES)
@pytest.mark.parametrize("bad", [0, 1, -1])
def test_the_first_bad_index_is_reported(
    name: str, rows: int, width: int, count: int, bad: int, threads: Any
) -> None:
    index = np.zeros(count, np.int64)
    position = {0: 0, 1: count // 2, -1: count - 1}[bad]
    index[position:] = rows + 7
    index[position] = -rows - 1
    updates = pb.zeros((count, *shaped(rows, width)[1:]))
    for n in (1, 3):
        threads(n)
        with pytest.raises(IndexError, match=rf"index {-rows - 1} .* position {position} "):
            pb.scatter_add(pb.zeros(shaped(rows, width)), pb.tensor(index), updates)


@pytest.mark.parametrize("rows", [20, 120, 300])
@pytest.mark.parametrize("index_dtype", ["int8", "int16", "int32", "int64", "uint8", "uint64"])
def test_few_indices_from_the_end_in_few_places(index_dtype: str, rows: int) -> None:
    count, most = 70_003, min(rows, np.iinfo(index_dtype).max)
    rng = np.random.default_rng(5)
    index = rng.integers(0, most, count).astype(index_dtype)
    if index_dtype.startswith("i"):
        index[[5, 700, 40_000, -1]] = [-1, -2, -most, -1]
    updates = rng.standard_normal(count, np.float32)
    exact = np.zeros(rows)
    np.add.at(exact, index.astype(np.int64), updates)
    x, added, indices = pb.zeros(rows), pb.tensor(updates), pb.tensor(index)
    found = pb.scatter_add(x, indices, added).numpy()
    planned = pb.scatter_add(x, pb.scatter_plan(indices, rows), added).numpy()
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(found.view(np.uint32), planned.view(np.uint32))


@pytest.mark.parametrize("count", [3, 50_000])
@pytest.mark.parametrize("rows", [5, 3_000])
def test_an_unsigned_index_is_reported_as_it_was_given(rows: int, count: int) -> None:
    given = np.zeros(count, np.uint64)
    given[1] = (1 << 63) + 5
    index, x, updates = pb.tensor(given), pb.zeros(rows), pb.zeros(count)
    for call in (
        lambda i: pb.scatter_add(x, i, updates),
        lambda i: pb.scatter(x, i, updates),
        lambda i: pb.take(x, i),
        lambda i: pb.scatter_plan(i, rows),
        pb.jit(lambda i: pb.scatter_add(x, i, updates)),
        pb.jit(lambda i: pb.take(x, i)),
    ):
        with pytest.raises(IndexError, match=r"index 9223372036854775813 .* position 1 "):
            call(index)


def test_more_buckets_than_a_byte_can_number() -> None:
    rows, count = 5_000_000, 40_000
    rng = np.random.default_rng(16)
    index, updates = rng.integers(-rows, rows, count), rng.standard_normal(count)
    index[:200], index[200:400] = rows - 1, 0
    want = np.zeros(rows)
    np.add.at(want, index, updates)
    got = pb.scatter_add(pb.zeros(rows, dtype=pb.float64), pb.tensor(index), pb.tensor(updates))
    assert strategy(Shape(count, rows, 1, Sums(dt.float64))) == "buckets"
    assert np.allclose(np.asarray(got), want, rtol=1e-14, atol=1e-14)


def test_every_layout_of_operands() -> None:
    rng = np.random.default_rng(14)
    x, updates = rng.standard_normal((6, 5, 300)), rng.standard_normal((4, 5, 6, 300))
    index = rng.integers(-5, 5, (4, 5))
    want = np.moveaxis(x, 1, 0).copy()
    np.add.at(want, index, updates)
    transposed = pb.permute_dims(pb.tensor(updates), (2, 0, 1, 3))
    got = pb.scatter_add(pb.tensor(x), pb.tensor(index), transposed, axis=1)
    np.testing.assert_allclose(np.asarray(got), np.moveaxis(want, 0, 1), rtol=1e-14, atol=1e-14)
    along = rng.integers(0, 6, (9, 5, 300))
    values = rng.standard_normal((9, 5, 300))
    want = x.copy()
    for place in np.ndindex(9, 5, 300):
        want[(along[place], *place[1:])] += values[place]
    got = pb.put_along_axis(pb.tensor(x), pb.tensor(along), pb.tensor(values), axis=0, mode="add")
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-14, atol=1e-14)
    pair = rng.integers(0, 5, (2, 40_000))
    grid = pb.tensor(x[:5, :5])
    read = pb.jit(pb.grad(lambda g: (g[pb.tensor(pair[0]), pb.tensor(pair[1])] * 2).sum()))(grid)
    want = np.zeros((5, 5, 300))
    np.add.at(want, tuple(pair), 2.0)
    assert np.array_equal(np.asarray(read), want)


@pytest.mark.parametrize("mode", ["add", "mul", "max"])
@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("share", [0.5, 0.99, 1.0])
def test_updates_of_crowded_rows_keep_their_order(
    share: float, width: int, mode: str, threads: Any
) -> None:
    rows, count = 3_000, 100_003
    assert strategy(Shape(count, rows, width, Sums(dt.float32, mode))) == "buckets"
    rng = np.random.default_rng(17)
    index = np.where(rng.random(count) < share, 1_700, rng.integers(0, rows, count))
    x = rng.standard_normal(shaped(rows, width)).astype(np.float32)
    updates = 1 + 1e-3 * rng.standard_normal((count, *x.shape[1:]))
    if mode != "mul":  # large values that cancel: what is left is rounding, of this order alone
        crowd = rng.permutation(np.flatnonzero(index == 1_700))
        updates[crowd] *= 2.0 ** rng.integers(0, 60, updates[crowd].shape)
        half = len(crowd) // 2
        updates[crowd[:half]] = -updates[crowd[half : 2 * half]]
    updates = updates.astype(np.float32)
    want = x.astype(np.float64)
    {"add": np.add, "mul": np.multiply, "max": np.maximum}[mode].at(want, index, updates)
    plan = pb.scatter_plan(pb.tensor(index), rows)
    for n, places in product((1, 2, 5), (pb.tensor(index), plan)):
        threads(n)
        got = pb.scatter(pb.tensor(x), places, pb.tensor(updates), mode=mode)
        assert bits(got) == bits(want.astype(np.float32))


@pytest.mark.parametrize(
    ("dtype", "width"),
    [("float32", 1), ("float32", 2), ("float32", 3), ("float32", 4), ("int16", 1), ("int8", 1)],
)
def test_more_updates_than_caches_hold(dtype: str, width: int) -> None:
    row = width * np.dtype(dtype).itemsize
    rows, count = 50_000, FAR_BYTES // row + 100_003
    rng = np.random.default_rng(9)
    index = rng.integers(0, rows, count)
    updates = (100 * rng.standard_normal((count, *shaped(rows, width)[1:]))).astype(dtype)
    columns = updates.reshape(count, width).T.astype(np.float64)
    want = np.stack([np.bincount(index, c, rows) for c in columns], 1).reshape(shaped(rows, width))
    want = want.astype(dtype) if dtype == "float32" else want.astype(np.int64).astype(dtype)
    kept, zeros = pb.tensor(index), pb.zeros(shaped(rows, width), dtype=dt.as_dtype(dtype))
    for _ in range(3):  # without a plan, and with one
        assert bits(pb.scatter_add(zeros, kept, pb.tensor(updates))) == bits(want)
