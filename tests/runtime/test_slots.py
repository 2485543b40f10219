"""Kernels at any slots of a program: inputs inside buffers, the output and scratch in an arena."""

import numpy as np
import pytest

from pullback.compile.kernel.forms import Accumulate, Gather, Map, Scatter
from pullback.compile.program.target import IndexArrays
from pullback.core import dtypes as dt
from pullback.ir.scalar import acc, const, load
from pullback.runtime.cpu.gemm import matmul
from pullback.runtime.cpu.indexing import gather_stages
from pullback.runtime.cpu.loops import fold_stages
from pullback.runtime.cpu.scatter import scatter_stages
from pullback.runtime.cpu.sort import sort_stages
from runtime.kernel_arrays import buffer, dense, floats
from runtime.programs import arena_program


def in_slots(inputs, out_nbytes, make, dtype):
    """The result of `make(slots, out slot, area)`, at slots that no program of its own would use.

    The inputs lie 8 bytes into buffers, the output and the scratch areas in an arena.
    """
    shifted = [
        np.concatenate([np.zeros(8, np.uint8), x.reshape(-1).view(np.uint8)]) for x in inputs
    ]
    count = len(inputs)
    arena = count + 1
    sizes: list[int] = []

    def take(nbytes):
        sizes.append(-(-nbytes // 64) * 64)
        return 2 * count + 2 + len(sizes)

    slots = range(count + 2, 2 * count + 2)
    out = 2 * count + 2
    body = list(make(slots, out, take))
    start = -(-out_nbytes // 64) * 64
    pointers = [*((k + 1, 8) for k in range(count)), (arena, 0)]
    pointers += [(arena, start + sum(sizes[:k])) for k in range(len(sizes))]
    raw = Map((dt.uint8,), dt.uint8, (load(0, dt.uint8),))
    body += dense(raw, out_nbytes, [0], [out])
    program = arena_program(count, out_nbytes, start + sum(sizes), pointers, body)
    result = program(*map(buffer, shifted))
    return floats(result, dtype)


def test_accumulate_in_slots(thread_count):
    x = np.random.default_rng(8).standard_normal((40, 30))
    zero, x_, total = const(0.0, dt.float64), load(0, dt.float64), acc("a", 0, dt.float64)
    added = total + acc("b", 0, dt.float64)
    kernel = Accumulate((dt.float64,), dt.float64, (zero,), (x_,), (added,), (total,))

    def make(slots, out, take):
        return fold_stages.accumulate_stages(
            kernel, (40,), 30, slots, [(30, 1)], out, (30, 1), True
        )

    result = in_slots([x], x.nbytes, make, np.float64).reshape(x.shape)
    assert np.allclose(result, x[:, ::-1].cumsum(1)[:, ::-1])


def test_gather_and_scatter_in_slots(thread_count):
    rng = np.random.default_rng(9)
    x, at = rng.standard_normal((50, 6)), rng.integers(-50, 50, 80)

    def gather(slots, out, take):
        kernel = Gather(dt.float64, (dt.int64,))
        source, index = slots
        return gather_stages.gather_stages(
            kernel, (80, 6), source, (0, 1), IndexArrays([index], [(1, 0)], [(50, 6)]), out
        )

    assert np.array_equal(in_slots([x, at], 80 * 6 * 8, gather, np.float64), x[at].reshape(-1))
    updates = rng.standard_normal((80, 6)).astype(np.float16)
    half = x.astype(np.float16)

    def scatter(slots, out, take):
        total = acc("a", 0, dt.float32) + acc("b", 0, dt.float32)
        kernel = Scatter(dt.float16, (dt.int64,), (total,))
        target, index, update = slots
        return scatter_stages.scatter_stages(
            kernel,
            ((50, 6), target, (6, 1)),
            ((80, 6), update, (6, 1)),
            (out, (0, 1)),
            IndexArrays([index], [(1, 0)], [(50, 6)]),
            take,
        )

    expected = half.astype(np.float32)
    np.add.at(expected, at, updates.astype(np.float32))
    result = in_slots([half, at, updates], half.nbytes, scatter, np.float16)
    assert np.array_equal(result, expected.astype(np.float16).reshape(-1))


@pytest.mark.parametrize("shape", [(20, 30), (3, 500), (1, 100_000)])
def test_argsort_in_slots(shape, thread_count):
    x = np.random.default_rng(10).standard_normal(shape)
    rows, length = shape

    def make(slots, out, take):
        return sort_stages.argsort_stages(
            dt.float64, (rows,), (length,), length, 1, False, slots[0], out, take
        )

    result = in_slots([x], x.size * 8, make, np.int64).reshape(shape)
    assert np.array_equal(result, x.argsort(1, kind="stable"))


def test_searchsorted_in_slots(thread_count):
    rng = np.random.default_rng(11)
    row, values = np.sort(rng.standard_normal(100)), rng.standard_normal(1000)

    def make(slots, out, take):
        return sort_stages.searchsorted_stages(
            dt.float64, 100, 1, (1000,), (1,), "right", slots[0], slots[1], out
        )

    result = in_slots([row, values], 8000, make, np.int64)
    assert np.array_equal(result, np.searchsorted(row, values, "right"))


@pytest.mark.parametrize("dtype", [dt.float32, dt.float16])
@pytest.mark.parametrize("m,n,k", [(10, 20, 30), (40, 50, 3000), (200, 300, 100), (3, 0, 4)])
def test_matmul_in_slots(dtype, m, n, k, thread_count):
    rng = np.random.default_rng(12)
    a, b = (rng.standard_normal(s).astype(dtype.numpy) for s in ((m, k), (k, n)))

    def make(slots, out, take):
        x, y = slots
        return matmul.matmul_stages(dtype, (), m, n, k, x, (k, 1), y, (n, 1), out, take)

    result = in_slots([a, b], m * n * dtype.itemsize, make, dtype.numpy).reshape(m, n)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    assert np.allclose(result, expected, rtol=2e-3, atol=1e-3 * k**0.5)
