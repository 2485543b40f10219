"""Gather and Scatter kernels on the CPU: values, order, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from pullback.compile.kernel.forms import Gather, Scatter
from pullback.core import dtypes as dt
from pullback.ir import scalar as s
from runtime.kernel_arrays import array, buffer, check_bits, steps
from runtime.programs import gather_program, scatter_program


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def run_gather(x, indices, dtype=dt.float32):
    n, lead = len(indices), indices[0].ndim
    shape = indices[0].shape + x.shape[n:]
    kernel = Gather(dtype, tuple(dt.as_dtype(i.dtype) for i in indices))
    program = gather_program(
        kernel, shape, (0,) * lead + steps(x)[n:],
        [steps(i) + (0,) * (x.ndim - n) for i in indices],
        list(zip(x.shape[:n], steps(x)[:n], strict=True)),
    )  # fmt: skip
    return array(program(buffer(x), *map(buffer, indices)), shape, x.dtype)


def run_scatter(x, indices, updates, combine="add", dtype=dt.float32):
    n, lead = len(indices), indices[0].ndim
    wide = dt.float32 if dtype.itemsize == 2 else dtype
    a, b = s.acc("a", 0, wide), s.acc("b", 0, wide)
    body = {"add": a + b, "set": b, "max": s.select(a > b, a, b)}[combine]
    kernel = Scatter(dtype, tuple(dt.as_dtype(i.dtype) for i in indices), (body,))
    dense = steps(np.empty(x.shape, np.int8))
    program = scatter_program(
        kernel, x.shape, steps(x), updates.shape, (0,) * lead + dense[n:],
        [steps(i) + (0,) * (x.ndim - n) for i in indices], steps(updates),
        list(zip(x.shape[:n], dense[:n], strict=True)),
    )  # fmt: skip
    bufs = [buffer(a) for a in (x, *indices, updates)]
    return array(program(*bufs), x.shape, x.dtype)


@pytest.mark.parametrize("index", (np.int8, np.int32, np.int64, np.uint8, np.uint64), ids=str)
@pytest.mark.parametrize("shape", ((10,), (10, 3), (10, 40), (10, 5, 6)), ids=str)
def test_gather_and_scatter(shape, index, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    low = 0 if np.dtype(index).kind == "u" else -10
    i = rng.integers(low, 10, (7, 9)).astype(index)
    check_bits(run_gather(x, [i]), x[i.astype(np.int64)])
    updates = rng.standard_normal((7, 9, *shape[1:])).astype(np.float32)
    signed = i.astype(np.int64)
    for view in (x, x[::-1]):
        for name, at in (("add", np.add.at), ("max", np.maximum.at)):
            want = view.copy()
            at(want, signed, updates)
            check_bits(run_scatter(view, [i], updates, name), want)
    want = x.copy()
    for k in np.ndindex(7, 9):
        want[signed[k]] = updates[k]
    check_bits(run_scatter(x, [i], updates, "set"), want)
    if len(shape) > 1:
        j = rng.integers(0, shape[1], (7, 9))
        check_bits(run_gather(x, [i, j]), x[signed, j])
        want = x.copy()
        np.add.at(want, (signed, j), updates[:, :, 0])
        check_bits(run_scatter(x, [i, j], updates[:, :, 0]), want)


def test_gather_moves_every_dtype(rng):
    i = rng.integers(0, 5, 20)
    for dtype in dt.ALL:
        x = rng.integers(0, 2, (5, 37)).astype(dtype.numpy)
        check_bits(run_gather(x, [i], dtype), x[i])
        check_bits(run_gather(x.T[:5], [i], dtype), x.T[:5][i])


def test_scatter_of_halves_rounds_once(rng):
    i = rng.integers(0, 3, 4000)
    for dtype in (dt.float16, dt.bfloat16):
        updates = rng.random(4000).astype(dtype.numpy)
        want = np.zeros(3, np.float32)
        np.add.at(want, i, updates.astype(np.float32))
        got = run_scatter(np.zeros(3, dtype.numpy), [i], updates, dtype=dtype)
        check_bits(got, want.astype(dtype.numpy))


def test_an_index_out_of_range_is_reported(threads):
    x = np.zeros((10, 4), np.float32)
    for bad in (10, -11, 1 << 40):
        i = np.zeros((3, 5), np.int64)
        i[1, 2] = bad
        j = np.zeros((3, 5), np.int64)
        assert run_gather(x, [i]) == (1, 28, bad)
        assert run_gather(x, [j, i]) == (2, 7, bad)
        assert run_scatter(x, [j, i], np.zeros((3, 5), np.float32)) == (2, 7, bad)
        assert run_scatter(x, [i], np.zeros((3, 5, 4), np.float32)) == (1, 28, bad)
    assert run_gather(np.zeros(0, np.float32), [np.zeros(3, np.int64)]) == (1, 0, 0)
    many = np.zeros(300_000, np.int64)
    many[[150_000, 250_000]] = 77, 78
    for count in (1, 2, 5):
        threads(count)
        assert run_gather(x[:, 0].copy(), [many]) == (1, 150_000, 77)
        updates = np.zeros(300_000, np.float32)
        assert run_scatter(x[:, 0].copy(), [many], updates) == (1, 150_000, 77)


def test_scatter_is_independent_of_threads(rng, threads):
    x = np.zeros((50, 40), np.float32)
    i = rng.integers(0, 50, 100_000)
    rows = rng.standard_normal((100_000, 40)).astype(np.float32)
    want, single = x.copy(), x[:, 0].copy()
    np.add.at(want, i, rows)
    np.add.at(single, i, rows[:, 0])
    for count in (1, 2, 5):
        threads(count)
        check_bits(run_scatter(x, [i], rows), want)
        check_bits(run_scatter(x[:, 0].copy(), [i], rows[:, 0]), single)
    # indices that change along an axis which destinations share with the updates
    j = rng.integers(0, 40, (3000, 50))
    updates = rng.standard_normal((3000, 50)).astype(np.float32)
    kernel = Scatter(
        dt.float32, (dt.int64,), (s.acc("a", 0, dt.float32) + s.acc("b", 0, dt.float32),)
    )
    want = x.copy()
    np.add.at(want, (np.broadcast_to(np.arange(50), j.shape), j), updates)
    for count in (1, 2, 5):
        threads(count)
        program = scatter_program(
            kernel, (50, 40), (40, 1), (3000, 50), (0, 40), [steps(j)], steps(updates), [(40, 1)]
        )
        check_bits(array(program(buffer(x), buffer(j), buffer(updates)), (50, 40), x.dtype), want)
