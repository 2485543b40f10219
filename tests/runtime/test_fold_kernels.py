"""Reduce and Accumulate kernels on the CPU: values, accuracy, and the same bits in every layout."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from pullback.compile.kernel.forms import Accumulate, Reduce
from pullback.core import dtypes as dt
from pullback.ir import scalar as s
from runtime.kernel_arrays import FLOATS, array, buffer, check_bits, sample, steps
from runtime.programs import accumulate_program, reduce_program


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def sum_of(dtype, form=Reduce, out=None) -> Any:
    wide = dt.float32 if dtype.itemsize == 2 else dtype
    a, b = s.acc("a", 0, wide), s.acc("b", 0, wide)
    parts = (s.const(0, wide),), (s.cast(s.load(0, dtype), wide),), (a + b,), (a,)
    return form((dtype,), out or dtype, *parts)


def argmax_of(dtype):
    (a, b), (i, j) = ([s.acc(side, k, d) for side in "ab"] for k, d in enumerate((dtype, dt.int64)))
    later = (b > a) | ((b == a) & (j < i))
    combine = (s.select(later, b, a), s.select(later, j, i))
    init = (s.const(-math.inf, dtype), s.const(2**62, dt.int64))
    return Reduce((dtype,), dt.int64, init, (s.load(0, dtype), s.index()), combine, (i,))


def run_reduce(kernel, x, axes):
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = tuple(x.shape[d] for d in kept)
    own = steps(x)
    program = reduce_program(
        kernel, shape, tuple(x.shape[d] for d in axes), [tuple(own[d] for d in (*kept, *axes))]
    )
    return array(program(buffer(x)), shape, kernel.output.numpy)


SHAPES = [
    (5,), (0,), (31,), (32,), (33,), (1024,), (1025,), (5000,), (3, 40, 50), (40, 3, 60), (100, 17),
    (17, 100), (2000, 33), (0, 3), (3, 0), (2, 3, 4, 5, 6), (33, 34, 35),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reduce_has_the_same_bits_in_every_layout(shape, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    kernel = sum_of(dt.float32)
    for count in range(1, x.ndim + 1):
        for axes in itertools.combinations(range(x.ndim), count):
            got = run_reduce(kernel, x, axes)
            want = x.sum(axes, np.float64)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
            last = (
                np.moveaxis(x, axes, range(-count, 0)).reshape((*want.shape, -1)) if x.size else x
            )
            if x.size:
                dense = np.ascontiguousarray(last)
                first = np.moveaxis(np.ascontiguousarray(np.moveaxis(dense, -1, 0)), 0, -1)
                backwards = np.ascontiguousarray(dense[..., ::-1])[..., ::-1]
                for other in (dense, first, backwards):
                    check_bits(run_reduce(kernel, other, (want.ndim,)), got)


@pytest.mark.parametrize("shape", [(1,), (50,), (3000,), (40, 70), (70, 40), (3, 50, 20)], ids=str)
def test_argmax(shape, rng):
    for dtype in FLOATS:
        x = rng.integers(0, 50, shape).astype(dtype.numpy)
        for axis in range(x.ndim):
            check_bits(run_reduce(argmax_of(dtype), x, (axis,)), x.argmax(axis))


def test_reduce_of_other_dtypes(rng):
    for dtype in (dt.int8, dt.int32, dt.uint64, dt.float64):
        x = sample(rng, dtype, 3000) if dtype.is_integer else rng.standard_normal(3000)
        x = x.reshape(60, 50)
        for axes in ((0,), (1,), (0, 1)):
            got, want = run_reduce(sum_of(dtype), x, axes), x.sum(axes, dtype.numpy)
            if dtype.is_integer:
                check_bits(got, want)
            np.testing.assert_allclose(got, want, rtol=1e-10)
    half = rng.standard_normal((70, 80)).astype(np.float16)
    for axis in (0, 1):
        want = half.astype(np.float64).sum(axis).astype(np.float16)
        np.testing.assert_allclose(run_reduce(sum_of(dt.float16), half, (axis,)), want, rtol=1e-3)
    a, b = s.acc("a", 0, dt.bool_), s.acc("b", 0, dt.bool_)
    parts = (s.const(False, dt.bool_),), (s.load(0, dt.bool_),), (a | b,), (a,)
    flags = rng.random((100, 64)) < 0.02
    for axis in (0, 1):
        got = run_reduce(Reduce((dt.bool_,), dt.bool_, *parts), flags, (axis,))
        check_bits(got, flags.any(axis))


def test_complex_reduce_and_two_inputs(rng):
    z = (rng.standard_normal((70, 90)) + 1j * rng.standard_normal((70, 90))).astype(np.complex64)
    f4 = dt.float32
    a, b = ([s.acc(side, k, f4) for k in range(2)] for side in "ab")
    parts = (s.load(0, f4, 0), s.load(0, f4, 1)), (a[0] + b[0], a[1] + b[1]), tuple(a)
    kernel = Reduce((dt.complex64,), dt.complex64, (s.const(0, f4),) * 2, *parts)
    for axis in (0, 1):
        np.testing.assert_allclose(run_reduce(kernel, z, (axis,)), z.sum(axis), rtol=1e-4)
    x, y = (rng.standard_normal((70, 90)).astype(np.float32) for _ in range(2))
    dot = Reduce((f4, f4), f4, (s.const(0, f4),), (s.load(0, f4) * s.load(1, f4),),
                 (a[0] + b[0],), (a[0],))  # fmt: skip
    program = reduce_program(dot, (70,), (90,), [(90, 1), (0, 1)])
    got = array(program(buffer(x), buffer(y)), (70,), np.dtype(np.float32))
    np.testing.assert_allclose(got, x @ y[0], rtol=1e-4, atol=1e-4)


def test_sum_is_accurate_and_independent_of_threads(rng, threads):
    x = (rng.standard_normal(3_000_000) + 10).astype(np.float32)
    exact = math.fsum(x.tolist())
    results = []
    for count in (1, 2, 5):
        threads(count)
        whole = run_reduce(sum_of(dt.float32), x, (0,))
        assert abs(float(whole) - exact) / exact < 3e-7
        wide, tall = x.reshape(20, -1), x.reshape(-1, 20)
        parts = [whole, run_reduce(sum_of(dt.float32), wide, (1,)),
                 run_reduce(sum_of(dt.float32), wide, (0,)),
                 run_reduce(sum_of(dt.float32), tall, (0,)),
                 run_reduce(sum_of(dt.float32), tall, (1,))]  # fmt: skip
        results.append(b"".join(p.tobytes() for p in parts))
    assert results[0] == results[1] == results[2]
    # one output alone, and the same data as one output among many
    many = np.repeat(x[:200_000, None], 20, 1)
    alone = run_reduce(sum_of(dt.float32), x[:200_000], (0,))
    assert (run_reduce(sum_of(dt.float32), many, (0,)) == alone).all()
    assert (run_reduce(sum_of(dt.float32), np.ascontiguousarray(many.T), (1,)) == alone).all()


@pytest.mark.parametrize("reverse", [False, True])
def test_accumulate(reverse, rng):
    kernel = sum_of(dt.float32, Accumulate)
    for shape in ((0,), (1,), (100,), (7, 50), (50, 7), (30, 600), (4, 20, 30), (3, 0), (0, 3)):
        x = rng.standard_normal(shape).astype(np.float32)
        for view, axis in itertools.product((x, x.T), range(x.ndim)):
            order = [d for d in range(x.ndim) if d != axis] + [axis]
            dense = steps(np.empty(view.shape, np.int8))
            own = steps(view)
            program = accumulate_program(
                kernel, [view.shape[d] for d in order[:-1]], view.shape[axis],
                [tuple(own[d] for d in order)], tuple(dense[d] for d in order), reverse,
            )  # fmt: skip
            want = np.flip(view, axis) if reverse else view
            want = np.cumsum(want, axis, np.float32)
            want = np.flip(want, axis) if reverse else want
            got = array(program(buffer(view)), view.shape, np.dtype(np.float32))
            np.testing.assert_array_equal(got, want)
