"""Sums by index on CUDA have the bits of their order, on any device and wherever arrays start."""

from __future__ import annotations

import numpy as np
import pytest

import cuda_fake
import pullback.runtime.cuda.scatter as sc
from cuda_emulator import COMPILER
from pullback.compile.kernel import order, scatter_order
from pullback.compile.kernel.fixed_point import exact_scatter_add_reference
from pullback.runtime.cuda.scatter import Case, choose, each_row, executor, few, ordered
from scatter_emulated import device, late, same_bits, scattered

__all__ = ["device"]

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="there is no g++"),
    pytest.mark.usefixtures("device"),
]

LIMITS = (48 << 10, 64 << 10, 101_376, 232_448)  # bytes of shared memory that a block can have


@pytest.fixture
def with_shared(monkeypatch):
    """Gives the emulated device so much shared memory."""

    def give(limit):
        monkeypatch.setitem(cuda_fake.PROPERTIES, "sharedMemPerBlockOptin", limit)
        executor.shared_limit.cache_clear()
        sc._prepared.cache_clear()

    return give


def rounded(n, rows, width, dtype="float32", hot=0.3):
    """Indices, values and x, whose sums are nothing but roundings: what is large goes again."""
    rng = np.random.default_rng(n + rows)
    indices = np.where(rng.random(n) < hot, rows // 2, rng.integers(0, rows, n))
    values = rng.standard_normal((n, width))
    spread = {"float16": (0, 12), "float32": (30, 60), "float64": (30, 140)}[dtype]
    for row in np.unique(indices):
        places = np.flatnonzero(indices == row)
        large, gone = rng.permutation(places)[: len(places) // 3 * 2].reshape(2, -1)
        values[large] *= 2.0 ** rng.integers(*spread, (len(large), 1))
        values[gone] = -values[large]
    return indices, values.astype(dtype), rng.standard_normal((rows, width)).astype(dtype)


def in_streams(indices, values, out, fold="add"):
    """The kernels' result for arrays of (rows, width)."""
    flat = (values[:, 0], out[:, 0]) if out.shape[1] == 1 else (values, out)
    cuda_fake.launched.clear()
    got = scattered(indices, *flat, fold, strategy="few")
    assert cuda_fake.launched[0] in ("few_narrow", "few_wide")
    return got.reshape(out.shape)


# Blocks of 256, 128 and 64 threads, one and several; parts joined by the last of them and later.
SHAPES = [(900, 3, 1), (40_000, 20, 1), (9000, 30, 1), (7000, 100, 1), (5000, 300, 1)]
SHAPES += [(3000, 5, 3), (2000, 7, 40), (2500, 100, 5), (600, 2, 300), (4000, 200, 2)]


@pytest.mark.parametrize("limit", [LIMITS[0], LIMITS[-1]])
@pytest.mark.parametrize(("n", "rows", "width"), SHAPES)
def test_streams_have_the_bits_of_their_order_on_any_device(n, rows, width, limit, with_shared):
    with_shared(limit)
    indices, values, out = rounded(n, rows, width)
    want = scatter_order.scattered_in_streams(out, indices, values)
    same_bits(in_streams(indices, values, out), want)
    assert (want != order.scattered(out, indices, values)).any()


@pytest.mark.parametrize("index", ["uint8", "int32", "int64"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("width", [1, 3])
def test_streams_of_every_dtype(dtype, index, width):
    indices, values, out = rounded(6000, 9, width, dtype)
    want = scatter_order.scattered_in_streams(out, indices, values, index)
    same_bits(in_streams(indices.astype(index), values, out), want)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [1, 3])
def test_products_have_an_order_too(dtype, width):
    indices, values, out = rounded(2000, 9, width, dtype)
    values = (1 + np.sign(values) * 2.0**-9).astype(dtype)
    want = scatter_order.scattered_in_streams(out, indices, values, fold="mul")
    same_bits(in_streams(indices, values, out, "mul"), want)
    want = scatter_order.scattered_by_pieces(out, indices, values, "mul")
    same_bits(scattered(indices, values, out, "mul", strategy="ordered"), want)


@pytest.mark.parametrize(("n", "width"), [(900, 1), (4200, 2), (9000, 4), (1500, 40)])
def test_pieces_of_pairs_have_the_bits_of_their_order(n, width):
    indices, values, out = rounded(n, 7, width, "float64", hot=0.9)
    want = scatter_order.scattered_by_pieces(out, indices, values)
    for planned in (False, True):
        same_bits(scattered(indices, values, out, strategy="ordered", planned=planned), want)


@pytest.mark.parametrize("offset", ["index", "value", "out"])
@pytest.mark.parametrize(("n", "rows", "width"), [(3000, 20, 1), (2000, 100, 4), (9000, 3, 4)])
@pytest.mark.parametrize("strategy", ["few", "ordered", "buckets"])
def test_where_arrays_start_decides_no_bit(strategy, n, rows, width, offset):
    indices, values, out = rounded(n, rows, width, hot=0.9)
    reference = {
        "few": scatter_order.scattered_in_streams,
        "ordered": scatter_order.scattered_by_pieces,
        "buckets": lambda x, i, v: exact_scatter_add_reference(i, v, x),
    }[strategy]
    arrays = {"index": indices, "value": values, "out": out}
    i, v, o = (late(a) if k == offset else cuda_fake.asarray(a) for k, a in arrays.items())
    sc.scatter(i, v, o, strategy=strategy).raise_if_bad()
    same_bits(np.ascontiguousarray(o), reference(out, indices, values))


SCHEDULES = {
    "long runs by a group of lanes": [(ordered, "LONG", 128)],
    "every run by a block": [(ordered, "LONG", 1)],
    "rows in flight": [(ordered, "UNROLL", 1), (few, "IN_FLIGHT", 3)],
    "processors": [(ordered, "PROCESSORS", 2)],
    "sorted": [(each_row, "MOST_ROWS", 0)],
    "parts by a launch": [(few, "MERGED_ROWS", 0)],
    "parts by a block": [(few, "MERGED_ROWS", 1 << 10)],
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_decide_no_bit(schedule, monkeypatch):
    for module, name, value in SCHEDULES[schedule]:
        monkeypatch.setattr(module, name, value)
    indices, values, out = rounded(3000, 3, 128, hot=0.9)  # more parts of a run than slices
    want = scatter_order.scattered_by_pieces(out, indices, values)
    same_bits(scattered(indices, values, out, strategy="ordered"), want)
    for width in (1, 3):
        indices, values, out = rounded(4000, 40, width)
        want = scatter_order.scattered_in_streams(out, indices, values)
        same_bits(in_streams(indices, values, out), want)


ORDERS = {"few": "streams", "ordered": "pieces", "buckets": "exact", "atomic": "exact"}


@pytest.mark.parametrize("value", ["float32", "float16", "float64", "int32"])
@pytest.mark.parametrize("fold", ["add", "mul", "set"])
def test_shapes_and_dtypes_alone_choose_an_order(value, fold):
    rng, found = np.random.default_rng(0), set()
    for _ in range(300):
        n, rows = (int(2.0**e) for e in rng.uniform(0, 24, 2))
        width = int(rng.choice([1, 2, 3, 4, 7, 16, 300]))
        want = scatter_order.order_of(value, fold, n, rows, width)
        case = Case(value, "int64", fold, n, rows, width)
        for limit in LIMITS:
            for vectors in (False, True):
                chosen = choose(case._replace(shared=limit, vectors=vectors))
                assert ORDERS[chosen] == want
        found.add(want)
    streamed = {"streams"} if fold != "set" else set()
    exact = (
        {"exact"} if fold == "add" and value.startswith("float") and value != "float64" else set()
    )
    assert found == {"pieces"} | streamed | exact
